"""The kernel tests can fail: one mistake of a fixed list in a kernel is caught by its own cases or the sanitiser."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import mlx.core as mx
import pytest

from kernels.sim import Fault, Simulator
from mlxserve.backends.mlx.kernel_source import KernelSource
from mlxserve.backends.mlx.kernels import Heads, QmvTile
from tests.kernels.cases import Attention, Qmv, Rig, Rope

# Mistake -> kernel -> (text, what it becomes). Each text must occur, so that a mutation cannot go stale.
MUTATIONS = {
    "a barrier dropped": {
        "qmv_int4": ("threadgroup_barrier(mem_flags::mem_threadgroup);\nfor (int round", "for (int round"),
        "paged_attention_decode": (
            "threadgroup_barrier(mem_flags::mem_threadgroup);\nif (simdgroup_index < apart)",
            "if (simdgroup_index < apart)",
        ),
    },
    "a barrier before reuse dropped": {
        "qmv_int4": ("base += ROUNDS) {\nthreadgroup_barrier(mem_flags::mem_threadgroup);", "base += ROUNDS) {"),
    },
    "mask off by one": {
        "qmv_int4": ("output >= n_out) continue;\nconst long row", "output > n_out) continue;\nconst long row"),
        "paged_attention_decode": ("n >= min(end[t], stop)", "n > min(end[t], stop)"),
        "paged_attention_reduce": ("i < end - begin; i++) {", "i < end - begin - 1; i++) {"),
        "qk_norm_rope": ("p < ROT / 2 && !plain", "p <= ROT / 2 && !plain"),
        "kv_write": ("slot < 0) return", "slot < -1) return"),
    },
    "window mask off by one": {
        "paged_attention_decode": ("n < first[t]", "n <= first[t]"),
    },
    "page stride wrong": {
        "paged_attention_decode": (
            "(long(block) * heads + kv_head) * BLOCK",
            "(long(block) * BLOCK + kv_head) * heads",
        ),
        "kv_write": (
            "(long(slot / BLOCK) * kv_heads + kv_head) * BLOCK",
            "(long(slot / BLOCK) * BLOCK + kv_head) * kv_heads",
        ),
    },
    "partial stride wrong": {
        "paged_attention_reduce": ("long(Q) * heads * (D + 2)", "long(Q) * heads * D"),
    },
    "last partial page of keys read whole": {
        "paged_attention_decode": ("&& t0 + fn + c < stop", "&& t0 < stop"),
    },
    "last partial page of values read whole": {
        "paged_attention_decode": ("n >= lowest && n < stop", "n >= lowest"),
    },
    "a simdgroup's share skipped": {
        "qmv_int4": ("threadgroup_index * SG + simdgroup_index)", "threadgroup_index * SG + simdgroup_index / 2 * 2)"),
        "paged_attention_decode": ("token < stop; token +=", "token < stop && simdgroup_index != 1; token +="),
    },
    "a lane's share skipped": {
        "paged_attention_reduce": (
            "d < D; d += 64)\nfor (int c = 0; c < 2; c++) out",
            "d < D - 2; d += 64)\nfor (int c = 0; c < 2; c++) out",
        ),
        "qk_norm_rope": (
            "p < D / 2; p += 32) {\nconst int2 c = pair_channels<ROT>(p);\nfloat a",
            "p < D / 2 - 1; p += 32) {\nconst int2 c = pair_channels<ROT>(p);\nfloat a",
        ),
        "kv_write": (
            "p < D / 2; p += 32) {\nconst int2 c = pair_channels<ROT>(p);\nfloat a",
            "p < D / 2 - 1; p += 32) {\nconst int2 c = pair_channels<ROT>(p);\nfloat a",
        ),
    },
    "scale of the next group used": {
        "qmv_int4": ("scales[row * groups + group]", "scales[row * groups + group + (group + 1 < groups)]"),
    },
    "bias of the next group used": {
        "qmv_int4": ("biases[row * groups + group]", "biases[row * groups + group + (group + 1 < groups)]"),
    },
    "head mapping off by one": {
        "paged_attention_decode": (
            "kv_head * G + row % G) * D",
            "kv_head * G + (row + 1) % G) * D",
        ),
        "paged_attention_reduce": ("(long(query) * heads + head)", "(long(query) * heads + (head + 1) % heads)"),
        "qk_norm_rope": ("head >= query_heads + kv_heads", "head > query_heads + kv_heads"),
        "kv_write": ("head < query_heads", "head <= query_heads"),
    },
    "accumulator not reset between rows": {
        "qmv_int4": ("for (int r = 0; r < R; r++) {\nfloat dot = 0;", "float dot = 0;\nfor (int r = 0; r < R; r++) {"),
        "paged_attention_decode": (
            "scores[t][part].thread_elements() = float2(0.0f);",
            "if (token == begin) scores[t][part].thread_elements() = float2(0.0f);",
        ),
        "paged_attention_reduce": (
            "float sum[(D / 2 + 31) / 32][2];\nfor (int j = 0; j < (D / 2 + 31) / 32; j++) sum[j][0] = sum[j][1] = 0;",
            "float sum[(D / 2 + 31) / 32][2];",
        ),
        "qk_norm_rope": ("float squares = 0;", "float squares;"),
        "kv_write": ("float squares = 0;", "float squares;"),
    },
}

ATTENTION = Attention((90, 41), (2, 1), heads=6, dim=64, block=8, dtype=mx.float32, chunk=32, window=50)
WHOLE = dataclasses.replace(ATTENTION, chunk=4096)
ROPE = Rope(3, Heads(3, 2, 64), rot=32, dtype=mx.float32)
QMV = Qmv(3, 36, 4608, mx.float32, norm=True, tile=QmvTile(2, 2))  # x is staged twice
CASES: dict[str, Callable[[Rig], None]] = {
    "qmv_int4": QMV.check,
    "paged_attention_decode": WHOLE.check,
    "paged_attention_reduce": ATTENTION.check,
    "qk_norm_rope": ROPE.check,
    "kv_write": ROPE.check_write,
}


def changed(kernel: str, old: str, new: str) -> Callable[[KernelSource], KernelSource]:
    def change(source: KernelSource) -> KernelSource:
        if source.name != kernel:
            return source
        assert old in source.header + source.body, f"{kernel} has no {old!r}"
        return dataclasses.replace(source, header=source.header.replace(old, new), body=source.body.replace(old, new))

    return change


@pytest.mark.parametrize("kernel", CASES)
def test_the_cases_pass_unchanged(kernel: str) -> None:
    CASES[kernel](Rig())


@pytest.mark.parametrize(
    ("mistake", "kernel"), [(mistake, kernel) for mistake, kernels in MUTATIONS.items() for kernel in kernels]
)
def test_caught(mistake: str, kernel: str) -> None:
    old, new = MUTATIONS[mistake][kernel]
    # Uninitialised private memory shows only as a difference between two runs.
    rig = Rig(Simulator(vary=mistake.startswith("accumulator"), seconds=20), changed(kernel, old, new))
    with pytest.raises((Fault, AssertionError)) as caught:
        CASES[kernel](rig)
    assert "has no" not in str(caught.value)
