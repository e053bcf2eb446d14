"""GGML's block types as host tensors, without loss.

A block of 32 weights has one scale d (float16), for some types a minimum m (float16), and the integers q:

    Q4_0  w = d * (q - 8)    bytes: d, 16 x two nibbles
    Q4_1  w = d * q + m      bytes: d, m, 16 x two nibbles
    Q8_0  w = d * q          bytes: d, 32 x int8

Byte j of the nibbles holds element j in its low half and element j + 16 in its high half. All are affine with groups
of 32; see the ggml source (``ggml-quants.c``) or the ``gguf`` package (``quants.py``). Knows no names.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from mlxserve.errors import CheckpointError
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
_Q8_0 = np.dtype([("d", "<f2"), ("q", "<u4", (8,))])


def _dense(dtype: DenseDtype, stored: str) -> Callable[[NDArray[np.uint8], tuple[int, ...]], DenseTensor]:
    return lambda raw, shape: DenseTensor(raw.view(stored).reshape(shape), dtype)


def _q4_0(raw: NDArray[np.uint8], shape: tuple[int, ...]) -> AffineTensor:
    blocks = raw.view(_Q4_0)
    return _affine(_nibbles(blocks["q"]), *_with_zero(blocks["d"], 8), 4, shape)


def _q4_1(raw: NDArray[np.uint8], shape: tuple[int, ...]) -> AffineTensor:
    blocks = raw.view(_Q4_1)
    return _affine(_nibbles(blocks["q"]), blocks["d"].copy(), blocks["m"].copy(), 4, shape)


def _q8_0(raw: NDArray[np.uint8], shape: tuple[int, ...]) -> AffineTensor:
    blocks = raw.view(_Q8_0)
    packed = blocks["q"] ^ np.uint32(0x80808080)  # int8 q becomes q + 128
    return _affine(packed, *_with_zero(blocks["d"], 128), 8, shape)


_DECODERS: dict[GGMLQuantizationType, Callable[[NDArray[np.uint8], tuple[int, ...]], HostTensor]] = {
    GGMLQuantizationType.F32: _dense("float32", "<f4"),
    GGMLQuantizationType.F16: _dense("float16", "<f2"),
    GGMLQuantizationType.BF16: _dense("bfloat16", "<u2"),
    GGMLQuantizationType.Q4_0: _q4_0,
    GGMLQuantizationType.Q4_1: _q4_1,
    GGMLQuantizationType.Q8_0: _q8_0,
}


_OUTLINES: dict[GGMLQuantizationType, DenseDtype] = {
    GGMLQuantizationType.F32: "float32",
    GGMLQuantizationType.F16: "float16",
    GGMLQuantizationType.BF16: "bfloat16",
}


def check_type(info: TensorInfo) -> None:
    """Raises CheckpointError naming the tensor and its type if it cannot be decoded."""
    if info.type not in _DECODERS:
        known = ", ".join(kind.name for kind in _DECODERS)
        raise CheckpointError(f"the tensor {info.name!r} has the GGML type {info.type.name}; supported are {known}")


def outline(info: TensorInfo) -> HostTensor:
    """What ``decode`` gives, without data; scales are taken to fit float16, as they do in all but odd files."""
    if info.type in _OUTLINES:
        return dense_outline(info.shape, _OUTLINES[info.type])
    bits = 8 if info.type is GGMLQuantizationType.Q8_0 else 4
    return affine_outline(info.shape, bits, BLOCK, "float16", "float16")


def decode(raw: NDArray[np.uint8], info: TensorInfo) -> HostTensor:
    """The tensor at ``raw``; dense ones stay views. Raises CheckpointError on a scale that is not finite."""
    tensor = _DECODERS[info.type](raw, info.shape)
    if isinstance(tensor, AffineTensor) and not (
        np.isfinite(tensor.scales.data).all() and np.isfinite(tensor.biases.data).all()
    ):
        raise CheckpointError(f"corrupt: the tensor {info.name!r} has a block whose scale is not finite")
    return tensor


def _nibbles(words: NDArray[np.uint64]) -> NDArray[np.uint32]:
    """[blocks, 2] words of GGML's nibble pairs to [blocks, 4] words with element k in bits [4k, 4k + 4)."""
    halves = np.stack([words, words >> np.uint64(4)], axis=-2)  # elements 0..15, then 16..31
    halves &= np.uint64(0x0F0F0F0F0F0F0F0F)
    for shift, mask in ((4, 0x00FF00FF00FF00FF), (8, 0x0000FFFF0000FFFF), (16, 0x00000000FFFFFFFF)):
        halves |= halves >> np.uint64(shift)
        halves &= np.uint64(mask)
    return halves.astype(np.uint32).reshape(-1, 4)


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
    shape: tuple[int, ...],
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
