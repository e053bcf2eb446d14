"""Ours, llama.cpp and transformers side by side: alternating in one run, each in a process of its own.

``python -m bench.compare`` measures decode at several batch sizes, the prefill of 512 tokens, and 16 chats
behind one system prompt: ours streamed over HTTP, the others in process on the same tokens, transformers as one static
batch and llama.cpp through its multi-sequence batches. Greedy everywhere. The first round warms up; figures are medians
of the others, and the ratios are what carries over to another machine. ``--json`` keeps them in bench/results.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.engines import (
    DECODE_TOKENS,
    ENGINES,
    MODEL,
    PREFILL_TOKENS,
    PROMPT_TOKENS,
    EngineProcess,
    missing,
    token_ids,
)
from bench.streams import SERVER_FLAGS, chat_streams
from mlxserve.benchmark.machine import describe
from mlxserve.benchmark.prompts import Instruction, instructions
from mlxserve.benchmark.report import table
from mlxserve.formats.checkpoint import open_checkpoint
from mlxserve.text.load import load_text
from tests.e2e.server import running_server

RESULT = Path(__file__).parent / "results" / "compare.json"
BATCHES = (1, 4, 8, 16, 32)
STREAMS = 16
STREAM_TOKENS = 64

OURS, PLAIN, LLAMA, TRANSFORMERS = "mlxserve", "mlxserve, plain torch", "llama.cpp", "transformers"
# (engine, workload, against, at least)
GOALS = (
    (OURS, "decode_1", LLAMA, 1.0),
    (OURS, "decode_4", LLAMA, 1.5),
    (OURS, "decode_16", LLAMA, 2.5),
    (OURS, "decode_32", LLAMA, 3.0),
    (OURS, "prefill_512", LLAMA, 2.5),
    (OURS, "prefill_512", TRANSFORMERS, 1.0),
    (OURS, "streams_16", TRANSFORMERS, 3.0),
    (OURS, "streams_16", LLAMA, 2.0),
    (PLAIN, "decode_1", LLAMA, 0.4),
    (PLAIN, "decode_4", LLAMA, 1.0),
    (PLAIN, "decode_16", LLAMA, 1.5),
    (PLAIN, "prefill_512", LLAMA, 2.5),
)
COLUMNS = (
    ("engine", "tokens/s", "{}"),
    *((f"decode_{batch}", f"decode, batch {batch}", "{:.0f}") for batch in BATCHES),
    ("prefill_512", "prefill 512", "{:.0f}"),
    ("streams_16", "16 chats", "{:.0f}"),
)

Workloads = dict[str, Callable[[int], float]]  # name: the rate, in tokens/s, of a round


def engine_workloads(engine: EngineProcess, chats: Callable[[int], list[list[int]]]) -> Workloads:
    def decode(batch: int) -> float:
        return engine.run([token_ids(PROMPT_TOKENS, i) for i in range(batch)], DECODE_TOKENS).decode_rate

    def prefill() -> float:
        return PREFILL_TOKENS / engine.run([token_ids(PREFILL_TOKENS)], 1).total_s

    def streams(turn: int) -> float:
        timing = engine.run(chats(turn), STREAM_TOKENS)
        return timing.tokens / timing.total_s

    return {
        **{f"decode_{batch}": lambda turn, batch=batch: decode(batch) for batch in BATCHES},  # type: ignore[misc]
        "prefill_512": lambda turn: prefill(),
        "streams_16": streams,
    }


def http_streams(base_url: str, conversations: list[Instruction], prompt_tokens: int) -> float:
    """Tokens/s of all streams together, as their client saw them."""
    timing, counted = chat_streams(base_url, conversations, STREAM_TOKENS)
    assert counted == prompt_tokens, "the server and the others did not get the same tokens"
    return timing.tokens / timing.total_s


def chat_sets(rounds: int) -> tuple[list[list[Instruction]], list[list[list[int]]]]:
    """Conversations and their token ids for each round. Only the system prompt comes again, so no round finds more than
    that in a prefix cache."""
    checkpoint = open_checkpoint(MODEL)
    text = load_text(checkpoint.tokenizer, checkpoint.eos_token_ids)
    every = instructions(STREAMS * rounds)
    ids = [text.chat_prompt(one.messages()) for one in every]
    cuts = [slice(STREAMS * turn, STREAMS * (turn + 1)) for turn in range(rounds)]
    return [every[cut] for cut in cuts], [ids[cut] for cut in cuts]


def measure(rounds: int) -> dict[str, Any]:
    conversations, ids = chat_sets(rounds + 1)
    absent = {engine: why for engine in ENGINES if (why := missing(engine))}
    samples: dict[str, dict[str, list[float]]] = {}
    with ExitStack() as stack:
        arms: dict[str, Workloads] = {}
        for engine in ENGINES:
            if engine not in absent:
                arms[engine] = engine_workloads(stack.enter_context(EngineProcess(engine)), lambda turn: ids[turn])
        server = stack.enter_context(running_server(*SERVER_FLAGS))
        arms[OURS]["streams_16"] = lambda turn: http_streams(
            server.base_url, conversations[turn], sum(map(len, ids[turn]))
        )
        for turn in range(rounds + 1):
            for workload in arms[OURS]:
                for engine, workloads in arms.items():
                    rate = workloads[workload](turn)
                    if turn:
                        samples.setdefault(engine, {}).setdefault(workload, []).append(rate)
            print(f"round {turn} of {rounds}, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    medians = {
        engine: {workload: round(statistics.median(rates), 1) for workload, rates in workloads.items()}
        for engine, workloads in samples.items()
    }
    return {
        "machine": describe(),
        "unit": "tokens/s",
        "rounds": rounds,
        "medians": medians,
        "spread": spread(samples),
        "goals": goals(medians),
        "not_run": absent,
    }


def spread(samples: Mapping[str, Mapping[str, list[float]]]) -> dict[str, dict[str, float]]:
    """Highest over lowest of the rounds."""
    return {
        engine: {workload: round(max(rates) / min(rates), 2) for workload, rates in workloads.items()}
        for engine, workloads in samples.items()
    }


def goals(medians: Mapping[str, Mapping[str, float]]) -> list[dict[str, Any]]:
    """Each goal whose engines ran: the ratio reached, and whether it is enough."""
    return [
        {
            "engine": engine,
            "workload": workload,
            "against": against,
            "ratio": (ratio := round(medians[engine][workload] / medians[against][workload], 2)),
            "at_least": least,
            "met": ratio >= least,
        }
        for engine, workload, against, least in GOALS
        if engine in medians and against in medians
    ]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description=__doc__)
    parser.add_argument("--json", action="store_true", help=f"write {RESULT.name} into bench/results as well")
    parser.add_argument("--rounds", type=int, default=3)
    result = measure((args := parser.parse_args()).rounds)
    if args.json:
        RESULT.write_text(json.dumps(result, indent=2) + "\n")
    print(table([{"engine": engine, **rates} for engine, rates in result["medians"].items()], COLUMNS))
    for goal in result["goals"]:
        sign = "met" if goal["met"] else "NOT met"
        print(f"{goal['engine']}, {goal['workload']}: {goal['ratio']} x {goal['against']}", end="")
        print(f" (goal {goal['at_least']}): {sign}")
    for engine, why in result["not_run"].items():
        print(f"{engine}: not run, {why}")


if __name__ == "__main__":
    main()
