"""Whether the C++ operators run a model on this machine, and how its 4-bit codes are kept: chosen, or measured.

Knows no flags: whoever asks decides what a refusal means.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal, get_args

import torch

from mlxserve.backends.torch.native.backend import NativeBackend, covers
from mlxserve.backends.torch.native.build import BuildError, build
from mlxserve.backends.torch.native.library import Library, OperatorKind, OperatorStruct, StepStruct, WeightsStruct
from mlxserve.backends.torch.native.weights import Form, allocate, storage_of
from mlxserve.models.spec import ModelSpec

# The matrix that is timed: larger than most caches once unpacked, so that reading it counts as it does in a model.
OUTPUTS, INPUTS, GROUP = 49152, 576, 32
ROWS = (1, 16)  # one sequence decoding, and a full batch
REPEATS = 3


class Unavailable(Exception):
    """Why the C++ operators cannot run here, in a few words."""


def select(
    weights: Form | Literal["auto"], spec: ModelSpec, cache: Path, notify: Callable[[str], None] | None = None
) -> NativeBackend:
    """Builds the library into ``cache`` if it is not there, which ``notify`` is told. Raises Unavailable."""
    if not covers(spec):
        raise Unavailable(f"the C++ operators do not cover {spec.family}")
    try:
        library = Library(build(cache, notify=notify), torch.get_num_threads())
    except (BuildError, OSError) as error:
        raise Unavailable(str(error)) from error
    if weights != "auto":
        return NativeBackend(library, weights, f"{weights} weights")
    times = {form: measure(library, form) for form in get_args(Form)}
    best = min(get_args(Form), key=times.__getitem__)
    measured = ", ".join(f"{form} {1e3 * seconds:.2f} ms" for form, seconds in times.items())
    return NativeBackend(library, best, f"{best} weights (measured: {measured})")


def measure(library: Library, form: Form) -> float:
    """Seconds for products of ROWS rows with one large matrix of 4-bit codes, the best of REPEATS."""
    struct = WeightsStruct(storage=storage_of(4, form), outputs=OUTPUTS, inputs=INPUTS, group=GROUP)
    data = allocate(library, struct)
    data.fill_(0x11)
    total = 0.0
    for rows in ROWS:
        # x lies at the arena's beginning and the product after it.
        arena = torch.ones(rows * (INPUTS + OUTPUTS))
        step = StepStruct(arena=arena.data_ptr())
        step.batch.tokens = rows
        operators = (OperatorStruct * 1)()
        operators[0].kind, operators[0].width = OperatorKind.NORM_LINEAR, OUTPUTS
        operators[0].weights, operators[0].out = ctypes.addressof(struct), INPUTS
        total += min(_seconds(library, operators, step) for _ in range(REPEATS))
    return total


def _seconds(library: Library, operators: ctypes.Array[OperatorStruct], step: StepStruct) -> float:
    started = time.perf_counter()
    library.run(operators, step)
    return time.perf_counter() - started
