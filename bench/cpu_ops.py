"""What a step costs on the C++ operators alone: no scheduler, no sampling.

``python -m bench.cpu_ops --json``: smollm2-135m, decode steps of several batch sizes and a prefill of 512 tokens, for
both ways of keeping 4-bit codes. ``cpu_ms`` is the processor time of one thread doing all of it, which other programs
on the machine hardly change; ``wall_ms`` is the time on all threads, which they do. Medians of REPEATS.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from array import array
from collections.abc import Callable
from typing import Any

import torch

from mlxserve.backends.batch import HostBatch, host_batch
from mlxserve.backends.torch.native.backend import NativeBackend
from mlxserve.backends.torch.native.build import build
from mlxserve.backends.torch.native.library import Library
from mlxserve.backends.torch.native.weights import Form
from mlxserve.benchmark.machine import describe
from mlxserve.config import cache_directory
from mlxserve.engine.interfaces import ForwardBatch
from mlxserve.formats.checkpoint import open_checkpoint
from mlxserve.loader import load_model

BLOCK = 16
CONTEXT = 256
STEPS = {**{f"decode_{b}": (b, 1, CONTEXT) for b in (1, 4, 8, 16, 32, 64)}, "prefill_512": (1, 512, 512)}
REPEATS = 9
FORMS: tuple[Form, ...] = ("int4", "int8")


def step(sequences: int, tokens: int, context: int) -> HostBatch:
    """Each sequence computes its last ``tokens`` of ``context``; one row of logits a sequence."""
    b = ForwardBatch(*(array("q") for _ in range(3)), array("q", [0]), array("q"), [], [], [], array("q"))
    blocks = context // BLOCK
    for s in range(sequences):
        positions = range(context - tokens, context)
        b.tokens.extend(100 + (37 * p + 101 * s) % 40_000 for p in positions)
        b.positions.extend(positions)
        b.slots.extend(s * context + p for p in positions)
        b.query_starts.append(len(b.tokens))
        b.context_lens.append(context)
        b.block_tables.append(array("q", range(s * blocks, (s + 1) * blocks)))
        b.logit_rows.append(len(b.tokens) - 1)
    return host_batch(b, BLOCK)


def measure(threads: int, clock: Callable[[], float]) -> dict[str, dict[str, float]]:
    """Milliseconds of each step, by form."""
    library = Library(build(cache_directory()), threads)
    checkpoint, out = open_checkpoint("smollm2-135m"), {}
    for form in FORMS:
        backend = NativeBackend(library, form)
        model = load_model(checkpoint, backend)
        most = max(s * c for s, _, c in STEPS.values())
        pool = backend.new_pool(model.spec, most // BLOCK, BLOCK)
        out[form] = {}
        for name, shape in STEPS.items():
            times = []
            for _ in range(REPEATS + 1):
                host = step(*shape)
                started = clock()
                backend.forward(model.decoder, pool, host, None, False)
                times.append(clock() - started)
            out[form][name] = round(1e3 * statistics.median(times[1:]), 2)
    library.close()
    return out


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cpu_ops", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    result: dict[str, Any] = {
        "machine": describe(),
        "context": CONTEXT,
        "cpu_ms": measure(1, time.thread_time),
        "threads": threads,
        "wall_ms": measure(threads, time.perf_counter),
    }
    if args.json:
        print(json.dumps(result, indent=2))
        return
    for kind in ("cpu_ms", "wall_ms"):
        for form, times in result[kind].items():
            print(f"{kind} {form}  " + "  ".join(f"{name} {ms}" for name, ms in times.items()))


if __name__ == "__main__":
    main()
