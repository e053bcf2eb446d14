"""Finds the backend to run on, importing no other."""

from __future__ import annotations

import importlib.util
import platform
import sys
from collections.abc import Callable
from typing import Any

from mlxserve.backends.base import Backend
from mlxserve.config import AttentionKind, BackendName, CpuWeights, DtypeName, MetalConfig, cache_directory
from mlxserve.errors import ConfigError
from mlxserve.formats.tensors import DenseDtype
from mlxserve.models.spec import ModelSpec

# What to install where a backend's library is missing.
REMEDIES = {"mlx": "mlxserve[mlx]", "torch": "mlxserve[torch]"}


def get_backend(
    name: BackendName,
    dtype: DtypeName,
    checkpoint_dtype: DenseDtype = "float32",
    *,
    attention: AttentionKind = "auto",
    deterministic: bool = False,
    cpu_weights: CpuWeights = "auto",
    spec: Callable[[], ModelSpec] | None = None,
    metal: MetalConfig | None = None,
    notify: Callable[[str], None] | None = None,
) -> Backend[Any, Any]:
    """``auto`` is mlx on Apple Silicon, else torch. dtype ``auto`` is float32 on CPUs, the checkpoint's own on Metal.

    ``spec`` says what model it is for: without it, torch never uses the C++ operators. ``notify`` is told, in words for
    the user, what takes long at a first start.

    Raises ConfigError when the backend's library is not installed, with the remedy, for ``deterministic`` or a chosen
    ``attention`` or ``cpu_weights`` on mlx, and for quantised ``cpu_weights`` that cannot be had.
    """
    if name == "auto":
        name = "mlx" if sys.platform == "darwin" and platform.machine() == "arm64" else "torch"
    if importlib.util.find_spec(name) is None:
        raise ConfigError("--backend", name, f"{name} is not installed: pip install '{REMEDIES[name]}'")
    if name == "torch":
        return _torch_backend(
            "float32" if dtype == "auto" else dtype, attention, deterministic, cpu_weights, spec, notify
        )
    if attention != "auto":
        raise ConfigError("--attention-backend", attention, "mlx chooses its own: add --backend torch")
    if cpu_weights != "auto":
        raise ConfigError("--cpu-weights", cpu_weights, "mlx keeps weights its own way: add --backend torch")
    if deterministic:
        raise ConfigError("--deterministic", True, "only the torch backend promises equal bits: add --backend torch")
    from mlxserve.backends.mlx.backend import on_gpu
    from mlxserve.backends.mlx.kernel_backend import make_backend

    metal = metal or MetalConfig()
    floats = checkpoint_dtype if on_gpu() and metal.kernels != "sim" else "float32"
    return make_backend(floats if dtype == "auto" else dtype, metal)


def _torch_backend(
    dtype: DenseDtype,
    attention: AttentionKind,
    deterministic: bool,
    cpu_weights: CpuWeights,
    spec: Callable[[], ModelSpec] | None,
    notify: Callable[[str], None] | None,
) -> Backend[Any, Any]:
    """The C++ operators where they can run (they are deterministic by nature), else torch's own."""
    from mlxserve.backends.torch.backend import TorchBackend

    note = ""
    if cpu_weights != "float32" and spec is not None:
        from mlxserve.backends.torch.native.select import Unavailable, select

        try:
            if dtype != "float32" or attention != "auto":
                raise Unavailable("the C++ operators need --dtype float32 and --attention-backend auto")
            return select(cpu_weights, spec(), cache_directory(), notify)
        except Unavailable as error:
            if cpu_weights != "auto":
                raise ConfigError("--cpu-weights", cpu_weights, str(error)) from error
            note = f"{dtype} weights ({error})"
    return TorchBackend(dtype, attention, deterministic=deterministic, note=note)
