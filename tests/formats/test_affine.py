from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxserve.formats.affine import dequantize, pack, to_float32, unpack
from mlxserve.formats.mlx_quantization import BITS, GROUP_SIZES
from mlxserve.formats.tensors import AffineTensor, DenseTensor


@pytest.mark.parametrize("bits", BITS)
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 5), words=st.integers(1, 6))
def test_an_element_lies_where_the_contract_says(bits: int, seed: int, rows: int, words: int) -> None:
    values = np.random.default_rng(seed).integers(0, 2**bits, (rows, words * 32), dtype=np.uint8)
    packed = pack(values, bits)
    assert packed.shape == (rows, words * bits)
    for row, stored in zip(values, packed, strict=True):
        string = int.from_bytes(stored.tobytes(), "little")
        assert [string >> (k * bits) & (2**bits - 1) for k in range(row.size)] == row.tolist()
    np.testing.assert_array_equal(unpack(packed, bits), values)


@pytest.mark.parametrize("group_size", GROUP_SIZES)
@pytest.mark.parametrize("bits", BITS)
def test_the_layout_is_the_one_of_mlx(bits: int, group_size: int) -> None:
    mx = pytest.importorskip("mlx.core")
    weights = np.random.default_rng(bits).standard_normal((2, 3, 256)).astype(np.float32)
    packed, scales, biases = mx.quantize(mx.array(weights), group_size=group_size, bits=bits)
    tensor = AffineTensor(
        np.array(packed), DenseTensor(np.array(scales), "float32"), DenseTensor(np.array(biases), "float32"),
        bits, group_size,
    )  # fmt: skip
    assert tensor.shape == weights.shape
    theirs = mx.dequantize(packed, scales, biases, group_size=group_size, bits=bits)
    np.testing.assert_allclose(dequantize(tensor), np.array(theirs), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(pack(unpack(tensor.packed, bits), bits), tensor.packed)


def test_every_short_float_is_exact_in_float32() -> None:
    every = np.arange(2**16, dtype=np.uint16)
    halves = every.view(np.float16)
    np.testing.assert_array_equal(to_float32(DenseTensor(halves, "float16")), halves.astype(np.float32))
    wide = to_float32(DenseTensor(every, "bfloat16"))
    np.testing.assert_array_equal(wide.view(np.uint32), every.astype(np.uint32) << 16)
