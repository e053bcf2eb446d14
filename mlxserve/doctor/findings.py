"""What ``doctor`` makes of the facts: whether serving can work, and what to do where it cannot. Touches nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from mlxserve.doctor.facts import REQUIRED, Facts
from mlxserve.formats.checkpoint import EMBEDDED_REMEDY

GIB = 2**30
OLDEST_PYTHON = (3, 11)
OLDEST_MACOS = 14
TORCH = "2.13.0"  # its operators differ from version to version
LEAST_MEMORY = 2 * GIB
LEAST_DISK = 5 * GIB
LEAST_FILES = 1024
MOST_WIRED = 0.85  # of the memory; a wired limit above it leaves macOS too little to live on

Status = Literal["ok", "note", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Finding:
    """``fail``: serving cannot work."""

    status: Status
    subject: str
    detail: str
    remedy: str = ""


def examine(facts: Facts) -> Iterator[Finding]:
    """One finding a subject, in the order of reading."""
    yield _python(facts)
    yield _system(facts)
    yield _libraries(facts)
    yield from _backends(facts)
    yield _memory(facts)
    if facts.wired_limit is not None:
        yield _wired(facts)
    yield _disk(facts)
    yield _files(facts)
    yield _port(facts)
    yield _embedded(facts)
    yield from _kernels(facts)


def can_serve(findings: list[Finding]) -> bool:
    return all(finding.status != "fail" for finding in findings)


def _python(facts: Facts) -> Finding:
    version = ".".join(map(str, facts.python))
    if facts.python[:2] >= OLDEST_PYTHON:
        return Finding("ok", "Python", version)
    oldest = ".".join(map(str, OLDEST_PYTHON))
    return Finding("fail", "Python", f"{version} is too old", f"install Python {oldest} or newer")


def _system(facts: Facts) -> Finding:
    name = f"{'macOS' if facts.system == 'Darwin' else facts.system} {facts.release} on {facts.machine}"
    if facts.translated:
        remedy = "install a Python for arm64 (python.org's universal one, or Homebrew in /opt/homebrew)"
        return Finding("fail", "system", f"{name}: this Python runs under Rosetta", remedy)
    if facts.system == "Darwin" and facts.machine != "arm64":
        return Finding("fail", "system", f"{name}: an Intel Mac", "use a Mac with Apple Silicon, or Linux")
    if facts.system == "Darwin" and int(facts.release.split(".")[0] or 0) < OLDEST_MACOS:
        return Finding("fail", "system", f"{name} is too old", f"update to macOS {OLDEST_MACOS} or newer")
    if facts.system not in ("Darwin", "Linux"):
        return Finding("fail", "system", f"{name} is not supported", "use macOS on Apple Silicon, or Linux")
    return Finding("ok", "system", name)


def _libraries(facts: Facts) -> Finding:
    missing = [name for name in REQUIRED if facts.packages[name] is None]
    if missing:
        return Finding("fail", "libraries", f"{', '.join(missing)} missing", "pip install --upgrade mlxserve")
    return Finding("ok", "libraries", ", ".join(f"{name} {facts.packages[name]}" for name in REQUIRED))


def _backends(facts: Facts) -> Iterator[Finding]:
    mlx, torch = facts.packages["mlx"], facts.packages["torch"]
    mac = facts.system == "Darwin"
    if mlx is None and torch is None:
        yield Finding("fail", "backend", "neither mlx nor torch is installed", "pip install 'mlxserve[torch]'")
        return
    if facts.mlx_failure is not None:
        remedy = "pip install --upgrade --force-reinstall mlx, or serve with --backend torch"
        yield Finding("fail" if mac or torch is None else "warn", "MLX", f"{mlx}: {facts.mlx_failure}", remedy)
    elif mlx is not None and facts.gpu is not None:
        limit = "" if facts.working_set is None else f", may use {facts.working_set / GIB:.1f} GiB"
        yield Finding("ok", "MLX", f"{mlx} on {facts.gpu}{limit}")
    elif mac and torch is None:
        remedy = "run outside of virtual machines without a GPU, or install torch: pip install 'mlxserve[torch]'"
        yield Finding("fail", "MLX", f"{mlx or 'not installed'}, without Metal", remedy)
    elif mlx is not None:
        yield Finding("note", "MLX", f"{mlx}, without Metal: its CPU device is for tests")
    if torch is None:
        return
    if torch.partition("+")[0] == TORCH:
        yield Finding("ok", "torch", torch)
    else:
        yield Finding("warn", "torch", f"{torch}, made for {TORCH}", f"pip install torch=={TORCH}")
    if facts.gpu is None or not mac:  # else torch is only what was asked for by name
        yield _operators(facts)


def _operators(facts: Facts) -> Finding:
    """The torch backend's, which ``serve`` builds at its first start."""
    if facts.operators_failure is None:
        return Finding("ok", "C++ operators", f"can be built with {facts.compiler}")
    detail = (
        f"{facts.operators_failure}; the torch backend falls back to float32: 4-bit weights then take about 6 times "
        "the memory, and answers come much more slowly"
    )
    if facts.compiler is None:
        remedy = "install a C++ compiler: apt install g++, dnf install gcc-c++, or xcode-select --install on a Mac"
    else:
        remedy = "update the compiler (it must know C++20 and this CPU), or serve on a CPU that has what is missing"
    return Finding("warn", "C++ operators", detail, remedy)


