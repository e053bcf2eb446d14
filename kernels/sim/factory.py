"""Builds this project's kernels for the simulator: what mlxserve's kernel loader takes in place of ``metal``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from kernels.sim.launch import Simulator


class Source(Protocol):
    """What a kernel file says of itself."""

    @property
    def name(self) -> str: ...
    @property
    def inputs(self) -> Sequence[str]: ...
    @property
    def outputs(self) -> Sequence[str]: ...
    @property
    def in_place(self) -> Sequence[str]: ...
    @property
    def header(self) -> str: ...
    @property
    def body(self) -> str: ...


def simulated(simulator: Simulator) -> Callable[[Source], Callable[..., list[Any]]]:
    return lambda source: simulator.metal_kernel(
        source.name, source.inputs, source.outputs, source.body, source.header, in_place=source.in_place
    )
