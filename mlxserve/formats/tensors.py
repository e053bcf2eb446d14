"""The host form of a weight: what every file format is read into and every backend builds its own arrays from.

Knows nothing of files or models.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

DenseDtype = Literal["float32", "float16", "bfloat16"]


@dataclass(frozen=True, slots=True)
class DenseTensor:
    """``data`` has the tensor's shape; for bfloat16 it holds the raw bits as uint16."""

    data: NDArray[np.generic]
    dtype: DenseDtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self.data.shape


@dataclass(frozen=True, slots=True)
class AffineTensor:
    """Quantised rows: w[n, k] = scales[n, k // group_size] * q[n, k] + biases[n, k // group_size].

    ``packed`` is MLX's layout: uint32 words, element k of a row in bits [k * bits, (k + 1) * bits) of the row's
    little-endian bit string. Shapes: packed [..., N, K * bits / 32]; scales and biases [..., N, K / group_size].
    """

    packed: NDArray[np.uint32]
    scales: DenseTensor
    biases: DenseTensor
    bits: int
    group_size: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.packed.shape[:-1], self.packed.shape[-1] * 32 // self.bits)


HostTensor = DenseTensor | AffineTensor


def dense_outline(shape: tuple[int, ...], dtype: DenseDtype) -> DenseTensor:
    """A DenseTensor of zeros that take no memory."""
    return DenseTensor(np.broadcast_to(np.zeros((), _NUMPY[dtype]), shape), dtype)


def affine_outline(
    shape: tuple[int, ...], bits: int, group_size: int, scales: DenseDtype, biases: DenseDtype
) -> AffineTensor:
    """An AffineTensor of zeros that take no memory; ``shape`` is the logical one."""
    *lead, width = shape
    groups = (*lead, width // group_size)
    return AffineTensor(
        packed=np.broadcast_to(np.zeros((), np.uint32), (*lead, width * bits // 32)),
        scales=dense_outline(groups, scales),
        biases=dense_outline(groups, biases),
        bits=bits,
        group_size=group_size,
    )


_NUMPY: dict[DenseDtype, type[np.generic]] = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}


class TensorSource(Protocol):
    """The tensors of one checkpoint, by Hugging Face name. Reading may touch the disk; nothing is kept."""

    @property
    def quantization(self) -> str:
        """A word for people: "none", "q4_1", "int4"."""
        ...

    def names(self) -> Collection[str]: ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Logical shape, without reading the data."""
        ...

    def outline(self, name: str) -> HostTensor:
        """The tensor with its types and shapes but no data: arrays of zeros that take no memory."""
        ...

    def read(self, name: str) -> HostTensor:
        """Raises CheckpointError naming the tensor when it is missing or its bytes are not all there."""
        ...
