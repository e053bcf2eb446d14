"""Every fault the simulator promises to find is planted once, and a correct kernel passes."""

from __future__ import annotations

import dataclasses

import mlx.core as mx
import pytest

from kernels.sim import CompileError, Fault, Simulator
from kernels.sim.build import find_compiler

pytestmark = pytest.mark.quick

INDEX = "uint i = thread_index_in_threadgroup; "
SHARED = "threadgroup float s[64]; " + INDEX


def run(body: str, *, sim: Simulator | None = None, header: str = "", grid: int = 64, threadgroup: int = 64, **options):
    kernel = (sim or Simulator()).metal_kernel("planted", ["a"], ["o"], body, header, **options)
    a = mx.arange(64).astype(mx.float32)
    (out,) = kernel(
        inputs=[a],
        grid=(grid, 1, 1),
        threadgroup=(threadgroup, 1, 1),
        output_shapes=[(64,)],
        output_dtypes=[mx.float32],
    )
    return out


def test_a_correct_kernel_passes() -> None:
    out = run(SHARED + "s[i] = a[i]; threadgroup_barrier(mem_flags::mem_threadgroup); o[i] = s[63 - i];")
    assert out.tolist() == list(range(63, -1, -1))


HELPER = "inline void put(thread float* t, int n) { for (int j = 0; j < n; j++) t[j] = float(j); }\n"
BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup); "
FAULTS = {
    "device read past the end": (INDEX + "o[i] = a[i + 1];", "out of bounds: read of 4 bytes"),
    "device read far away": (INDEX + "o[i] = a[i + 100000000];", "out of bounds: read"),
    "device read before the start": (INDEX + "o[i] = a[int(i) - 1];", "out of bounds: read"),
    "device write past the end": (INDEX + "o[i + 4] = a[i];", "out of bounds: write to 4 bytes"),
    "vector read over the end": (
        INDEX + "o[i] = ((const device float4*)(a + i / 4 * 4 + 16))->x;",
        "out of bounds",
    ),
    "threadgroup write past the end": (SHARED + "s[i + 1] = a[i]; " + BARRIER + "o[i] = s[i];", "out.of.bounds"),
    "threadgroup read far past the end": (
        SHARED + "s[i] = a[i]; " + BARRIER + "o[i] = *(&s[0] + 4 * i);",
        "out of bounds|undefined",
    ),
    "private index past the end": (
        INDEX + "float t[4]; for (int j = 0; j < 4; j++) t[j] = a[j]; t[i & 7] = 1; o[i] = t[i & 3];",
        "out_of_bounds",
    ),
    "uninitialised device read": (INDEX + "o[i] = o[i] + a[i];", "uninitialised read of o"),
    "uninitialised threadgroup read": (
        SHARED + "if (i < 32) s[i] = a[i]; " + BARRIER + "o[i] = s[i];",
        "uninitialised read of threadgroup s",
    ),
    "uninitialised private read": (
        INDEX + "float t[2]; if (i < 40) t[1] = a[i]; o[i] = t[1];",
        "uninitialised private",
    ),
    "write to an input": (INDEX + "((device float*)a)[i] = 1; o[i] = 0;", "write to the input a"),
    "divergent barrier": (INDEX + "if (i < 16) " + BARRIER + "o[i] = a[i];", "not all lanes reach"),
    "barrier of one simdgroup": (INDEX + "if (i < 32) " + BARRIER + "o[i] = a[i];", "not all lanes reach a barrier"),
    "return before a barrier": (INDEX + "if (i >= 40) return; o[i] = a[i]; " + BARRIER, "not all lanes reach"),
    "different simd operations": (
        INDEX + "float x;\nif (i & 1) x = simd_sum(a[i]);\nelse x = simd_max(a[i]);\no[i] = x;",
        "not all lanes reach",
    ),
    "simd operation of some lanes": (INDEX + "float x = 0; if (i & 1) x = simd_sum(a[i]); o[i] = x;", "not all lanes"),
    "simd operation in loops of different length": (
        INDEX + "float x = 0; for (uint k = 0; k < (i & 3) + 1; k++) x += simd_sum(a[i]); o[i] = x;",
        "not all lanes reach",
    ),
    "no barrier between simdgroups": (SHARED + "s[i] = a[i]; o[i] = s[63 - i];", "no barrier between|uninitialised"),
    "overwritten while others read": (
        SHARED + "s[i] = a[i]; " + BARRIER + "o[i] = s[63 - i]; s[i] = 0;",
        r"race: .* threadgroup s",
    ),
    "barrier that orders nothing": (
        SHARED + "s[i] = a[i]; threadgroup_barrier(mem_flags::mem_none); o[i] = s[63 - i];",
        "race: read of threadgroup s",
    ),
    "device race in a threadgroup": (INDEX + "o[i] = a[i]; " + BARRIER + "o[63 - i] += 1;", r"race: .* of o"),
    "over 32 KB of threadgroup memory": (
        "threadgroup float s[9000]; " + INDEX + "s[i] = a[i]; o[i] = s[i];",
        "threadgroup memory: 36000 bytes",
    ),
    "output not written": (INDEX + "if (i != 5) o[i] = a[i];", r"output o\[5\] is never written"),
    "depends on the order of lanes": (
        INDEX + "threadgroup uint n; if (i == 0) n = 0; simdgroup_barrier(mem_flags::mem_none);"
        "if (i < 32) { o[i + 32] = 0; uint k = n; n = k + 1; o[k] = a[i]; }",
        "order of lanes",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_fault(fault: str) -> None:
    body, message = FAULTS[fault]
    two_runs = "private read" in fault or "order" in fault
    with pytest.raises(Fault, match=message):
        run(body, sim=Simulator(vary=two_runs))


def test_a_private_overrun_through_a_pointer() -> None:
    if find_compiler().kind != "gcc":
        pytest.skip("only g++ instruments private memory behind pointers")
    with pytest.raises(Fault, match="undefined behaviour"):
        run(
            INDEX + "float t[4]; put(t, 4 + int(a[1])); o[i] = t[0];", header=HELPER, sim=Simulator(vary=False)
        )  # fmt: skip


def test_a_race_between_threadgroups() -> None:
    body = "uint i = thread_position_in_grid.x; o[i] = a[i]; if (i == 0) o[40] = 1;"
    with pytest.raises(Fault, match=r"race: write to o.*another threadgroup"):
        run(body, threadgroup=32)
    assert run("uint i = thread_position_in_grid.x; o[i] = a[i];", threadgroup=32).tolist() == list(range(64))


def test_an_input_declared_as_updated_in_place() -> None:
    body = INDEX + "((device float*)a)[i] += 1; o[i] = 0;"
    kernel = Simulator().metal_kernel("update", ["a"], ["o"], body, in_place=["a"])
    a = mx.zeros((64,))
    kernel(
        inputs=[a], grid=(64, 1, 1), threadgroup=(64, 1, 1), output_shapes=[(64,)], output_dtypes=[mx.float32]
    )  # fmt: skip
    assert a.tolist() == [1.0] * 64  # once, although the launch was repeated in reverse order


def test_a_spin_is_ended() -> None:
    body = INDEX + "volatile int n = 1; while (n) { } o[i] = a[i];"
    with pytest.raises(Fault, match="a lane spins"):
        run(body, sim=Simulator(seconds=0.2))


def test_what_does_not_compile() -> None:
    with pytest.raises(CompileError, match="bfloat"):
        run("bfloat x = a[0]; o[0] = x;")
    with pytest.raises(CompileError, match="not_a_function"):
        run("o[0] = not_a_function(a[0]);")
    with pytest.raises(CompileError, match="initialiser"):
        run("threadgroup float s[2] = {0, 0}; o[0] = s[0];")


def test_without_the_sanitiser_nothing_is_checked_or_counted() -> None:
    reports = []
    sim = Simulator(sanitize=False, on_report=reports.append)
    run(INDEX + "if (i != 5) o[i] = a[i];", sim=sim)
    assert reports[0].buffers == {}
    assert dataclasses.replace(sim, sanitize=True).vary
