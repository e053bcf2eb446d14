"""Whether ``mx.compile`` pays for the elementwise parts of a decode step, on the device that MLX has here.

``python -m bench.mlx_compile --json``: microseconds a call, plain and compiled, of the activation times its gate, of
the residual and norm, and of the sampler's noise over a whole vocabulary; medians over calls in turn, the seconds of
the first call (on the CPU device MLX keeps what it compiled in the temporary directory), and how far the results
differ. Widths are smollm2-135m's; rows are sequences.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import mlx.core as mx
import numpy as np

from mlxserve.backends.mlx.ops import ACTIVATIONS
from mlxserve.backends.mlx.sampler import gumbel
from mlxserve.benchmark.machine import describe

WIDTH, HIDDEN, VOCAB = 576, 1536, 49152
ROWS = (1, 16)

Part = Callable[..., mx.array]


def gated(gate_up: mx.array) -> mx.array:
    gate, up = mx.split(gate_up, 2, axis=-1)
    return ACTIVATIONS["silu"](gate) * up


def residual_norm(x: mx.array, y: mx.array, weight: mx.array) -> mx.array:
    return mx.fast.rms_norm(x + y, weight, 1e-5)


def noise(*counter: mx.array) -> mx.array:
    return gumbel(counter, VOCAB)


def cases(rows: int) -> dict[str, tuple[Part, list[mx.array]]]:
    rng = np.random.default_rng(0)

    def random(*shape: int) -> mx.array:
        return mx.array(rng.normal(size=shape).astype(np.float32))

    counter = [mx.array(rng.integers(0, 2**32, (rows, 1)).astype(np.uint64)) for _ in range(4)]
    return {
        "activation": (gated, [random(rows, 2 * HIDDEN)]),
        "residual_norm": (residual_norm, [random(rows, WIDTH), random(rows, WIDTH), random(WIDTH)]),
        "noise": (noise, counter),
    }


def compare(part: Part, inputs: list[mx.array], calls: int) -> dict[str, Any]:
    arms = {"plain": part, "compiled": mx.compile(part)}
    plain = np.array(part(*inputs))
    started = time.perf_counter()
    compiled = np.array(arms["compiled"](*inputs))
    first_s = time.perf_counter() - started
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(calls):
        for name, arm in arms.items():
            started = time.perf_counter()
            mx.eval(arm(*inputs))
            seconds[name].append(time.perf_counter() - started)
    medians = {name: round(1e6 * statistics.median(times), 1) for name, times in seconds.items()}
    return {
        **medians,
        "ratio": round(medians["plain"] / medians["compiled"], 2),
        "first_call_s": round(first_s, 2),
        "largest_difference": float(np.abs(plain - compiled).max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.mlx_compile", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--calls", type=int, default=50)
    args = parser.parse_args()
    measured = {name: {str(rows): compare(*cases(rows)[name], args.calls) for rows in ROWS} for name in cases(1)}
    result = {"machine": describe(), "device": str(mx.default_device()), "unit": "us a call", "parts": measured}
    print(json.dumps(result, indent=2) if args.json else measured)


if __name__ == "__main__":
    main()
