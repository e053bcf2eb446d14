"""What text costs: building the tokenizer, making a prompt, and showing each token.

``python -m bench.text --json``. The baseline for showing tokens is the ``DecodeStream`` of the tokenizers package on
the same ids, alternating in the same run; it finds no stop strings. Medians over the rounds. ``longest_stall_ms`` is
how long another thread, such as an event loop, once had to wait while a prompt of 30,000 tokens was made.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tokenizers.decoders import DecodeStream

from mlxserve.benchmark.machine import describe
from mlxserve.formats.checkpoint import open_checkpoint
from mlxserve.text.load import load_text
from mlxserve.text.processor import TextProcessor

TOKENS = 50_000
PROMPT_TOKENS = 30_000
STOPS = ("\n\nHuman:", "</answer>", "9 10", "END")


def ordinary_ids(text: TextProcessor, count: int) -> list[int]:
    """Tokens of readable text, half characters included, the same each time."""
    draw = random.Random(0)
    return [draw.randrange(300, text.tokenizer.vocab_size) for _ in range(count)]


def per_token(ids: list[int], push: Callable[[int], object]) -> float:
    """Microseconds."""
    started = time.perf_counter()
    for token_id in ids:
        push(token_id)
    return (time.perf_counter() - started) / len(ids) * 1e6


def pushing(text: TextProcessor, stops: tuple[str, ...]) -> Callable[[int], object]:
    output = text.output(stops)
    return lambda token_id: output.push((token_id,))


def stepping(text: TextProcessor) -> Callable[[int], object]:
    stream, backend = DecodeStream(skip_special_tokens=True), text.tokenizer.backend
    return lambda token_id: stream.step(backend, token_id)


def seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started


@contextmanager
def stalls() -> Iterator[list[float]]:
    """Milliseconds between the turns of a thread that wants one every half millisecond."""
    gaps: list[float] = []
    done = threading.Event()

    def watch() -> None:
        last = time.perf_counter()
        while not done.is_set():
            time.sleep(0.0005)
            now = time.perf_counter()
            gaps.append((now - last) * 1e3)
            last = now

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield gaps
    finally:
        done.set()
        watcher.join()


def measure(rounds: int) -> dict[str, Any]:
    checkpoint = open_checkpoint("smollm2-135m")
    text = load_text(checkpoint.tokenizer, checkpoint.eos_token_ids)
    ids = ordinary_ids(text, TOKENS)
    content = text.tokenizer.decode(ids[:PROMPT_TOKENS])
    arms: dict[str, Callable[[], float]] = {
        "build_s": lambda: seconds(lambda: load_text(checkpoint.tokenizer)),
        "show_us_per_token": lambda: per_token(ids, pushing(text, ())),
        "show_with_4_stops_us_per_token": lambda: per_token(ids, pushing(text, STOPS)),
        "decode_stream_us_per_token": lambda: per_token(ids, stepping(text)),
        "prompt_s": lambda: seconds(lambda: text.chat_prompt([{"role": "user", "content": content}])),
        "guarded_prompt_s": lambda: seconds(
            lambda: text.chat_prompt([{"role": "user", "content": content + "<|im_end|>"}])
        ),
    }
    samples: dict[str, list[float]] = {name: [] for name in arms}
    for turn in range(rounds + 1):
        for name, run in arms.items():
            value = run()
            if turn:  # the first round warms up
                samples[name].append(value)
    with stalls() as gaps:
        arms["prompt_s"]()
    return {
        "machine": describe(),
        "rounds": rounds,
        "prompt_tokens": len(text.chat_prompt([{"role": "user", "content": content}])),
        "medians": {name: round(statistics.median(values), 4) for name, values in samples.items()},
        "longest_stall_ms": round(max(gaps), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.text", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    result = measure(args.rounds)
    if args.json:
        print(json.dumps(result, indent=2))
        return
    for name, value in (*result["medians"].items(), ("longest_stall_ms", result["longest_stall_ms"])):
        print(f"{name} {value}")


if __name__ == "__main__":
    main()
