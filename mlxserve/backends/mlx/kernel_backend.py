"""The MLX backend with the Metal kernels, on a GPU or simulated on MLX's CPU device."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import mlx.core as mx
import numpy as np

from mlxserve.backends.base import Forward, KVPool, LoadedModel
from mlxserve.backends.batch import HostBatch
from mlxserve.backends.mlx import sampler
from mlxserve.backends.mlx.backend import MlxBackend, on_gpu
from mlxserve.backends.mlx.batch import MlxBatch, MlxPool
from mlxserve.backends.mlx.kernel_ops import KernelOps
from mlxserve.backends.mlx.kernel_pool import KernelPool
from mlxserve.backends.mlx.kernel_source import metal, simulated
from mlxserve.backends.mlx.kernels import MAX_QUERIES, MAX_ROWS, Kernels
from mlxserve.backends.mlx.tensors import DTYPES
from mlxserve.backends.mlx.variants import Variants, load_variants
from mlxserve.config import MetalConfig
from mlxserve.errors import ConfigError
from mlxserve.formats.tensors import DenseDtype, TensorSource
from mlxserve.models.spec import ModelSpec

GIB = 2**30
CACHE_LIMIT = 2 * GIB  # freed memory that MLX keeps for itself: a step's activations come back every step


def make_backend(dtype: DenseDtype, config: MetalConfig) -> MlxBackend:
    """Raises ConfigError for kernels on a machine without a GPU, and for a simulator that is not there."""
    if on_gpu():
        mx.set_cache_limit(CACHE_LIMIT)
    if config.wired_limit is not None:
        _wire(config.wired_limit)
    match config.kernels:
        case "sim":
            # MLX's CPU device: what the simulator writes is the process's own memory.
            mx.set_default_device(mx.Device(mx.cpu))
            return KernelBackend(dtype, Kernels(simulated()), load_variants(config.variants), config)
        case "on" if not on_gpu():
            raise ConfigError("MLXSERVE_KERNELS", "on", "MLX finds no GPU here; sim runs the kernels without one")
        case "on" | "auto" if on_gpu():
            return KernelBackend(dtype, Kernels(metal), load_variants(config.variants), config)
        case _:
            return MlxBackend(dtype)


def _wire(limit: float) -> None:
    if not on_gpu():
        raise ConfigError("--wired-limit", limit, "MLX finds no GPU here")
    most = int(mx.device_info()["max_recommended_working_set_size"])
    if limit * GIB > most:
        raise ConfigError("--wired-limit", limit, f"must be at most the {most / GIB:.1f} GiB that Metal recommends")
    mx.set_wired_limit(int(limit * GIB))


class KernelBackend(MlxBackend):
    def __init__(self, dtype: DenseDtype, kernels: Kernels, variants: Variants, config: MetalConfig) -> None:
        super().__init__(dtype)
        self.note = "Metal kernels" + (", simulated" if config.kernels == "sim" else "")
        self._variants = variants
        self._bridged = False
        self._in_place = config.kv_write == "inplace"
        self._ops = KernelOps(DTYPES[dtype], kernels, variants, in_place=self._in_place)

    def bridge(
        self,
        config: Mapping[str, object],
        source: TensorSource,
        max_model_len: int | None,
        progress: Callable[[int, int], None] | None,
    ) -> LoadedModel[mx.array, MlxBatch] | None:
        loaded = super().bridge(config, source, max_model_len, progress)
        self._bridged = loaded is not None
        return loaded

    def new_pool(self, spec: ModelSpec, num_blocks: int, block_size: int) -> MlxPool:
        if self._bridged:  # another library's attention reads the pages, never a kernel
            return super().new_pool(spec, num_blocks, block_size)
        return KernelPool(spec, num_blocks, block_size, DTYPES[self.dtype], self._variants, in_place=self._in_place)

    def warm_up(self, decoder: Forward[MlxBatch, mx.array], pool: KVPool[mx.array, MlxBatch]) -> None:
        """Compiles every variant: each number of rows that products are made for, each length of query that attention
        is, contexts whole and split, and the sampler's noise."""
        assert isinstance(pool, KernelPool)
        for rows in (2**i for i in range(MAX_ROWS.bit_length())):
            self._step(decoder, pool, sequences=rows, queries=1, context=1)
        for queries in (1, MAX_QUERIES):
            self._step(decoder, pool, sequences=1, queries=queries, context=MAX_QUERIES)
            logits = self._step(decoder, pool, sequences=1, queries=queries, context=1024)
        sampler.warm_up(logits.shape[-1])

    def _step(
        self,
        decoder: Forward[MlxBatch, mx.array],
        pool: MlxPool,
        *,
        sequences: int,
        queries: int,
        context: int,
    ) -> mx.array:
        """All in block 0: what is written there is overwritten before a sequence reads it."""
        tokens = sequences * queries
        positions = np.tile(np.arange(context - queries, context), sequences)
        none = np.zeros(0, np.int64)
        host = HostBatch(
            block_size=pool.block_size,
            tokens=np.zeros(tokens, np.int64),
            positions=positions,
            blocks=np.zeros(tokens, np.int64),
            offsets=positions % pool.block_size,
            query_starts=np.arange(0, tokens + 1, queries),
            context_lens=np.full(sequences, context),
            block_tables=tuple(np.zeros(-(-context // pool.block_size), np.int64) for _ in range(sequences)),
            late_at=none,
            late_rows=none,
            copy_sources=none,
            copy_targets=none,
            logit_rows=np.arange(tokens),
            deterministic=False,
        )
        logits = decoder(pool.batch(host, None))
        mx.eval(logits)
        return logits
