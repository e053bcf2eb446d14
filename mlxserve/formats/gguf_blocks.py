"""GGML's block types as host tensors, without loss.

Blocks of 32 weights have one scale d (float16), for some types a minimum m (float16), and the integers q:

    Q4_0  w = d * (q - 8)     bytes: d, 16 x two nibbles
    Q4_1  w = d * q + m       bytes: d, m, 16 x two nibbles
    Q5_0  w = d * (q - 16)    bytes: d, 32 fifth bits, 16 x two nibbles
    Q5_1  w = d * q + m       bytes: d, m, 32 fifth bits, 16 x two nibbles
    Q8_0  w = d * q           bytes: d, 32 x int8

Byte j of the nibbles holds element j in its low half and element j + 16 in its high half. Blocks of 256 are eight
groups of 32, each with a scale s and a minimum t of 6 bits, packed in 12 bytes:

    Q4_K  w = d * s * q - e * t    bytes: d, e, 12 of s and t, 4 x 32 x two nibbles (two groups of 32)
    Q5_K  likewise                 bytes: d, e, 12 of s and t, 32 x eight fifth bits (one a group), nibbles as above

All of these are affine with groups of 32; d * s and e * t are exact in float32. Q2_K, Q3_K and Q6_K have groups of 16,
which no backend multiplies by: their values become float32, by the ``gguf`` package. See the ggml source
(``ggml-quants.c``) or that package (``quants.py``). Knows no names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from mlxserve.errors import CheckpointError
from mlxserve.formats.affine import pack
from mlxserve.formats.gguf import TensorInfo
from mlxserve.formats.tensors import (
    AffineTensor,
    DenseDtype,
    DenseTensor,
    HostTensor,
    affine_outline,
    dense_outline,
)

BLOCK = 32
_Q4_0 = np.dtype([("d", "<f2"), ("q", "<u8", (2,))])
_Q4_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("q", "<u8", (2,))])
_Q5_0 = np.dtype([("d", "<f2"), ("high", "<u4"), ("q", "u1", (16,))])
_Q5_1 = np.dtype([("d", "<f2"), ("m", "<f2"), ("high", "<u4"), ("q", "u1", (16,))])
_Q8_0 = np.dtype([("d", "<f2"), ("q", "<u4", (8,))])
_Q4_K = np.dtype([("d", "<f2"), ("e", "<f2"), ("six", "u1", (3, 4)), ("q", "<u8", (4, 4))])
_Q5_K = np.dtype([("d", "<f2"), ("e", "<f2"), ("six", "u1", (3, 4)), ("high", "u1", (32,)), ("q", "u1", (4, 32))])

Raw = NDArray[np.uint8]
Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Type:
    """``bits`` of a quantised type, ``dtype`` of its scales, or of the values when there are no bits."""

    decode: Callable[[Raw, Shape], HostTensor]
    dtype: DenseDtype
    bits: int | None = None


def _dense(dtype: DenseDtype, stored: str) -> _Type:
    return _Type(lambda raw, shape: DenseTensor(raw.view(stored).reshape(shape), dtype), dtype)


def _expanded(kind: GGMLQuantizationType) -> _Type:
    block_bytes = GGML_QUANT_SIZES[kind][1]

    def values(raw: Raw, shape: Shape) -> DenseTensor:
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is for ``decode`` to report
            return DenseTensor(dequantize(raw.reshape(-1, block_bytes), kind).reshape(shape), "float32")

    return _Type(values, "float32")


def _q4_0(raw: Raw, shape: Shape) -> AffineTensor:
    blocks = raw.view(_Q4_0)
    return _affine(_nibbles(blocks["q"]), *_with_zero(blocks["d"], 8), 4, shape)


def _q4_1(raw: Raw, shape: Shape) -> AffineTensor:
    blocks = raw.view(_Q4_1)
    return _affine(_nibbles(blocks["q"]), blocks["d"].copy(), blocks["m"].copy(), 4, shape)


def _q5_0(raw: Raw, shape: Shape) -> AffineTensor:
    blocks = raw.view(_Q5_0)
    return _affine(_five_bits(blocks["q"], blocks["high"]), *_with_zero(blocks["d"], 16), 5, shape)


def _q5_1(raw: Raw, shape: Shape) -> AffineTensor:
    blocks = raw.view(_Q5_1)
    packed = _five_bits(blocks["q"], blocks["high"])
    return _affine(packed, blocks["d"].copy(), blocks["m"].copy(), 5, shape)


def _q8_0(raw: Raw, shape: Shape) -> AffineTensor:
    blocks = raw.view(_Q8_0)
    packed = blocks["q"] ^ np.uint32(0x80808080)  # int8 q becomes q + 128
    return _affine(packed, *_with_zero(blocks["d"], 128), 8, shape)


def _q4_k(raw: Raw, shape: Shape) -> AffineTensor:
    blocks = raw.view(_Q4_K)
    return _affine(_nibbles(blocks["q"]), *_six_bit_scales(blocks), 4, shape)


def _q5_k(raw: Raw, shape: Shape) -> AffineTensor:
    blocks = raw.view(_Q5_K)
    q = np.stack([blocks["q"] & np.uint8(15), blocks["q"] >> np.uint8(4)], axis=-2).reshape(-1, 8, BLOCK)
    for group in range(8):
        q[:, group] |= (blocks["high"] >> np.uint8(group) & np.uint8(1)) << np.uint8(4)
    return _affine(pack(q, 5), *_six_bit_scales(blocks), 5, shape)


TYPES: dict[GGMLQuantizationType, _Type] = {
    GGMLQuantizationType.F32: _dense("float32", "<f4"),
    GGMLQuantizationType.F16: _dense("float16", "<f2"),
    GGMLQuantizationType.BF16: _dense("bfloat16", "<u2"),
    GGMLQuantizationType.Q4_0: _Type(_q4_0, "float16", 4),
    GGMLQuantizationType.Q4_1: _Type(_q4_1, "float16", 4),
    GGMLQuantizationType.Q5_0: _Type(_q5_0, "float16", 5),
    GGMLQuantizationType.Q5_1: _Type(_q5_1, "float16", 5),
    GGMLQuantizationType.Q8_0: _Type(_q8_0, "float16", 8),
    GGMLQuantizationType.Q4_K: _Type(_q4_k, "float32", 4),
    GGMLQuantizationType.Q5_K: _Type(_q5_k, "float32", 5),
    GGMLQuantizationType.Q2_K: _expanded(GGMLQuantizationType.Q2_K),
    GGMLQuantizationType.Q3_K: _expanded(GGMLQuantizationType.Q3_K),
    GGMLQuantizationType.Q6_K: _expanded(GGMLQuantizationType.Q6_K),
}
EXPANDED = (GGMLQuantizationType.Q2_K, GGMLQuantizationType.Q3_K, GGMLQuantizationType.Q6_K)


def check_type(info: TensorInfo) -> None:
    """Raises CheckpointError naming the tensor and its type if it cannot be decoded."""
    if info.type not in TYPES:
        known = ", ".join(kind.name for kind in TYPES)
        raise CheckpointError(f"the tensor {info.name!r} has the GGML type {info.type.name}; supported are {known}")


def outline(info: TensorInfo) -> HostTensor:
    """What ``decode`` gives, without data; scales of the types with 32 weights a block are taken to fit float16, as
    they do in all but odd files."""
    kind = TYPES[info.type]
    if kind.bits is None:
        return dense_outline(info.shape, kind.dtype)
    return affine_outline(info.shape, kind.bits, BLOCK, kind.dtype, kind.dtype)


def decode(raw: Raw, info: TensorInfo) -> HostTensor:
    """The tensor at ``raw``; floats stay views. Raises CheckpointError on a scale that is not finite."""
    tensor = TYPES[info.type].decode(raw, info.shape)
    match tensor:
        case AffineTensor(scales=scales, biases=biases):
            finite = np.isfinite(scales.data).all() and np.isfinite(biases.data).all()
        case DenseTensor(data=data):
            finite = info.type not in EXPANDED or np.isfinite(data).all()
    if not finite:
        raise CheckpointError(f"corrupt: the tensor {info.name!r} has a block whose scale is not finite")
    return tensor


def _nibbles(words: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """[..., n] words of GGML's nibble pairs, all low halves before all high ones in each n, to words with element k in
    bits [4k, 4k + 4)."""
    halves = np.stack([words, words >> np.uint64(4)], axis=-2)
    halves &= np.uint64(0x0F0F0F0F0F0F0F0F)
    for shift, mask in ((4, 0x00FF00FF00FF00FF), (8, 0x0000FFFF0000FFFF), (16, 0x00000000FFFFFFFF)):
        halves |= halves >> np.uint64(shift)
        halves &= np.uint64(mask)
    return halves.astype(np.uint32)


def _five_bits(nibbles: NDArray[np.uint8], high: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """[blocks, 16] nibble pairs and a word of fifth bits each to [blocks, 5] words."""
    q = np.concatenate([nibbles & np.uint8(15), nibbles >> np.uint8(4)], axis=-1)
    fifth = high[:, None] >> np.arange(BLOCK, dtype=np.uint32) & np.uint32(1)
    return pack(q | fifth.astype(np.uint8) << np.uint8(4), 5)


def _six_bit_scales(blocks: NDArray[np.void]) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    """[blocks, 8] float32 scales d * s and biases -e * t. Of each quartet of bytes, the first two hold s and t of
    groups 0..3 below two high bits of groups 4..7, the third these groups' low nibbles."""
    low_s, low_t, rest = (blocks["six"][:, i] for i in range(3))
    s = np.concatenate([low_s & 63, rest & 15 | low_s >> 2 & 48], axis=-1)
    t = np.concatenate([low_t & 63, rest >> 4 | low_t >> 2 & 48], axis=-1)
    d, e = (blocks[name].astype(np.float32)[:, None] for name in ("d", "e"))
    with np.errstate(invalid="ignore"):  # 0 times an infinity is for ``decode`` to report
        return d * s, -(e * t)


def _with_zero(d: NDArray[np.float16], zero: int) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    """Scales and biases -zero * d: in float16 where the products are exact, else both in float32."""
    with np.errstate(over="ignore", invalid="ignore"):  # a NaN is for ``decode`` to report
        exact = d.astype(np.float32) * np.float32(-zero)
        short = exact.astype(np.float16)
    if np.array_equal(short, exact):
        return d.copy(), short
    return d.astype(np.float32), exact


def _affine(
    packed: NDArray[np.uint32],
    scales: NDArray[np.generic],
    biases: NDArray[np.generic],
    bits: int,
    shape: Shape,
) -> AffineTensor:
    *lead, width = shape
    dtype: DenseDtype = "float16" if scales.dtype == np.float16 else "float32"
    groups = (*lead, width // BLOCK)
    return AffineTensor(
        packed=packed.reshape(*lead, width * bits // 32),
        scales=DenseTensor(scales.reshape(groups), dtype),
        biases=DenseTensor(biases.reshape(groups), dtype),
        bits=bits,
        group_size=BLOCK,
    )
