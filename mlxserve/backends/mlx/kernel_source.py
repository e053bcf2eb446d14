"""Finds the .metal files and reads them: what a factory needs to build a kernel.

A factory is ``metal`` on a GPU, the simulator's elsewhere. Knows nothing of any kernel's meaning.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import cast

import mlx.core as mx

from mlxserve.errors import ConfigError


@dataclass(frozen=True, slots=True)
class KernelSource:
    """One .metal file: what mx.fast.metal_kernel is given, and the inputs that the kernel updates in place."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    in_place: tuple[str, ...]
    header: str
    body: str


BuiltKernel = Callable[..., list[mx.array]]
KernelFactory = Callable[[KernelSource], BuiltKernel]


def metal(source: KernelSource) -> BuiltKernel:
    """Builds for the GPU. Compiled by Metal at the first call of each variant."""
    built = mx.fast.metal_kernel(
        name=source.name,
        input_names=list(source.inputs),
        output_names=list(source.outputs),
        source=source.body,
        header=source.header,
    )
    return cast(BuiltKernel, built)


@cache
def kernel_directory() -> Path:
    """The repository's kernels/ when this is a checkout (a wheel's copy would be stale there), else the wheel's."""
    here = Path(__file__).resolve()
    checkout = here.parents[3] / "kernels"
    return checkout if (checkout / "qmv_int4.metal").exists() else here.parent / "metal"


def simulated() -> KernelFactory:
    """Builds for the simulator in the repository's kernels/sim: the same sources on the CPU, unchecked. Raises
    ConfigError where mlxserve is installed without the repository."""
    checkout = kernel_directory().parent
    if not (checkout / "kernels" / "sim").is_dir():
        raise ConfigError("MLXSERVE_KERNELS", "sim", "needs a checkout of the repository, which has the simulator")
    if str(checkout) not in sys.path:
        sys.path.append(str(checkout))  # the simulator is a package beside ours, not part of it
    simulator = importlib.import_module("kernels.sim").Simulator(sanitize=False)
    return cast(KernelFactory, importlib.import_module("kernels.sim.factory").simulated(simulator))


def strip_comments(text: str) -> str:
    """The text without comments and indentation, line by line: MLX hashes a kernel's source at every call."""
    return "\n".join(line.split("//")[0].strip() for line in text.split("\n"))


@cache
def read_kernel(name: str) -> KernelSource:
    """Reads ``NAME.metal``: lines ``//! word ...`` name the inputs, outputs and included headers; ``//! body`` begins
    the function's body."""
    directory = kernel_directory()
    header, _, body = (directory / f"{name}.metal").read_text("ascii").partition("//! body\n")
    words = {key: tuple(rest.split()) for key, rest in re.findall(r"^//! (\w+) (.*)$", header, re.M)}
    included = "".join((directory / path).read_text("ascii") for path in words.get("include", ()))
    return KernelSource(
        name,
        words["inputs"],
        words["outputs"],
        words.get("in_place", ()),
        strip_comments(included + header),
        strip_comments(body),
    )
