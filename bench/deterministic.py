"""What equal bits cost: ``--deterministic`` against the same without it, ``python -m bench.deterministic --json``.

Decode at batch 1 and 8 and a prefill of 512 tokens of smollm2-135m on the torch backend, twice: with the C++ operators,
which are the default where they can be built and have equal bits by nature, so that the flag should change nothing; and
with torch's own in float32, where it cuts every product into tiles of rows. The arms alternate in one run; medians, and
the ratio deterministic / plain.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.engines import decode_rate, prefill_rate
from mlxserve import LLM
from mlxserve.benchmark.machine import describe

RESULT = Path(__file__).parent / "results" / "deterministic.json"
OPERATORS = {"cpp": "int4", "torch": "float32"}  # cpu_weights of each; auto may choose otherwise in each arm
WORKLOADS: dict[str, Callable[[LLM], float]] = {
    "decode_1": lambda llm: decode_rate(llm, 1),
    "decode_8": lambda llm: decode_rate(llm, 8),
    "prefill_512": prefill_rate,
}

Rates = dict[str, float]


def measure(operators: str, rounds: int) -> dict[str, Any]:
    """Medians of both arms in tokens/s, and their ratio."""
    arms = {
        name: LLM(
            "smollm2-135m",
            backend="torch",
            cpu_weights=OPERATORS[operators],
            max_model_len=1024,
            prefix_caching=False,
            deterministic=name == "deterministic",
        )
        for name in ("plain", "deterministic")
    }
    samples: dict[tuple[str, str], list[float]] = {}
    for turn in range(rounds + 1):
        for arm, llm in arms.items():
            for name, run in WORKLOADS.items():
                rate = run(llm)
                if turn:  # the first round warms up
                    samples.setdefault((arm, name), []).append(rate)
    for llm in arms.values():
        llm.close()
    medians: dict[str, Rates] = {
        arm: {name: round(statistics.median(samples[arm, name]), 1) for name in WORKLOADS} for arm in arms
    }
    ratios = {name: round(medians["deterministic"][name] / medians["plain"][name], 2) for name in WORKLOADS}
    return {**medians, "ratios": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.deterministic", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--write", action="store_true", help=f"write it to bench/results/{RESULT.name} too")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    measured = {operators: measure(operators, args.rounds) for operators in OPERATORS}
    result = {"machine": describe(), "unit": "tokens/s", "rounds": args.rounds, "operators": measured}
    if args.write:
        RESULT.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    if args.json:
        print(json.dumps(result, indent=2))
        return
    for operators, rates in measured.items():
        print(f"{operators}: deterministic / plain", rates["ratios"])


if __name__ == "__main__":
    main()
