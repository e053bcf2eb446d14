from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from mlxserve.errors import CheckpointError
from mlxserve.formats.affine import dequantize
from mlxserve.formats.checkpoint import embedded_model_path
from mlxserve.formats.gguf import TensorInfo, read_gguf
from mlxserve.formats.gguf_blocks import check_type, decode, outline
from mlxserve.formats.tensors import AffineTensor, DenseTensor
from tests.formats.gguf_files import HALVES, Kind

SHAPE = (3, 2, 64)
AFFINE = (Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0)
KINDS = (*AFFINE, Kind.F32, Kind.F16, Kind.BF16)


def read(raw: np.ndarray, kind: Kind, shape: tuple[int, ...] = SHAPE) -> DenseTensor | AffineTensor:
    flat = np.ascontiguousarray(raw).view(np.uint8).reshape(-1)
    return decode(flat, TensorInfo("t", shape, kind, 0, flat.nbytes))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@given(seed=st.integers(0, 2**32 - 1), exponent=st.integers(-6, 3))
def test_values_equal_the_gguf_package_bit_for_bit(kind: Kind, seed: int, exponent: int) -> None:
    values = np.random.default_rng(seed).standard_normal(SHAPE).astype(np.float32) * np.float32(10.0**exponent)
    raw = gguf.quantize(values, kind)
    tensor = read(raw, kind)
    assert tensor.shape == SHAPE
    np.testing.assert_array_equal(dequantize(tensor), gguf.dequantize(raw, kind))


@pytest.mark.parametrize("kind", AFFINE, ids=lambda kind: kind.name)
@given(data=st.data())
def test_any_block_that_is_finite(kind: Kind, data: st.DataObject) -> None:
    """Random bytes: scales of every size and sign, subnormal and near the end of float16 too."""
    block_bytes = gguf.GGML_QUANT_SIZES[kind][1]
    raw = data.draw(npst.arrays(np.uint8, (6, block_bytes)))
    finite = np.isfinite(raw[:, : 4 if kind in (Kind.Q4_1, Kind.Q5_1) else 2].copy().view(np.float16)).all()
    if not finite:
        with pytest.raises(CheckpointError, match="'t' has a block whose scale is not finite"):
            read(raw, kind, (6, 32))
        return
    np.testing.assert_array_equal(dequantize(read(raw, kind, (6, 32))), gguf.dequantize(raw, kind))


@pytest.mark.parametrize("kind", HALVES, ids=lambda kind: kind.name)
@given(data=st.data())
def test_any_block_of_256_that_is_finite(kind: Kind, data: st.DataObject) -> None:
    """Bit for bit. Q4_K and Q5_K stay packed with float32 scales, the types with groups of 16 become float32."""
    raw = data.draw(npst.arrays(np.uint8, (2, gguf.GGML_QUANT_SIZES[kind][1])))
    with np.errstate(over="ignore", invalid="ignore"):
        expected = gguf.dequantize(raw, kind)
    if not np.isfinite(np.concatenate([raw[:, at : at + 2].copy().view(np.float16) for at in HALVES[kind]])).all():
        with pytest.raises(CheckpointError, match="'t' has a block whose scale is not finite"):
            read(raw, kind, (2, 256))
        return
    tensor = read(raw, kind, (2, 256))
    np.testing.assert_array_equal(dequantize(tensor), expected)
    bits = {Kind.Q4_K: 4, Kind.Q5_K: 5}.get(kind)
    if isinstance(tensor, AffineTensor):
        assert (tensor.bits, tensor.group_size, tensor.scales.dtype) == (bits, 32, "float32")
    else:
        assert (bits, tensor.dtype) == (None, "float32")


