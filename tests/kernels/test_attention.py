"""paged_attention_decode and its reduce against softmax in float32, with every page byte read at most once."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

from kernels.sim import Simulator
from kernels.sim.arrays import to_numpy
from mlxserve.backends.mlx import references
from mlxserve.backends.mlx.page_plan import choose_chunk, make_plan
from tests.kernels.cases import Attention, Rig, check_close, f32, random

QUICK = [
    Attention((37, 0, 5), (1, 1, 1)),
    Attention((100, 70), (1, 2), heads=6, dtype=mx.float32, chunk=64, window=40, sinks=True),
]
GRID = [
    Attention((1, 16, 17, 200), (1,) * 4, dim=128, dtype=mx.bfloat16),
    Attention((300, 0, 33), (1,) * 3, dim=128, dtype=mx.bfloat16, chunk=64, sinks=True),
    Attention((90, 41), (2, 4), heads=8, dim=80, block=8, dtype=mx.float32, chunk=32, window=50, soft_cap=20.0),
    Attention((100, 30, 4), (3, 1, 4), heads=8, dim=96, block=32, window=64),
    Attention((70, 129), (1, 1), dim=256, sinks=True, chunk=64),
    Attention((50,), (1,), heads=32, kv_heads=2, dim=64),  # 16 query heads a KV head
    Attention((40,), (4,), heads=16, kv_heads=2, dim=128, soft_cap=5.0),  # 32 rows a KV head: two threadgroups
    Attention((33,), (2,), heads=16, kv_heads=2, dim=256, dtype=mx.bfloat16),
    Attention((65, 64), (1, 1), heads=3, kv_heads=3, dim=64, block=64),
    Attention((500, 20), (1, 1), window=16, chunk=128),  # whole chunks lie before the window
]


@pytest.mark.quick
@pytest.mark.parametrize("case", QUICK, ids=str)
def test_quick(case: Attention) -> None:
    case.check(Rig())


@pytest.mark.parametrize("case", GRID, ids=str)
def test_grid(case: Attention) -> None:
    case.check(Rig())


def test_a_rows_bits_depend_on_neither_other_sequences_nor_other_rows() -> None:
    """One sequence alone, in a batch, and as the last row of several, whole and in chunks."""
    case = Attention((90, 200, 7), (1, 3, 1), heads=6, window=60)
    rng = np.random.default_rng(0)
    keys, values, tables = case.pages(rng)
    q = random(rng, 5, case.heads, case.dim, dtype=case.dtype)
    options = case.options(rng)
    rig = Rig()
    for chunk in (4096, 64):
        whole = to_numpy(rig.kernels.attention(q, keys, values, replace(case, chunk=chunk).plan(tables), **options))
        for sequence, row, count in [(0, 0, 1), (1, 3, 1), (1, 2, 2), (2, 4, 1)]:
            plan = make_plan([tables[sequence]], [case.lengths[sequence]], [0, count], chunk)
            alone = to_numpy(rig.kernels.attention(q[row : row + count], keys, values, plan, **options))
            assert (alone.view(np.uint16) == whole[row : row + count].view(np.uint16)).all(), (chunk, sequence)


def test_a_pool_past_two_to_the_31_elements() -> None:
    """The last of 2^20 + 8 blocks of 2048 elements; memory is only that of the touched pages."""
    blocks, dim = 2**20 + 8, 128
    rng = np.random.default_rng(0)
    keys, values = (np.zeros((blocks, 1, 16, dim), np.float16) for _ in range(2))
    tables = [[blocks - 1, 3, blocks - 5]]
    for table in tables[0]:
        keys[table], values[table] = rng.standard_normal((2, 1, 16, dim)).astype(np.float16)
    q = random(rng, 1, 2, dim, dtype=mx.float16)
    plan = make_plan(tables, [40], [0, 1], 64)
    got = Rig(Simulator(vary=False)).kernels.attention(q, keys, values, plan, scale=0.1)  # type: ignore[arg-type]
    few_keys, few_values = (mx.array(pool[tables[0]]) for pool in (keys, values))
    wanted = references.attention(f32(q), f32(few_keys), f32(few_values), mx.arange(3), 40, scale=0.1)
    check_close(got, wanted, mx.float16, "large pool")


@pytest.mark.quick
def test_chunks_fill_a_gpu_and_no_more() -> None:
    assert choose_chunk([32768], groups=8, wanted=256) == 1024
    assert choose_chunk([512] * 16, groups=8, wanted=100) == 512
    assert choose_chunk([0], groups=8, wanted=256) == 256
    assert choose_chunk([], groups=8, wanted=256) == 256
