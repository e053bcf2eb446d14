"""What ``doctor`` looks at: the machine, the libraries, and the kernels' self-test. Judges nothing."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlxserve.backends.memory import CGROUP, free_host_memory
from mlxserve.backends.torch.native.build import BuildError, check, find_compiler
from mlxserve.errors import CheckpointError
from mlxserve.formats.checkpoint import embedded_model_path

REQUIRED = (
    "numpy",
    "tokenizers",
    "safetensors",
    "gguf",
    "starlette",
    "uvicorn",
    "jinja2",
    "msgspec",
    "huggingface_hub",
)
_SELF_TEST = (sys.executable, "-m", "mlxserve.backends.mlx.selftest")
_SELF_TEST_S = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What ``collect`` saw. Sizes in bytes; None where this system has no such thing, or does not say."""

    python: tuple[int, int, int]
    system: str  # "Darwin", "Linux"
    machine: str
    release: str  # macOS's version, else the kernel's
    translated: bool  # under Rosetta
    packages: Mapping[str, str | None]  # version, None: missing
    memory: int
    free_memory: int
    container_limit: int | None
    wired_limit: int | None  # 0: macOS decides
    disk_path: Path
    disk_free: int
    open_files: int
    address: str
    address_error: str | None  # why it cannot be listened on
    embedded_model: bool
    gpu: str | None = None
    working_set: int | None = None  # what Metal recommends to use at most
    kernels: tuple[Mapping[str, Any], ...] = field(default=())  # selftest.Result, as plain data
    mlx_failure: str | None = None  # MLX is there, but its process failed
    compiler: str | None = None  # the C++ compiler's path
    operators_failure: str | None = None  # why torch's C++ operators cannot be built


def collect(host: str, port: int) -> Facts:
    """Looks at the machine; runs the kernels' self-test in a process of its own."""
    packages = {name: _version(name) for name in (*REQUIRED, "mlx", "torch")}
    mlx: dict[str, Any] = {}
    failure = None
    if packages["mlx"] is not None:
        mlx, failure = _self_test()
    cache = _model_cache()
    return Facts(
        python=sys.version_info[:3],
        system=platform.system(),
        machine=platform.machine(),
        release=platform.mac_ver()[0] or platform.release(),
        translated=_sysctl("sysctl.proc_translated") == 1,
        packages=packages,
        memory=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        free_memory=free_host_memory(),
        container_limit=_container_limit(),
        wired_limit=None if (wired := _sysctl("iogpu.wired_limit_mb")) is None else wired * 2**20,
        disk_path=cache,
        disk_free=shutil.disk_usage(cache).free,
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        address=f"{host}:{port}",
        address_error=_address_error(host, port),
        embedded_model=_has_embedded_model(),
        gpu=mlx.get("gpu"),
        working_set=mlx.get("working_set"),
        kernels=tuple(mlx.get("results", ())),
        mlx_failure=failure,
        compiler=find_compiler(),
        operators_failure=_operators_failure(),
    )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _self_test() -> tuple[dict[str, Any], str | None]:
    """What the self-test printed, or why it did not."""
    try:
        done = subprocess.run(_SELF_TEST, capture_output=True, text=True, timeout=_SELF_TEST_S)
    except subprocess.TimeoutExpired:
        return {}, f"the self-test did not end within {_SELF_TEST_S} s"
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        return {}, f"the self-test ended with status {done.returncode}: {last}"
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result, None


def _operators_failure() -> str | None:
    try:
        check()
    except BuildError as error:
        return str(error)
    return None


def _sysctl(name: str) -> int | None:
    """An integer of macOS's sysctl; None where there is no such thing."""
    try:
        done = subprocess.run(["/usr/sbin/sysctl", "-n", name], capture_output=True, text=True)
    except OSError:
        return None
    return int(done.stdout) if done.returncode == 0 and done.stdout.strip().isdecimal() else None


def _container_limit() -> int | None:
    try:
        text = (CGROUP / "memory.max").read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _model_cache() -> Path:
    """The hub's cache, or the nearest directory above it that exists."""
    from huggingface_hub.constants import HF_HUB_CACHE

    path = Path(HF_HUB_CACHE)
    return next(place for place in (path, *path.parents) if place.exists())


def _address_error(host: str, port: int) -> str | None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        return error.strerror or str(error)
    return None


def _has_embedded_model() -> bool:
    try:
        embedded_model_path()
    except CheckpointError:
        return False
    return True
