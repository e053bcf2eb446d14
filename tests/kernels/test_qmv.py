"""qmv_int4 against dequantised float32 arithmetic, in every form, with its weights read exactly once."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from kernels.sim.arrays import to_numpy
from mlxserve.backends.mlx.kernels import QmvTile
from tests.kernels.cases import Qmv, Rig

QUICK = [
    Qmv(1, 40, 512),
    Qmv(3, 24, 576, mx.float32, group=32, norm=True, residual=True),
    Qmv(5, 32, 256, mx.bfloat16, act="silu", norm=True),
]
GRID = [
    Qmv(16, 72, 512, mx.bfloat16),
    Qmv(11, 72, 320, tile=QmvTile(4, 4)),
    Qmv(2, 40, 256, bits=8, bias=True),
    Qmv(8, 33, 1152, mx.bfloat16, group=128, residual=True),
    Qmv(1, 48, 576, group=32, act="silu", norm=True, tile=QmvTile(2, 4)),
    Qmv(6, 48, 256, mx.bfloat16, act="gelu_tanh", bias=True, tile=QmvTile(4, 8)),
    Qmv(16, 20, 192, bits=8, group=32, norm=True, residual=True),
    Qmv(4, 20, 384, mx.bfloat16, bits=8, group=128),
    Qmv(2, 16, 1536, mx.float32, group=32, act="silu", norm=True),
    Qmv(1, 600, 64, group=64, bias=True, norm=True),
    Qmv(2, 24, 192, group=32, norm=True, weight_dtype=mx.float32),
    Qmv(1, 16, 4608, mx.bfloat16, group=128),  # x is staged more than once
]


@pytest.mark.quick
@pytest.mark.parametrize("case", QUICK, ids=str)
def test_quick(case: Qmv) -> None:
    case.check(Rig())


@pytest.mark.parametrize("case", GRID, ids=str)
def test_grid(case: Qmv) -> None:
    case.check(Rig())


def test_a_rows_bits_depend_on_neither_other_rows_nor_the_tile() -> None:
    case = Qmv(16, 40, 320, norm=True, residual=True)
    rng = np.random.default_rng(0)
    w = case.weight(rng)
    x, options = case.arguments(rng)
    rig = Rig()

    def rows(first: int, count: int, tile: QmvTile) -> np.ndarray:
        part = {**options, "residual": options["residual"][first : first + count]}
        return to_numpy(rig.kernels.qmv(x[first : first + count], w, tile=tile, **part))

    whole = rows(0, 16, QmvTile(2, 4))
    for first, count, tile in [
        (0, 1, QmvTile(2, 4)),
        (13, 1, QmvTile(1, 4)),
        (3, 2, QmvTile(4, 4)),
        (5, 3, QmvTile(2, 4)),
        (1, 8, QmvTile(1, 8)),
        (4, 12, QmvTile(4, 4)),
    ]:
        part = rows(first, count, tile)
        assert (part.view(np.uint16) == whole[first : first + count].view(np.uint16)).all(), (first, count, tile)