def _memory(facts: Facts) -> Finding:
    detail = f"{facts.free_memory / GIB:.1f} of {facts.memory / GIB:.1f} GiB free"
    if facts.container_limit is not None and facts.container_limit < facts.memory:
        detail += f", this container may use {facts.container_limit / GIB:.1f}"
    if facts.free_memory < LEAST_MEMORY:
        return Finding("warn", "memory", detail, "close programs, or take a smaller model (`mlxserve plan` tells)")
    return Finding("ok", "memory", detail)


def _wired(facts: Facts) -> Finding:
    assert facts.wired_limit is not None
    if facts.wired_limit == 0:
        return Finding("ok", "wired limit", "macOS decides")
    detail = f"{facts.wired_limit / GIB:.1f} of {facts.memory / GIB:.1f} GiB"
    if facts.wired_limit > MOST_WIRED * facts.memory:
        return Finding("warn", "wired limit", f"{detail} leaves macOS too little", "sudo sysctl iogpu.wired_limit_mb=0")
    return Finding("ok", "wired limit", detail)


def _disk(facts: Facts) -> Finding:
    detail = f"{facts.disk_free / GIB:.1f} GiB free for models in {facts.disk_path}"
    if facts.disk_free < LEAST_DISK:
        return Finding("warn", "disk", detail, "`mlxserve models` lists what could go, `mlxserve rm M` removes it")
    return Finding("ok", "disk", detail)


def _files(facts: Facts) -> Finding:
    if 0 <= facts.open_files < LEAST_FILES:  # negative: no limit
        remedy = f"ulimit -n {LEAST_FILES} before serving to many clients"
        return Finding("warn", "open files", f"at most {facts.open_files}", remedy)
    return Finding("ok", "open files", "no limit" if facts.open_files < 0 else f"at most {facts.open_files}")


def _port(facts: Facts) -> Finding:
    if facts.address_error is None:
        return Finding("ok", "port", f"{facts.address} is free")
    return Finding("warn", "port", f"{facts.address}: {facts.address_error}", "serve with another --port")


def _embedded(facts: Facts) -> Finding:
    if facts.embedded_model:
        return Finding("ok", "small model", "smollm2-135m is installed")
    return Finding("note", "small model", "smollm2-135m is not installed", EMBEDDED_REMEDY)


def _kernels(facts: Facts) -> Iterator[Finding]:
    if facts.gpu is None:
        yield Finding("note", "kernels", "not run: there is no GPU that Metal can use")
    for result in facts.kernels:
        name = f"kernel {result['kernel']}"
        if result["ok"]:
            yield Finding("ok", name, f"as its reference, within {result['error']:.1e}")
        else:
            detail = result["failure"] or f"differs from its reference by {result['error']:.1e}"
            remedy = "update macOS, or report it with the output of `mlxserve doctor`"
            yield Finding("fail", name, detail, remedy)
