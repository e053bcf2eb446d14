"""The self-test passes on the kernels as they are, and finds one that is broken."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kernels.sim import Simulator
from kernels.sim.factory import simulated
from mlxserve.backends.mlx.kernel_source import BuiltKernel, KernelSource
from mlxserve.backends.mlx.kernels import Kernels
from mlxserve.backends.mlx.selftest import self_test

NAMES = [
    "qmv_int4",
    "paged_attention_decode",
    "paged_attention_reduce",
    "qk_norm_rope",
    "kv_write",
    "kv_write, repeated",
]


@pytest.mark.quick
def test_every_kernel_passes() -> None:
    results = list(self_test(Kernels(simulated(Simulator(sanitize=False)))))
    assert [result.kernel for result in results] == NAMES
    assert all(result.ok for result in results), results
    assert any(result.error > 0 for result in results), "something was compared"


def test_a_wrong_kernel_and_one_that_does_not_compile_are_found() -> None:
    build = simulated(Simulator(sanitize=False))

    def broken(source: KernelSource) -> BuiltKernel:
        if source.name == "qk_norm_rope":
            return build(replace(source, body=source.body + "\nnonsense;"))
        if source.name == "paged_attention_decode":

            def wrong(**call: object) -> list[object]:
                return [2 * out for out in build(source)(**call)]

            return wrong
        return build(source)

    results = {result.kernel: result for result in self_test(Kernels(broken))}
    assert results["qmv_int4"].ok
    assert not results["paged_attention_decode"].ok
    assert results["paged_attention_decode"].failure is None
    assert results["qk_norm_rope"].failure
