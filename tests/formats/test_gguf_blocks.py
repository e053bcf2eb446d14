from __future__ import annotations

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
from mlxserve.formats.gguf_blocks import decode
from mlxserve.formats.tensors import AffineTensor, DenseTensor
from tests.formats.gguf_files import Kind

SHAPE = (3, 2, 64)
AFFINE = (Kind.Q4_0, Kind.Q4_1, Kind.Q8_0)
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
    finite = np.isfinite(raw[:, : 4 if kind is Kind.Q4_1 else 2].copy().view(np.float16)).all()
    if not finite:
        with pytest.raises(CheckpointError, match="'t' has a block whose scale is not finite"):
            read(raw, kind, (6, 32))
        return
    np.testing.assert_array_equal(dequantize(read(raw, kind, (6, 32))), gguf.dequantize(raw, kind))


@pytest.mark.parametrize(("kind", "limit"), [(Kind.Q8_0, 511.5), (Kind.Q4_0, 8184.0)], ids=["Q8_0", "Q4_0"])
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
