"""Frozen settings, validated once. The only module that reads the environment.

Knows flags, values and their limits; loads nothing.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast, get_args

from mlxserve.errors import ConfigError

DEFAULT_MODEL = "smollm2-135m"
DEFAULT_MAX_MODEL_LEN = 8192

BackendName = Literal["auto", "mlx", "torch"]
DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
SchedulePolicy = Literal["fifo", "priority"]
KernelsName = Literal["auto", "on", "off", "sim"]
KVWrite = Literal["scatter", "inplace"]
AttentionKind = Literal["auto", "paged", "batched", "reference"]
CpuWeights = Literal["auto", "int4", "int8", "float32"]
Quantization = Literal["none", "int8", "int4"]
GROUP_SIZES = (32, 64, 128)


def model_from_environment() -> str:
    """``MLXSERVE_MODEL``, or the embedded model's name."""
    return os.environ.get("MLXSERVE_MODEL") or DEFAULT_MODEL


def kernels_from_environment() -> KernelsName:
    """``MLXSERVE_KERNELS``, or auto. Raises ConfigError when it is none of the names."""
    name = os.environ.get("MLXSERVE_KERNELS") or "auto"
    if name not in get_args(KernelsName):
        raise ConfigError("MLXSERVE_KERNELS", name, f"must be one of {', '.join(get_args(KernelsName))}")
    return cast(KernelsName, name)


def cache_directory() -> Path:
    """Where what can be made again is kept: ``mlxserve`` below ``XDG_CACHE_HOME``, or below ``~/.cache``."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "mlxserve"


def variants_from_environment() -> str | None:
    """``MLXSERVE_KERNEL_TABLE``: the file that ``mlxserve bench kernels --write`` made; None: the table built in."""
    return os.environ.get("MLXSERVE_KERNEL_TABLE") or None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetalConfig:
    """How the MLX backend uses the Metal kernels and the GPU's memory."""

    # auto: on a GPU; on: an error without one; off: MLX's own operators; sim: simulated, on MLX's CPU device
    kernels: KernelsName = field(default_factory=kernels_from_environment)
    variants: str | None = field(default_factory=variants_from_environment)
    kv_write: KVWrite = "scatter"  # inplace: K and V written through an input, one launch instead of three
    wired_limit: float | None = None  # GiB that macOS may not move; None: the system decides

    def __post_init__(self) -> None:
        if self.wired_limit is not None and not self.wired_limit > 0:
            raise ConfigError("--wired-limit", self.wired_limit, "must be above 0")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Which model runs, and on what."""

    model: str = DEFAULT_MODEL  # a known name, a directory in Hugging Face form, or a .gguf file
    backend: BackendName = "auto"  # auto: mlx on Apple Silicon, else torch
    dtype: DtypeName = "auto"  # auto: float32 on CPUs, the checkpoint's own on Metal
    metal: MetalConfig = field(default_factory=MetalConfig)
    attention: AttentionKind = "auto"  # which implementation, on the torch backend
    # On the torch backend, how the C++ operators keep 4-bit codes; auto: as measured; float32: exact, without them
    cpu_weights: CpuWeights = "auto"
    quant: Quantization = "none"  # quantise the weights while loading
    group_size: int = 64  # columns that share a scale, with quant

    def __post_init__(self) -> None:
        if self.cpu_weights not in get_args(CpuWeights):
            names = ", ".join(get_args(CpuWeights))
            raise ConfigError("--cpu-weights", self.cpu_weights, f"must be one of {names}")
        if self.quant not in get_args(Quantization):
            raise ConfigError("--quant", self.quant, f"must be one of {', '.join(get_args(Quantization))}")
        if self.group_size not in GROUP_SIZES:
            raise ConfigError("--group-size", self.group_size, f"must be one of {', '.join(map(str, GROUP_SIZES))}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """How the engine batches and how much memory its KV pool may take. Lengths are in tokens."""

    max_model_len: int | None = None  # None: the model's own, at most DEFAULT_MAX_MODEL_LEN
    max_num_seqs: int = 16
    max_num_batched_tokens: int = 2048
    prefill_chunk: int = 512
    block_size: int = 16
    kv_blocks: int | None = None  # None: from memory_utilization
    memory_utilization: float = 0.6  # share of the memory free after the weights
    prefix_caching: bool = True
    schedule_policy: SchedulePolicy = "fifo"
    deterministic: bool = False

    def __post_init__(self) -> None:
        for flag, value in (
            ("--max-num-seqs", self.max_num_seqs),
            ("--max-num-batched-tokens", self.max_num_batched_tokens),
            ("--prefill-chunk", self.prefill_chunk),
            ("--block-size", self.block_size),
            ("--max-model-len", self.max_model_len),
            ("--kv-blocks", self.kv_blocks),
        ):
            if value is not None and value < 1:
                raise ConfigError(flag, value, "must be at least 1")
        if self.block_size & (self.block_size - 1):
            raise ConfigError("--block-size", self.block_size, "must be a power of two")
        if not 0 < self.memory_utilization <= 1:
            raise ConfigError("--memory-utilization", self.memory_utilization, "must be above 0 and at most 1")
        least = self.max_num_seqs + self.prefill_chunk
        if self.max_num_batched_tokens < least:
            raise ConfigError(
                "--max-num-batched-tokens",
                self.max_num_batched_tokens,
                f"must be at least {least}: a decode step of --max-num-seqs {self.max_num_seqs} "
                f"and a prefill chunk of {self.prefill_chunk}",
            )
        if self.kv_blocks is not None:
            self.check_pool(self.kv_blocks)

    def check_pool(self, num_blocks: int) -> None:
        """Raises ConfigError unless the pool holds two blocks a sequence."""
        if num_blocks < 2 * self.max_num_seqs:
            raise ConfigError(
                "--kv-blocks",
                num_blocks,
                f"must be at least {2 * self.max_num_seqs}: two blocks for each of --max-num-seqs {self.max_num_seqs}",
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """Where the HTTP app listens and how it calls its model."""

    host: str = "127.0.0.1"
    port: int = 8000
    served_model_names: tuple[str, ...] = ()  # beside the model's own name

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError("--port", self.port, "must be from 0 to 65535")
        if any(not name for name in self.served_model_names):
            raise ConfigError("--served-model-name", "''", "must not be empty")
