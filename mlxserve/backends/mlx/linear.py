"""Matrix products in MLX: dense, affine-quantised, and several of different kinds side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import mlx.core as mx

from mlxserve.backends.mlx.tensors import to_mlx
from mlxserve.errors import CheckpointError
from mlxserve.formats.tensors import AffineTensor, DenseTensor, HostTensor
from mlxserve.models.ops import Experts, Linear


@dataclass(frozen=True, slots=True)
class Dense:
    """[..., N, K]"""

    weight: mx.array

    def multiply(self, x: mx.array) -> mx.array:
        return x @ self.weight.swapaxes(-1, -2)

    def rows(self, ids: mx.array) -> mx.array:
        return self.weight[ids]

    def gather(self, x: mx.array, ids: mx.array) -> mx.array:
        """x [T, ..., 1, K] with the matrices ``ids`` [T, k] -> [T, k, 1, N]"""
        return mx.gather_mm(x, self.weight.swapaxes(-1, -2), rhs_indices=ids)


@dataclass(frozen=True, slots=True)
class Affine:
    """Packed [..., N, K * bits / 32]; scales and biases [..., N, K / group_size] in the compute dtype."""

    packed: mx.array
    scales: mx.array
    biases: mx.array
    group_size: int
    bits: int

    def multiply(self, x: mx.array) -> mx.array:
        return mx.quantized_matmul(
            x, self.packed, self.scales, self.biases, transpose=True, group_size=self.group_size, bits=self.bits
        )

    def rows(self, ids: mx.array) -> mx.array:
        return mx.dequantize(
            self.packed[ids], self.scales[ids], self.biases[ids], group_size=self.group_size, bits=self.bits
        )

    def gather(self, x: mx.array, ids: mx.array) -> mx.array:
        return mx.gather_qmm(
            x,
            self.packed,
            self.scales,
            self.biases,
            rhs_indices=ids,
            transpose=True,
            group_size=self.group_size,
            bits=self.bits,
        )


Matrix = Dense | Affine


@dataclass(frozen=True, slots=True)
class MlxLinear(Linear):
    """Outputs of ``matrices`` one after the other, plus ``bias`` [N]. There are several only where a checkpoint
    quantises parts of one product differently."""

    matrices: tuple[Matrix, ...]
    bias: mx.array | None

    def __call__(self, x: mx.array) -> mx.array:
        parts = [m.multiply(x) for m in self.matrices]
        y = parts[0] if len(parts) == 1 else mx.concatenate(parts, axis=-1)
        return y if self.bias is None else y + self.bias


@dataclass(frozen=True, slots=True)
class MlxExperts(Experts):
    """[E, I, H], [E, I, H], [E, H, I]"""

    gate: Matrix
    up: Matrix
    down: Matrix


def join(tensors: Sequence[HostTensor], dtype: mx.Dtype) -> tuple[Matrix, ...]:
    """As few matrices as hold all the rows of ``tensors`` in order."""
    return tuple(_concatenate(list(run), dtype) for _, run in groupby(tensors, _kind))


def stack(tensors: Sequence[HostTensor], dtype: mx.Dtype) -> Matrix:
    """[N, K] each -> [E, N, K]. Raises CheckpointError when they are not all quantised alike."""
    joined = join(tensors, dtype)
    if len(joined) > 1:
        raise CheckpointError("experts of one layer are quantised to different widths, which is not supported")
    match joined[0]:
        case Dense(weight=weight):
            return Dense(weight.reshape(len(tensors), -1, weight.shape[-1]))
        case Affine(packed=packed, scales=scales, biases=biases) as a:
            packed, scales, biases = (p.reshape(len(tensors), -1, p.shape[-1]) for p in (packed, scales, biases))
            return Affine(packed, scales, biases, a.group_size, a.bits)


def _kind(tensor: HostTensor) -> tuple[int, int] | None:
    return (tensor.bits, tensor.group_size) if isinstance(tensor, AffineTensor) else None


def _concatenate(run: Sequence[HostTensor], dtype: mx.Dtype) -> Matrix:
    if isinstance(run[0], DenseTensor):
        weight = mx.concatenate([to_mlx(t, dtype) for t in run if isinstance(t, DenseTensor)])
        mx.eval(weight)
        return Dense(weight)
    affine = [t for t in run if isinstance(t, AffineTensor)]
    packed = mx.concatenate([mx.array(t.packed) for t in affine])
    scales = mx.concatenate([to_mlx(t.scales, dtype) for t in affine])
    biases = mx.concatenate([to_mlx(t.biases, dtype) for t in affine])
    mx.eval(packed, scales, biases)
    return Affine(packed, scales, biases, affine[0].group_size, affine[0].bits)
