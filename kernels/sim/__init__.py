"""Runs Metal kernels on a CPU, with mx.fast.metal_kernel's call, a sanitiser and traffic counters.

Part of the repository, not of the wheel. Knows nothing of this project's own kernels. Use::

    sim = Simulator()                                    # sanitiser on
    kernel = sim.metal_kernel("name", ["a"], ["out"], source)
    (out,) = kernel(inputs=[a], grid=..., threadgroup=..., output_shapes=..., output_dtypes=...)
"""

from kernels.sim.build import CompileError
from kernels.sim.launch import Fault, Simulator
from kernels.sim.report import BufferCounts, Report

__all__ = ["BufferCounts", "CompileError", "Fault", "Report", "Simulator"]
