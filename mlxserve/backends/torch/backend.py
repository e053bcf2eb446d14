"""Torch on the CPU: the reference backend."""

from __future__ import annotations

from typing import ClassVar

import torch

from mlxserve.backends.base import Backend, Forward, KVPool, Samples
from mlxserve.backends.batch import HostBatch
from mlxserve.backends.memory import free_host_memory
from mlxserve.backends.sampling import SamplePlan
from mlxserve.backends.torch.attention_kinds import KINDS, PagedOps
from mlxserve.backends.torch.batch import TorchBatch, TorchPool
from mlxserve.backends.torch.deterministic import DeterministicOps
from mlxserve.backends.torch.ops import TorchOps
from mlxserve.backends.torch.sampler import sample
from mlxserve.backends.torch.tensors import DTYPES
from mlxserve.backends.torch.tiles import TiledPool
from mlxserve.config import AttentionKind
from mlxserve.formats.tensors import DenseDtype
from mlxserve.models.spec import ModelSpec


class TorchBackend(Backend[torch.Tensor, TorchBatch]):
    name: ClassVar[str] = "torch"

    def __init__(
        self, dtype: DenseDtype, attention: AttentionKind = "auto", *, deterministic: bool = False, note: str = ""
    ) -> None:
        super().__init__(dtype, note)
        kind = "batched" if attention == "auto" else attention
        self._ops = DeterministicOps(DTYPES[dtype]) if deterministic else KINDS[kind](DTYPES[dtype])

    @property
    def ops(self) -> TorchOps:
        return self._ops

    def new_pool(self, spec: ModelSpec, num_blocks: int, block_size: int) -> TorchPool:
        pool = TiledPool if isinstance(self._ops, PagedOps) else TorchPool
        return pool([layer.attention for layer in spec.layers], num_blocks, block_size, DTYPES[self.dtype])

    @torch.inference_mode()
    def forward(
        self,
        decoder: Forward[TorchBatch, torch.Tensor],
        pool: KVPool[torch.Tensor, TorchBatch],
        host: HostBatch,
        late_tokens: torch.Tensor | None,
        busy: bool,
    ) -> torch.Tensor:
        return decoder(pool.batch(host, late_tokens))

    @torch.inference_mode()
    def sample(self, logits: torch.Tensor, plan: SamplePlan) -> Samples[torch.Tensor]:
        return sample(logits, plan)

    def free_memory(self) -> int:
        return free_host_memory()
