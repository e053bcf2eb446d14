"""bench.kernels multiplies slices: the products must be what whole launches count."""

from __future__ import annotations

import pytest

from bench.kernel_counts import Cost, Counter, Shape
from bench.kernels import bars, measure

SMALL = Shape("small", hidden=512, heads=4, kv_heads=2, dim=64, width=256, qk_norm=True)


def test_a_product_by_slices_is_the_whole_product() -> None:
    counter = Counter()
    for name, (n, k, form) in SMALL.products().items():
        assert counter.product(n, k, 4, form) == counter.product(n, k, 4, form, simulate=n), name


def test_attention_by_one_head_of_one_sequence_is_the_whole() -> None:
    counter = Counter()
    sliced, whole = counter.attention(SMALL, 3, 512), counter.attention(SMALL, 3, 512, kv_heads=2, sequences=3)
    for field in ("needed", "read", "partials", "simd_operations", "matrix_operations", "threadgroup_barriers"):
        assert getattr(sliced, field) == getattr(whole, field), field


def test_the_bars_hold_for_a_small_layer() -> None:
    result = measure([SMALL], (1,), (512,))
    row = result["table"][0]["bars"]
    assert row["read_once"]
    assert row["fewer_simd_operations"]
    assert result["launches"] == {"default": 9, "in_place": 7}


@pytest.mark.quick
def test_the_bars_can_fail() -> None:
    good, wasteful = Cost(needed=100, read=100, other=5), Cost(needed=100, read=101, other=6, simd_operations=9)
    mlx = Cost(simd_operations=9)
    kept = bars(good, mlx, {"ours": good, "mlx": mlx}, {"qkv": {"ours": good}})
    assert all(kept[name] for name in ("read_once", "other_small", "fewer_simd_operations", "attention_fewer"))
    broken = bars(wasteful, mlx, {"ours": wasteful, "mlx": mlx}, {"qkv": {"ours": good}})
    assert not any(broken[name] for name in ("read_once", "other_small", "fewer_simd_operations", "attention_fewer"))


@pytest.mark.quick
def test_costs_add() -> None:
    assert Cost(needed=1, launches=1) + Cost(needed=2, launches=1) == Cost(needed=3, launches=2)
