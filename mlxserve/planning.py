"""How much memory a model will take and how fast it can be at best, from its config and headers alone.

No weight is read: tensors are outlines, and each backend says what it would make of them. Knows no command line.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, cast

from mlxserve.backends.base import ITEM_SIZE, Backend
from mlxserve.config import EngineConfig
from mlxserve.formats.checkpoint import Checkpoint
from mlxserve.formats.tensors import AffineTensor, DenseDtype, DenseTensor, HostTensor, TensorSource
from mlxserve.loader import checkpoint_dtype
from mlxserve.models.decoder import Decoder
from mlxserve.models.families import model_spec
from mlxserve.models.ops import Experts, Linear, Ops, WeightMaker
from mlxserve.models.spec import MlpSpec, ModelSpec, MoeSpec
from mlxserve.models.weights import WeightReader

GIB = 2**30

# Private memory of a process beside weights, pool and activations: the libraries, and what the allocator keeps from
# loading. torch: measured on Linux x86-64 (bench.memory); mlx: assumed, because nothing here has run on a Mac.
RUNTIME_BYTES = {"torch": 240 * 2**20, "mlx": 150 * 2**20}


@dataclass(frozen=True, slots=True)
class Weights:
    """Sizes of a model's weights in one form."""

    total: int  # bytes
    per_token: int  # bytes read to decode one token: an embedding gives one row, a mixture its chosen experts
    parameters: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What a model takes in one backend's form."""

    spec: ModelSpec
    backend: str
    dtype: DenseDtype
    weights: Weights
    kv_token_bytes: int
    activation_bytes: int  # of the largest step
    runtime_bytes: int

    def block_bytes(self, engine: EngineConfig) -> int:
        return self.kv_token_bytes * engine.block_size

    def fixed_bytes(self) -> int:
        """All but the pool."""
        return self.weights.total + self.activation_bytes + self.runtime_bytes

    def tokens_per_second(self, bandwidth: float, context: int) -> float:
        """At most, for one sequence: each token reads the weights and its context's K and V from memory once.
        ``bandwidth`` is in bytes/s."""
        return bandwidth / (self.weights.per_token + context * self.kv_token_bytes)


@dataclass(frozen=True, slots=True)
class Fit:
    """What of a model fits some memory; ``blocks`` 0: it does not."""

    blocks: int
    pool_bytes: int
    total_bytes: int
    full_sequences: int  # that can be at the longest context at once


@dataclass(frozen=True, slots=True)
class Chip:
    """Memory bandwidth as Apple states it in its technical specifications, of the largest version, bytes/s."""

    name: str
    bandwidth: float


CHIPS = (
    Chip("M1", 68e9),
    Chip("M2, M3", 100e9),
    Chip("M4", 120e9),
    Chip("M3 Pro", 150e9),
    Chip("M5", 153e9),
    Chip("M1 Pro, M2 Pro", 200e9),
    Chip("M4 Pro", 273e9),
    Chip("M1, M2, M3 Max", 400e9),
    Chip("M4 Max", 546e9),
    Chip("M1 Ultra, M2 Ultra", 800e9),
    Chip("M3 Ultra", 819e9),
)
MAC_MEMORY_GIB = (8, 16, 24, 32, 36, 48, 64, 96, 128)


def gpu_memory(memory_gib: int) -> int:
    """Bytes that macOS lets the GPU use by default: two thirds of up to 32 GiB, three quarters of more (as Metal's
    recommendedMaxWorkingSetSize reports)."""
    return memory_gib * GIB * 2 // 3 if memory_gib <= 32 else memory_gib * GIB * 3 // 4


def footprint(checkpoint: Checkpoint, backend: Backend[Any, Any], engine: EngineConfig) -> Footprint:
    """On a backend of this machine. Raises CheckpointError and ConfigError as loading would."""
    spec = model_spec(checkpoint.config, engine.max_model_len)
    return _footprint(checkpoint.source, spec, backend.ops, backend.name, backend.dtype, engine)


def metal_footprint(checkpoint: Checkpoint, engine: EngineConfig) -> Footprint:
    """On a Mac's GPU, whatever this machine is. Raises as ``footprint``."""
    spec = model_spec(checkpoint.config, engine.max_model_len)
    dtype = checkpoint_dtype(checkpoint.config)
    return _footprint(checkpoint.source, spec, MetalForm(dtype), "mlx", dtype, engine)


