"""Finds the backend to run on, importing no other."""

from __future__ import annotations

import importlib.util
import platform
import sys
from typing import Any

from mlxserve.backends.base import Backend
from mlxserve.config import AttentionKind, BackendName, DtypeName, MetalConfig
from mlxserve.errors import ConfigError
from mlxserve.formats.tensors import DenseDtype

# What to install where a backend's library is missing.
REMEDIES = {"mlx": "mlxserve[mlx]", "torch": "mlxserve[torch]"}


def get_backend(
    name: BackendName,
    dtype: DtypeName,
    checkpoint_dtype: DenseDtype = "float32",
    *,
    attention: AttentionKind = "auto",
    deterministic: bool = False,
    metal: MetalConfig | None = None,
) -> Backend[Any, Any]:
    """``auto`` is mlx on Apple Silicon, else torch. dtype ``auto`` is float32 on CPUs, the checkpoint's own on Metal.

    Raises ConfigError when the backend's library is not installed, with the remedy, and for ``deterministic`` or a
    chosen ``attention`` on mlx.
    """
    if name == "auto":
        name = "mlx" if sys.platform == "darwin" and platform.machine() == "arm64" else "torch"
    if importlib.util.find_spec(name) is None:
        raise ConfigError("--backend", name, f"{name} is not installed: pip install '{REMEDIES[name]}'")
    if name == "torch":
        from mlxserve.backends.torch.backend import TorchBackend

        return TorchBackend("float32" if dtype == "auto" else dtype, attention, deterministic=deterministic)
    if attention != "auto":
        raise ConfigError("--attention-backend", attention, "mlx chooses its own: add --backend torch")
    if deterministic:
        raise ConfigError("--deterministic", True, "only the torch backend promises equal bits: add --backend torch")
    from mlxserve.backends.mlx.backend import on_gpu
    from mlxserve.backends.mlx.kernel_backend import make_backend

    metal = metal or MetalConfig()
    floats = checkpoint_dtype if on_gpu() and metal.kernels != "sim" else "float32"
    return make_backend(floats if dtype == "auto" else dtype, metal)