@pytest.mark.parametrize("kind", [*KINDS, *HALVES], ids=lambda kind: kind.name)
def test_an_outline_is_what_a_tensor_will_be(kind: Kind) -> None:
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind]
    shape = (2, 3, max(block, 32))
    info = TensorInfo("t", shape, kind, 0, 6 * max(block, 32) // block * block_bytes)
    tensor, promised = decode(np.zeros(info.nbytes, np.uint8), info), outline(info)
    assert type(promised) is type(tensor)
    assert promised.shape == tensor.shape == shape
    match promised, tensor:
        case AffineTensor(), AffineTensor():
            assert (promised.bits, promised.scales.dtype) == (tensor.bits, tensor.scales.dtype)
            assert promised.packed.shape == tensor.packed.shape
            assert promised.scales.shape == tensor.scales.shape == promised.biases.shape
        case DenseTensor(), DenseTensor():
            assert promised.dtype == tensor.dtype


def plain_q6_k(block: bytes) -> list[float]:
    """By the format's description, a weight at a time: ql[128], qh[64], 16 scales of int8, d."""
    d = np.frombuffer(block[208:], np.float16)[0].astype(np.float32)
    scales = np.frombuffer(block[192:208], np.int8)
    out = []
    for i in range(256):
        half, within = divmod(i, 128)
        quarter, at = divmod(within, 32)
        low = block[64 * half + at + 32 * (quarter % 2)] >> 4 * (quarter // 2) & 15
        high = block[128 + 32 * half + at] >> 2 * quarter & 3
        out.append(float(d * np.float32(scales[i // 16]) * np.float32((low | high << 4) - 32)))
    return out


def plain_q4_k(block: bytes) -> list[float]:
    """By the format's description: d, e, 12 bytes of scales and minima, 128 of nibbles."""
    d, e = np.frombuffer(block[:4], np.float16).astype(np.float32)
    six = block[4:16]
    out = []
    for i in range(256):
        group, at = divmod(i, 32)
        if group < 4:
            scale, least = six[group] & 63, six[group + 4] & 63
        else:
            scale = six[group + 4] & 15 | six[group - 4] >> 6 << 4
            least = six[group + 4] >> 4 | six[group] >> 6 << 4
        q = block[16 + 32 * (group // 2) + at] >> 4 * (group % 2) & 15
        out.append(float(d * np.float32(scale) * np.float32(q) - e * np.float32(least)))
    return out


@pytest.mark.parametrize(("kind", "plain"), [(Kind.Q4_K, plain_q4_k), (Kind.Q6_K, plain_q6_k)], ids=["Q4_K", "Q6_K"])
def test_values_equal_the_format_read_by_hand(kind: Kind, plain: Callable[[bytes], list[float]]) -> None:
    raw = np.random.default_rng(0).integers(0, 256, (3, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8)
    for at in HALVES[kind]:
        raw[:, at : at + 2] = np.array([[0.01], [-3.0], [6e-8]], np.float16).view(np.uint8)
    got = dequantize(read(raw, kind, (3, 256)))
    np.testing.assert_array_equal(got, np.array([plain(row.tobytes()) for row in raw], np.float32))


def test_a_type_that_is_not_decoded_is_named() -> None:
    with pytest.raises(CheckpointError, match=r"'t' has the GGML type IQ4_XS; supported are F32, .*Q6_K"):
        check_type(TensorInfo("t", (1, 256), Kind.IQ4_XS, 0, 136))


@pytest.mark.parametrize(
    ("kind", "limit"),
    [(Kind.Q8_0, 511.5), (Kind.Q5_0, 4092.0), (Kind.Q4_0, 8184.0)],
    ids=["Q8_0", "Q5_0", "Q4_0"],
)
def test_scales_stay_float16_only_while_that_is_exact(kind: Kind, limit: float) -> None:
    raw = np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8)
    for scale, dtype in ((limit, "float16"), (limit * 2, "float32"), (6e-8, "float16")):
        raw[0, :2] = np.array([scale], np.float16).view(np.uint8)
        tensor = read(raw, kind, (1, 32))
        assert isinstance(tensor, AffineTensor)
        assert (tensor.scales.dtype, tensor.biases.dtype) == (dtype, dtype)
        np.testing.assert_array_equal(dequantize(tensor), gguf.dequantize(raw, kind))


def test_a_wrong_nibble_order_would_be_seen() -> None:
    """The control: element j + 16 shares a byte with j, not with its neighbour."""
    raw = gguf.quantize(np.arange(32, dtype=np.float32)[None], Kind.Q4_1)
    swapped = raw.copy()
    swapped[:, 4:] = (swapped[:, 4:] >> 4) | (swapped[:, 4:] << 4)
    assert not np.array_equal(dequantize(read(swapped, Kind.Q4_1, (1, 32))), gguf.dequantize(raw, Kind.Q4_1))


def test_the_embedded_model_bit_for_bit(tmp_path: Path) -> None:
    file = read_gguf(embedded_model_path())
    for name in ("token_embd.weight", "blk.0.ffn_down.weight", "blk.29.attn_v.weight", "output_norm.weight"):
        info = file.tensors[name]
        raw = file.raw(info)
        block, block_bytes = gguf.GGML_QUANT_SIZES[info.type]
        rows = raw.reshape(-1, info.shape[-1] // block * block_bytes)
        expected = gguf.dequantize(rows, info.type).reshape(info.shape)
        np.testing.assert_array_equal(dequantize(decode(raw, info)), expected)
