"""qk_norm_rope and kv_write against norm, rotation and scatter in float32."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from kernels.sim import Simulator
from mlxserve.backends.mlx.kernels import Heads
from mlxserve.backends.mlx.page_plan import padded
from tests.kernels.cases import Rig, Rope, check_close

CASES = [
    Rope(3),
    Rope(2, Heads(3, 1, 80), rot=80, norm=False, dtype=mx.float32),
    Rope(9, Heads(2, 1, 128), rot=64, dtype=mx.bfloat16, factor=1.2, block=8),
    Rope(1, Heads(2, 2, 256), rot=256, dtype=mx.bfloat16),
    Rope(2, Heads(2, 1, 96), rot=0, norm=True),
]


@pytest.mark.quick
@pytest.mark.parametrize("case", CASES[:1], ids=str)
def test_quick(case: Rope) -> None:
    case.check(Rig())
    case.check_write(Rig())


@pytest.mark.parametrize("case", CASES[1:], ids=str)
def test_qk_norm_rope(case: Rope) -> None:
    case.check(Rig())


@pytest.mark.parametrize("case", CASES[1:], ids=str)
def test_kv_write(case: Rope) -> None:
    case.check_write(Rig())


def test_a_write_past_two_to_the_31_elements() -> None:
    case = Rope(1, Heads(1, 1, 128), rot=128, block=16)
    qkv, positions, rotary, norms = case.arguments(np.random.default_rng(0))
    blocks = 2**20 + 8
    keys, values = (np.zeros((blocks, 1, 16, 128), np.float16) for _ in range(2))
    slots = padded([blocks * 16 - 3])
    Rig(Simulator(vary=False)).kernels.kv_write(
        qkv, positions, rotary, case.heads, norms, slots, keys, values, mx.zeros((8,))  # type: ignore[arg-type]
    )  # fmt: skip
    _, k, v = case.wanted(qkv, positions, rotary, norms)
    check_close(mx.array(keys[-1, :, 13]), k[0], mx.float16, "k")
    check_close(mx.array(values[-1, :, 13]), v[0], mx.float16, "v")
