from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxserve.formats.affine import dequantize, to_bfloat16, to_float32
from mlxserve.formats.affine_search import quantize
from mlxserve.formats.mlx_quantization import BITS, GROUP_SIZES
from mlxserve.formats.tensors import DenseDtype, DenseTensor


def error(found: np.ndarray, weights: np.ndarray, importance: np.ndarray | float = 1.0) -> float:
    return float(((found - weights) ** 2 * importance).sum())


def plain(weights: np.ndarray, bits: int, group: int) -> np.ndarray:
    """The grid between each group's extremes."""
    groups = weights.reshape(-1, group)
    low = groups.min(axis=1, keepdims=True)
    step = (groups.max(axis=1, keepdims=True) - low) / (2**bits - 1)
    return (np.rint((groups - low) / step) * step + low).reshape(weights.shape)


def best_by_brute_force(group: np.ndarray, bits: int) -> float:
    """The least squared error over a fine grid of lower and upper ends."""
    low, high = float(group.min()), float(group.max())
    best = np.inf
    for a in np.linspace(0, 0.4, 41):
        for b in np.linspace(0, 0.4, 41):
            bias, step = low + a * (high - low), (1 - a - b) * (high - low) / (2**bits - 1)
            q = np.clip(np.rint((group - bias) / step), 0, 2**bits - 1)
            best = min(best, error(q * step + bias, group))
    return best


@pytest.mark.parametrize("group", GROUP_SIZES)
@pytest.mark.parametrize("bits", BITS)
def test_better_than_the_plain_grid_at_every_width(bits: int, group: int) -> None:
    weights = np.random.default_rng(bits).standard_normal((32, 384)).astype(np.float32)
    tensor = quantize(weights, bits, group, "float32")
    assert (tensor.shape, tensor.bits, tensor.group_size) == (weights.shape, bits, group)
    ratio = error(dequantize(tensor), weights) / error(plain(weights, bits, group), weights)
    assert ratio < (0.9 if bits <= 4 else 1.0)


def test_near_the_best_there_is() -> None:
    """Within 7 % of a brute-force search; the plain grid is more than 20 % away."""
    weights = np.random.default_rng(0).standard_normal((12, 64)).astype(np.float32)
    best = sum(best_by_brute_force(row, 4) for row in weights)
    assert error(dequantize(quantize(weights, 4, 64, "float32")), weights) < 1.07 * best
    assert error(plain(weights, 4, 64), weights) > 1.2 * best


def test_importance_moves_the_error_to_where_it_counts_less() -> None:
    rng = np.random.default_rng(1)
    weights = rng.standard_normal((64, 128)).astype(np.float32)
    importance = np.exp(rng.standard_normal(128) * 2).astype(np.float32)
    alike, weighted = (dequantize(quantize(weights, 4, 64, "float32", w)) for w in (None, importance))
    assert error(weighted, weights, importance) < 0.8 * error(alike, weights, importance)
    assert error(weighted, weights) > error(alike, weights)
    ones = dequantize(quantize(weights, 4, 64, "float32", np.ones(128, np.float32)))
    np.testing.assert_allclose(ones, alike, atol=1e-6)


def test_rows_do_not_depend_on_one_another() -> None:
    """More than one block of work, each with its share of the importance."""
    weights = np.random.default_rng(2).standard_normal((3000, 64)).astype(np.float32)
    importance = np.linspace(0.1, 5, 64, dtype=np.float32)
    together = quantize(weights, 4, 32, "float16", importance)
    alone = quantize(weights[2500:2501], 4, 32, "float16", importance)
    np.testing.assert_array_equal(together.packed[2500:2501], alone.packed)
    np.testing.assert_array_equal(together.scales.data[2500:2501], alone.scales.data)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_integers_are_those_of_the_stored_scale(dtype: DenseDtype) -> None:
    """Rounding a scale to 16 bits comes before the integers are chosen: no integer's neighbour is nearer."""
    weights = np.random.default_rng(3).standard_normal((16, 64)).astype(np.float32)
    tensor = quantize(weights, 8, 64, dtype)
    assert (tensor.scales.dtype, tensor.biases.dtype) == (dtype, dtype)
    step, bias = to_float32(tensor.scales), to_float32(tensor.biases)
    inside = (weights > bias) & (weights < bias + step * 255)
    assert (np.abs(dequantize(tensor) - weights) <= 0.5001 * step)[inside].all()


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("value", [0.0, 1.0, -2.5, 1e-7, 40000.0], ids=["zero", "one", "negative", "tiny", "large"])
def test_groups_of_equal_weights(value: float, dtype: DenseDtype) -> None:
    weights = np.full((2, 64), value, np.float32)
    found = dequantize(quantize(weights, 4, 32, dtype))
    np.testing.assert_allclose(found, weights, rtol=1e-2, atol=1e-7)


@given(seed=st.integers(0, 2**32 - 1), exponent=st.integers(-9, 9), shift=st.integers(-3, 3))
def test_any_scale_and_offset(seed: int, exponent: int, shift: int) -> None:
    """Nothing overflows, and the relative error does not depend on the size; with float16 scales only in its range."""
    weights = np.random.default_rng(seed).standard_normal((4, 64)).astype(np.float32)
    weights = (weights + np.float32(shift)) * np.float32(10.0**exponent)
    dtype: DenseDtype = "float16" if exponent >= -3 else "float32"
    found = dequantize(quantize(weights, 4, 32, dtype))
    spread = weights.reshape(-1, 32).std(axis=1).mean()
    assert np.abs(found - weights).max() < 0.5 * spread


def test_bfloat16_is_rounded_to_nearest() -> None:
    torch = pytest.importorskip("torch")
    values = np.random.default_rng(4).standard_normal(10_000).astype(np.float32)
    expected = torch.from_numpy(values).bfloat16().float().numpy()
    np.testing.assert_array_equal(to_float32(DenseTensor(to_bfloat16(values), "bfloat16")), expected)
