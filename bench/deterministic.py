"""What equal bits cost: ``--deterministic`` against the plain operators, ``python -m bench.deterministic --json``.

Decode at batch 1 and 8 and a prefill of 512 tokens of smollm2-135m on the torch backend in float32, alternating in one
run; medians, and the ratio deterministic / plain.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable

from bench.decode import decode_rate, prefill_rate
from mlxserve import LLM
from mlxserve.benchmark.machine import describe

WORKLOADS: dict[str, Callable[[LLM], float]] = {
    "decode_1": lambda llm: decode_rate(llm, 1),
    "decode_8": lambda llm: decode_rate(llm, 8),
    "prefill_512": prefill_rate,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.deterministic", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    arms = {
        name: LLM(
            "smollm2-135m", backend="torch", max_model_len=1024, prefix_caching=False, deterministic=name == "tiled"
        )
        for name in ("plain", "tiled")
    }
    samples: dict[tuple[str, str], list[float]] = {}
    for turn in range(args.rounds + 1):
        for arm, llm in arms.items():
            for name, run in WORKLOADS.items():
                rate = run(llm)
                if turn:  # the first round warms up
                    samples.setdefault((arm, name), []).append(rate)
    for llm in arms.values():
        llm.close()
    medians = {arm: {name: round(statistics.median(samples[arm, name]), 1) for name in WORKLOADS} for arm in arms}
    ratios = {name: round(medians["tiled"][name] / medians["plain"][name], 2) for name in WORKLOADS}
    result = {"machine": describe(), "unit": "tokens/s", "medians": medians, "ratios": ratios}
    print(json.dumps(result, indent=2) if args.json else ratios)


if __name__ == "__main__":
    main()
