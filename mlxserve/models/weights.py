"""Strict reading of a checkpoint's tensors: each is read once with its shape checked, and none may be left over.

Knows names, shapes and Ops; knows no files and no array library. Nothing is ever initialised here: what a model needs
and a checkpoint lacks is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Generic

from mlxserve.errors import CheckpointError
from mlxserve.formats.tensors import AffineTensor, DenseTensor, HostTensor, TensorSource
from mlxserve.models.ops import A, Experts, Linear, Norm, WeightMaker
from mlxserve.models.spec import LayerNames, MoeSpec

# Buffers that old exporters saved although config.json says all there is to know about them.
REDUNDANT = ("model.layers.*.self_attn.rotary_emb.inv_freq", "model.rotary_emb.inv_freq")

Progress = Callable[[int, int], None]  # tensors read, tensors in all


class WeightReader(Generic[A]):
    """Hands out a checkpoint's tensors as a backend's weights. Every method raises CheckpointError naming the tensor
    that is missing or has another shape than the config implies."""

    def __init__(self, source: TensorSource, maker: WeightMaker[A], progress: Progress | None = None) -> None:
        self._source = source
        self._maker = maker
        self._progress = progress
        self._names = frozenset(source.names())
        self._taken: set[str] = set()
        self.weight_bytes = 0  # of what has been read, in the backend's form

    def linear(self, names: Sequence[str], rows: Sequence[int], columns: int, bias: bool) -> Linear:
        """The modules ``names`` with ``rows`` outputs each, fused in that order."""
        weights = [self._read(f"{name}.weight", (n, columns)) for name, n in zip(names, rows, strict=True)]
        self.weight_bytes += self._maker.linear_bytes(weights)
        biases = [self._take(f"{name}.bias", (n,)) for name, n in zip(names, rows, strict=True)] if bias else []
        return self._maker.make_linear(weights, biases)

    def embedding(self, name: str, rows: int, columns: int, head: bool) -> Linear:
        """``head``: it is the tied head as well."""
        tensor = self._read(f"{name}.weight", (rows, columns))
        self.weight_bytes += self._maker.embedding_bytes(tensor, head)
        return self._maker.make_embedding(tensor, head)

    def norm(self, name: str, size: int, eps: float, offset: float) -> Norm[A]:
        return Norm(self._maker.make_vector(self._take(f"{name}.weight", (size,)), offset), eps)

    def experts(self, prefix: str, names: LayerNames, moe: MoeSpec, hidden: int) -> Experts:
        """All experts of a layer, whether the checkpoint has a tensor for each or one stacked tensor for all."""
        shapes = ((moe.width, hidden), (moe.width, hidden), (hidden, moe.width))
        stacked = [f"{prefix}{names.stacked_experts}.{part}.weight" for part in names.stacked_parts]
        if stacked[0] in self._names:
            gate, up, down = (
                _unstack(self._take(name, (moe.experts, *shape))) for name, shape in zip(stacked, shapes, strict=True)
            )
        else:
            modules = [prefix + names.experts.format(expert=e) for e in range(moe.experts)]
            gate, up, down = (
                [self._take(f"{module}.{part}.weight", shape) for module in modules]
                for part, shape in zip(names.expert_parts, shapes, strict=True)
            )
        return self._maker.make_experts(gate, up, down)

    def is_same(self, copy: str, original: str) -> bool:
        """Whether the module ``copy`` is absent or has ``original``'s weight, and so need not be read. Some exporters
        write a tied head beside the embedding; one that differs is meant, whatever config.json says."""
        name = f"{copy}.weight"
        if name not in self._names:
            return True
        same = f"{original}.weight" in self._names and _equal(
            self._source.read(name), self._source.read(f"{original}.weight")
        )
        if same:
            self._taken.add(name)
        return same

    def finish(self) -> None:
        """Raises unless every tensor was read or matches one of the patterns REDUNDANT."""
        left = [n for n in sorted(self._names - self._taken) if not any(fnmatchcase(n, p) for p in REDUNDANT)]
        if left:
            more = f" and {len(left) - 3} more" if len(left) > 3 else ""
            raise CheckpointError(
                f"the checkpoint has tensors that this model does not use: {', '.join(left[:3])}{more}"
            )
        if self._progress is not None:
            self._progress(len(self._names), len(self._names))

    def _take(self, name: str, shape: tuple[int, ...]) -> HostTensor:
        tensor = self._read(name, shape)
        self.weight_bytes += self._maker.weight_bytes(tensor)
        return tensor

    def _read(self, name: str, shape: tuple[int, ...]) -> HostTensor:
        assert name not in self._taken, f"{name} is read twice"
        if name not in self._names:
            raise CheckpointError(f"the checkpoint has no tensor {name}, which this model needs")
        found = self._source.shape(name)
        if found != shape:
            raise CheckpointError(f"{name} has the shape {list(found)}, but the config implies {list(shape)}")
        self._taken.add(name)
        if self._progress is not None:
            self._progress(len(self._taken), len(self._names))
        return self._source.read(name)


def _equal(a: HostTensor, b: HostTensor) -> bool:
    """Bit for bit, in the form that they are stored in."""
    match a, b:
        case DenseTensor(), DenseTensor():
            return a.dtype == b.dtype and a.shape == b.shape and bool((a.data == b.data).all())
        case AffineTensor(), AffineTensor():
            if (a.bits, a.group_size, a.shape) != (b.bits, b.group_size, b.shape):
                return False
            return bool((a.packed == b.packed).all()) and _equal(a.scales, b.scales) and _equal(a.biases, b.biases)
        case _:
            return False


def _unstack(tensor: HostTensor) -> list[HostTensor]:
    """[E, N, K] -> E times [N, K]"""
    match tensor:
        case DenseTensor():
            return [DenseTensor(data, tensor.dtype) for data in tensor.data]
        case AffineTensor():
            return [
                AffineTensor(
                    tensor.packed[e],
                    DenseTensor(tensor.scales.data[e], tensor.scales.dtype),
                    DenseTensor(tensor.biases.data[e], tensor.biases.dtype),
                    tensor.bits,
                    tensor.group_size,
                )
                for e in range(tensor.packed.shape[0])
            ]
