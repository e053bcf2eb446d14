"""Torch's backend with the forward pass in C++: quantised weights stay quantised."""

from __future__ import annotations

from typing import ClassVar

import torch

from mlxserve.backends.base import Backend, Forward, KVPool
from mlxserve.backends.batch import HostBatch
from mlxserve.backends.memory import free_host_memory
from mlxserve.backends.sampling import SamplePlan
from mlxserve.backends.torch.native.library import Library
from mlxserve.backends.torch.native.ops import NativeOps
from mlxserve.backends.torch.native.pool import NativeBatch, NativePool
from mlxserve.backends.torch.native.program import ACTIVATIONS, Program
from mlxserve.backends.torch.native.weights import Form
from mlxserve.backends.torch.sampler import TorchSamples, sample
from mlxserve.models.spec import AttentionSpec, MlpSpec, ModelSpec, MoeSpec

MAX_HEAD_DIM = 256
LANES = 16


class NativeBackend(Backend[torch.Tensor, NativeBatch]):
    """Runs the models that ``covers`` names, in float32. A token's bits depend on its own sequence only."""

    name: ClassVar[str] = "torch"

    def __init__(self, library: Library, form: Form, note: str = "") -> None:
        """``note``: how the weights are kept, for the startup plan."""
        super().__init__("float32", note)
        self._library = library
        self._tracer = NativeOps(library, form)
        self._program: Program | None = None

    @property
    def ops(self) -> NativeOps:
        return self._tracer

    def new_pool(self, spec: ModelSpec, num_blocks: int, block_size: int) -> NativePool:
        return NativePool(spec, num_blocks, block_size)

    @torch.inference_mode()
    def forward(
        self,
        decoder: Forward[NativeBatch, torch.Tensor],
        pool: KVPool[torch.Tensor, NativeBatch],
        host: HostBatch,
        late_tokens: torch.Tensor | None,
        busy: bool,
    ) -> torch.Tensor:
        assert isinstance(pool, NativePool)
        if self._program is None or self._program.pool is not pool:
            self._program = Program(self._library, self._tracer.trace(decoder), pool)
        return self._program.run(pool.batch(host, late_tokens))

    @torch.inference_mode()
    def sample(self, logits: torch.Tensor, plan: SamplePlan) -> TorchSamples:
        return sample(logits, plan)

    def free_memory(self) -> int:
        return free_host_memory()


def covers(spec: ModelSpec) -> bool:
    """Whether ``kernels/cpu`` has everything that the model needs."""
    return all(_covers_attention(layer.attention) and _covers_mlp(layer.mlp) for layer in spec.layers)


def _covers_attention(a: AttentionSpec) -> bool:
    return a.head_dim % LANES == 0 and a.head_dim <= MAX_HEAD_DIM and a.heads % a.kv_heads == 0


def _covers_mlp(mlp: MlpSpec | MoeSpec) -> bool:
    return isinstance(mlp, MlpSpec) and mlp.act in ACTIVATIONS and mlp.width % LANES == 0