def fit(footprint: Footprint, memory: int, engine: EngineConfig) -> Fit:
    """``memory``: bytes for everything. The pool is sized as the runner does it."""
    block_bytes = footprint.block_bytes(engine)
    length = -(-footprint.spec.max_model_len // engine.block_size)  # blocks of a sequence at the longest context
    free = memory - footprint.runtime_bytes - footprint.weights.total
    if engine.kv_blocks is not None:
        blocks = engine.kv_blocks
    else:
        blocks = min(engine.max_num_seqs * length, int(free * engine.memory_utilization) // block_bytes)
    total = footprint.fixed_bytes() + blocks * block_bytes
    if blocks < 2 * engine.max_num_seqs or total > memory:
        return Fit(0, 0, footprint.fixed_bytes(), 0)
    return Fit(blocks, blocks * block_bytes, total, blocks // length)


def _footprint(
    source: TensorSource,
    spec: ModelSpec,
    maker: WeightMaker[Any],
    backend: str,
    dtype: DenseDtype,
    engine: EngineConfig,
) -> Footprint:
    item = ITEM_SIZE[dtype]
    return Footprint(
        spec=spec,
        backend=backend,
        dtype=dtype,
        weights=weigh(source, spec, maker),
        kv_token_bytes=sum(2 * layer.attention.kv_width for layer in spec.layers) * item,
        activation_bytes=activation_bytes(spec, engine, item),
        runtime_bytes=RUNTIME_BYTES[backend],
    )


def activation_bytes(spec: ModelSpec, engine: EngineConfig, item_size: int) -> int:
    """Working memory of the largest step, about: the widest layer's values for a full budget of tokens, one chunk's
    mask over the longest context, and the logits with the sampler's copies of them."""
    tokens = engine.max_num_batched_tokens
    widest = max(
        4 * spec.hidden + layer.attention.q_width + 2 * layer.attention.kv_width + 3 * _mlp_width(layer.mlp)
        for layer in spec.layers
    )
    mask = engine.prefill_chunk * spec.max_model_len
    logits = 3 * engine.max_num_seqs * spec.vocab * 4
    return (tokens * widest + mask) * item_size + logits


def _mlp_width(mlp: MlpSpec | MoeSpec) -> int:
    return mlp.width * mlp.top_k if isinstance(mlp, MoeSpec) else mlp.width


def weigh(source: TensorSource, spec: ModelSpec, maker: WeightMaker[Any]) -> Weights:
    """Goes through a model's weights as loading does, but reads none. Raises CheckpointError as loading would."""
    scale = _Scale(maker)
    reader = WeightReader(_Outlines(source), scale)
    # The decoder asks the reader for its weights and keeps the operators for later: there is no later here.
    Decoder(spec, cast("Ops[Any, Any]", None), reader)
    shares = {m.top_k / m.experts for m in (layer.mlp for layer in spec.layers) if isinstance(m, MoeSpec)}
    idle = scale.expert_bytes * (1 - max(shares, default=1.0))
    return Weights(
        total=reader.weight_bytes,
        per_token=round(reader.weight_bytes - scale.unread_bytes - idle),
        parameters=scale.parameters,
    )


class MetalForm(WeightMaker[None]):
    """What MLX's GPU backend makes of weights: packed as they are, all else in the compute type. It makes none."""

    def __init__(self, dtype: DenseDtype) -> None:
        self._item = ITEM_SIZE[dtype]

    def weight_bytes(self, tensor: HostTensor) -> int:
        match tensor:
            case DenseTensor():
                return math.prod(tensor.shape) * self._item
            case AffineTensor():
                return tensor.packed.nbytes + 2 * math.prod(tensor.scales.shape) * self._item

    def make_linear(self, weights: Sequence[HostTensor], biases: Sequence[HostTensor]) -> Linear:
        return Linear()

    def make_embedding(self, weight: HostTensor, head: bool) -> Linear:
        return Linear()

    def make_vector(self, tensor: HostTensor, offset: float) -> None:
        return None

    def make_experts(self, gate: Sequence[HostTensor], up: Sequence[HostTensor], down: Sequence[HostTensor]) -> Experts:
        return Experts()


class _Scale(MetalForm):
    """Counts instead of making; what a tensor takes is for ``maker`` to say."""

    def __init__(self, maker: WeightMaker[Any]) -> None:
        self._maker = maker
        self.parameters = 0
        self.unread_bytes = 0  # of the total, never read while decoding
        self.expert_bytes = 0

    def weight_bytes(self, tensor: HostTensor) -> int:
        self.parameters += math.prod(tensor.shape)
        return self._maker.weight_bytes(tensor)

    def linear_bytes(self, weights: Sequence[HostTensor]) -> int:
        self.parameters += sum(math.prod(tensor.shape) for tensor in weights)
        return self._maker.linear_bytes(weights)

    def embedding_bytes(self, tensor: HostTensor, head: bool) -> int:
        self.parameters += math.prod(tensor.shape)
        total = self._maker.embedding_bytes(tensor, head)
        self.unread_bytes += total - self._maker.weight_bytes(tensor) if head else total
        return total

    def make_experts(self, gate: Sequence[HostTensor], up: Sequence[HostTensor], down: Sequence[HostTensor]) -> Experts:
        self.expert_bytes += sum(self._maker.weight_bytes(tensor) for tensor in (*gate, *up, *down))
        return Experts()


class _Outlines:
    """A checkpoint whose tensors have no data."""

    def __init__(self, source: TensorSource) -> None:
        self._source = source

    @property
    def quantization(self) -> str:
        return self._source.quantization

    def names(self) -> Collection[str]:
        return self._source.names()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._source.shape(name)

    def outline(self, name: str) -> HostTensor:
        return self._source.outline(name)

    def read(self, name: str) -> HostTensor:
        return self._source.outline(name)
