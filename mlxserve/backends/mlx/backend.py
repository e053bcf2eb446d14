"""MLX: Metal on Apple Silicon, MLX's own CPU device elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar

import mlx.core as mx

from mlxserve.backends.base import Backend, Forward, KVPool, LoadedModel
from mlxserve.backends.batch import HostBatch
from mlxserve.backends.memory import free_host_memory
from mlxserve.backends.mlx.batch import MlxBatch, MlxPool
from mlxserve.backends.mlx.bridge import load_bridge
from mlxserve.backends.mlx.ops import MlxOps
from mlxserve.backends.mlx.sampler import MlxSamples
from mlxserve.backends.mlx.tensors import DTYPES
from mlxserve.backends.sampling import SamplePlan
from mlxserve.formats.tensors import DenseDtype, TensorSource
from mlxserve.models.spec import ModelSpec


def on_gpu() -> bool:
    return bool(mx.metal.is_available())


class MlxBackend(Backend[mx.array, MlxBatch]):
    name: ClassVar[str] = "mlx"

    def __init__(self, dtype: DenseDtype) -> None:
        super().__init__(dtype)
        self._ops = MlxOps(DTYPES[dtype])

    @property
    def ops(self) -> MlxOps:
        return self._ops

    def new_pool(self, spec: ModelSpec, num_blocks: int, block_size: int) -> MlxPool:
        return MlxPool(spec, num_blocks, block_size, DTYPES[self.dtype])

    def forward(
        self,
        decoder: Forward[MlxBatch, mx.array],
        pool: KVPool[mx.array, MlxBatch],
        host: HostBatch,
        late_tokens: mx.array | None,
        busy: bool,
    ) -> mx.array:
        logits = decoder(pool.batch(host, late_tokens))
        if not busy:  # else the pool would be copied, not written; sampling begins the pass
            mx.async_eval(logits)
        return logits

    def sample(self, logits: mx.array, plan: SamplePlan) -> MlxSamples:
        return MlxSamples(logits, plan)

    def bridge(
        self,
        config: Mapping[str, object],
        source: TensorSource,
        max_model_len: int | None,
        progress: Callable[[int, int], None] | None,
    ) -> LoadedModel[mx.array, MlxBatch] | None:
        return load_bridge(config, source, DTYPES[self.dtype], max_model_len, progress)

    def free_memory(self) -> int:
        if not on_gpu():
            return free_host_memory()
        limit = int(mx.device_info()["max_recommended_working_set_size"])
        return max(limit - mx.get_active_memory(), 0)
