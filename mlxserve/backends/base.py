"""What a backend is: an array library's operators, KV pool and sampler behind one interface.

Every method but ``bytes_per_block`` and ``free_memory`` belongs to the device's own thread: the runner calls them there
and nowhere else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Generic

from mlxserve.backends.batch import HostBatch
from mlxserve.backends.sampling import SamplePlan
from mlxserve.engine.interfaces import Sampled
from mlxserve.formats.tensors import DenseDtype, TensorSource
from mlxserve.models.ops import A, B, Ops
from mlxserve.models.spec import ModelSpec

Forward = Callable[[B], A]  # a decoder

ITEM_SIZE: dict[DenseDtype, int] = {"float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True, slots=True)
class LoadedModel(Generic[A, B]):
    """``decoder`` maps a device batch to logits; ``weight_bytes`` counts the weights as the device keeps them;
    ``library`` names whose forward pass it is, when it is not ours; not ``paged``: what a sequence keeps is that
    library's, outside the pool, and no part of it can be shared or taken up again, so blocks only count tokens."""

    spec: ModelSpec
    decoder: Forward[B, A]
    quantization: str
    weight_bytes: int
    library: str | None = None
    paged: bool = True


class Samples(ABC, Generic[A]):
    """One step's sampling, perhaps still under way."""

    tokens: A  # [R] on the device
    result: Sampled | None = None  # where nothing is left to wait for

    @abstractmethod
    def finish(self) -> Sampled:
        """Waits for the tokens, on the device's thread."""


class KVPool(ABC, Generic[A, B]):
    """K and V pages of every layer. Memory follows the pages that have been used."""

    @abstractmethod
    def batch(self, host: HostBatch, late_tokens: A | None) -> B:
        """The step's metadata on the device; copies the pages that the step asks to copy.

        ``late_tokens`` [R]: what the previous step samples, for ``host.late_rows``.
        """


class Backend(ABC, Generic[A, B]):
    """One array library on one device."""

    name: ClassVar[str]

    def __init__(self, dtype: DenseDtype, note: str = "") -> None:
        """``note``: what a user should know of how the model runs, for the startup plan."""
        self.dtype = dtype
        self.note = note

    @property
    @abstractmethod
    def ops(self) -> Ops[A, B]: ...

    @abstractmethod
    def new_pool(self, spec: ModelSpec, num_blocks: int, block_size: int) -> KVPool[A, B]: ...

    def warm_up(self, decoder: Forward[B, A], pool: KVPool[A, B]) -> None:
        """Whatever the first steps would otherwise wait for. The pool is new, and nothing in it is kept."""

    @abstractmethod
    def forward(
        self, decoder: Forward[B, A], pool: KVPool[A, B], host: HostBatch, late_tokens: A | None, busy: bool
    ) -> A:
        """Logits [R, vocabulary]. ``busy``: the step before may still be computing and reading the pool."""

    @abstractmethod
    def sample(self, logits: A, plan: SamplePlan) -> Samples[A]:
        """Starts sampling, and the forward pass if that was left."""

    def bridge(
        self,
        config: Mapping[str, object],
        source: TensorSource,
        max_model_len: int | None,
        progress: Callable[[int, int], None] | None,
    ) -> LoadedModel[A, B] | None:
        """A model of an architecture that ``models/`` does not have, with another library's forward pass; None where
        there is none. Raises as ``load_model``."""
        return None

    @abstractmethod
    def free_memory(self) -> int:
        """Bytes that weights and pages can still take."""

    def bytes_per_block(self, spec: ModelSpec, block_size: int) -> int:
        """K and V of ``block_size`` tokens in every layer."""
        widths = sum(2 * layer.attention.kv_width for layer in spec.layers)
        return widths * block_size * ITEM_SIZE[self.dtype]
