"""Arithmetic on host tensors: packing of small integers in MLX's layout, and the plain meaning of a tensor.

Knows nothing of files or models.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mlxserve.formats.tensors import DenseTensor, HostTensor


def pack(values: NDArray[np.uint8], bits: int) -> NDArray[np.uint32]:
    """Packs [..., K] integers below 2**bits into [..., K * bits / 32] words; K * bits is a multiple of 32.

    Element k takes bits [k * bits, (k + 1) * bits) of the row's little-endian bit string.
    """
    *lead, width = values.shape
    assert width * bits % 32 == 0
    if bits == 8:
        return np.ascontiguousarray(values).view("<u4")
    if bits in (2, 4):
        per_byte = 8 // bits
        parts = values.reshape(*lead, width // per_byte, per_byte)
        packed = parts[..., 0].copy()
        for i in range(1, per_byte):
            packed |= parts[..., i] << np.uint8(i * bits)
        return packed.view("<u4")
    # Eight values lie in a word of 64 bits: pairs, quartets and all of them move together, into its first bytes.
    words = np.ascontiguousarray(values).view("<u8").copy()
    for taken in (1, 2, 4):
        spare = np.uint64(taken * (8 - bits))
        low = np.uint64(_mask(taken * 8))
        words = words & low | (words & ~low) >> spare
    return (
        np.ascontiguousarray(words.view(np.uint8).reshape(*lead, width // 8, 8)[..., :bits])
        .reshape(*lead, -1)
        .view("<u4")
    )


def _mask(bits: int) -> int:
    """The lower half of each 2 * ``bits`` bits of 64."""
    return sum((1 << bits) - 1 << at for at in range(0, 64, 2 * bits))


def unpack(packed: NDArray[np.uint32], bits: int) -> NDArray[np.uint8]:
    """The inverse of ``pack``: [..., W] words to [..., W * 32 / bits] integers."""
    raw = np.ascontiguousarray(packed).view(np.uint8)
    *lead, width = raw.shape
    if bits == 8:
        return raw
    if bits in (2, 4):
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        return ((raw[..., None] >> shifts) & np.uint8(2**bits - 1)).reshape(*lead, width * 8 // bits)
    planes = np.unpackbits(raw, axis=-1, bitorder="little").reshape(*lead, width * 8 // bits, bits)
    return np.packbits(planes, axis=-1, bitorder="little")[..., 0]


def to_float32(tensor: DenseTensor) -> NDArray[np.float32]:
    """Exact: every supported dtype is a subset of float32."""
    if tensor.dtype == "bfloat16":
        return (tensor.data.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return tensor.data.astype(np.float32, copy=False)


def to_bfloat16(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of the nearest bfloat16, ties to even. Values are finite."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def dequantize(tensor: HostTensor) -> NDArray[np.float32]:
    """The tensor's values; for a quantised one scale * q + bias, each operation rounded in float32."""
    if isinstance(tensor, DenseTensor):
        return to_float32(tensor)
    scales, biases = to_float32(tensor.scales)[..., None], to_float32(tensor.biases)[..., None]
    out = unpack(tensor.packed, tensor.bits).astype(np.float32).reshape(*scales.shape[:-1], tensor.group_size)
    out *= scales
    out += biases
    return out.reshape(tensor.shape)
