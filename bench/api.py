"""What the API costs without the model: a fake engine behind the real app under uvicorn, the client in another process.

``python -m bench.api --json``: the delay from a token (in the engine's thread) to its frame in the client's hands, one
frame a token; the most tokens/s without coalescing; and how long /health takes under load, also while a prompt of
30,000 tokens is templated and tokenised. The client's own share is in every number.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import random
import string
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from bench.api_client import Reading, get_json, open_stream, poll_health, read_all
from mlxserve.benchmark.machine import describe

SECONDS = 8.0
RATE = 100  # tokens/s a stream where the delay is measured


@contextmanager
def server() -> Iterator[int]:
    process = subprocess.Popen([sys.executable, "-m", "bench.api_server"], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        port = urlsplit(process.stdout.readline().strip()).port
        assert port is not None, "the server did not start"
        yield port
    finally:
        process.terminate()
        process.wait(timeout=60)


def percentile(values: list[float], share: float) -> float:
    """By nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def in_ms(values: list[float]) -> dict[str, float]:
    return {
        "p50_ms": round(1000 * percentile(values, 0.5), 3),
        "p99_ms": round(1000 * percentile(values, 0.99), 3),
        "max_ms": round(1000 * max(values), 3),
    }


def run_streams(port: int, streams: int, pace: str, tokens: int, name: str) -> list[Reading]:
    readings = [open_stream(port, f"{name}-{number}", pace, tokens) for number in range(streams)]
    read_all(readings)
    assert all(len(reading.arrivals) == tokens for reading in readings), "not one frame a token"
    return readings


def emitted_at(port: int, reading: Reading) -> list[float]:
    times = get_json(port, f"/times/{reading.request_id}")
    assert isinstance(times, list)
    return times


def delay(port: int, streams: int, *, steps: bool) -> dict[str, Any]:
    """From each token to its frame. The first second is left out: streams are still opening."""
    pace = f"rate={RATE}" + (",steps" if steps else "")
    readings = run_streams(port, streams, pace, int(RATE * SECONDS), f"delay-{streams}-{steps}")
    delays: list[float] = []
    for reading in readings:
        times = zip(emitted_at(port, reading), reading.arrivals, strict=True)
        delays += [there - here for here, there in times][RATE:]
    return {"streams": streams, "tokens": len(delays), "in_steps": steps, **in_ms(delays)}


def throughput(port: int, streams: int) -> dict[str, Any]:
    """Tokens/s of all streams together, each in a frame of its own, from the first token to the last frame."""
    tokens = 320_000 // streams
    readings = run_streams(port, streams, "rate=0", tokens, f"throughput-{streams}")
    began = min(emitted_at(port, reading)[0] for reading in readings)
    ended = max(reading.arrivals[-1] for reading in readings)
    return {"streams": streams, "tokens": streams * tokens, "tokens_per_s": round(streams * tokens / (ended - began))}


def health(port: int, *, big_prompt: bool) -> dict[str, Any]:
    """/health while 64 streams take 5,000 tokens/s together."""
    streams, rate = 64, 5000 / 64
    with ProcessPoolExecutor(2) as pool:
        polled = pool.submit(poll_health, port, SECONDS)
        prompts = pool.submit(send_big_prompts, port, SECONDS) if big_prompt else None
        run_streams(port, streams, f"rate={rate}", int(rate * (SECONDS + 1)), f"health-{big_prompt}")
        took = polled.result()
        sent = prompts.result() if prompts else 0
    return {"polls": len(took), "prompts_of_30k_tokens": sent, **in_ms(took)}


def send_big_prompts(port: int, seconds: float) -> int:
    """Chats of 30,000 tokens, one after another, of words that no tokenizer has in its cache."""
    until, sent = time.monotonic() + seconds, 0
    draw = random.Random(0)
    while time.monotonic() < until:
        words = ["".join(draw.choices(string.ascii_lowercase, k=draw.randint(2, 9))) for _ in range(8300)]
        turns = [{"role": ("user", "assistant")[i % 2], "content": " ".join(words[i::101])} for i in range(101)]
        body = {"messages": turns, "max_tokens": 1, "cache_salt": "rate=1000"}
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", "/v1/chat/completions", json.dumps(body))
        answer = json.load(connection.getresponse())
        assert 29_000 <= answer["usage"]["prompt_tokens"] <= 33_000, answer["usage"]
        sent += 1
    return sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON alone")
    args = parser.parse_args()
    with server() as port:
        run_streams(port, 4, "rate=0", 2000, "warm-up")
        results: dict[str, Any] = {
            "machine": describe(),
            "delay": [delay(port, streams, steps=steps) for streams in (1, 32) for steps in (True, False)],
            "throughput": [throughput(port, streams) for streams in (1, 64)],
            "health": health(port, big_prompt=False),
            "health_with_big_prompts": health(port, big_prompt=True),
        }
    if args.json:
        print(json.dumps(results, indent=2))
        return
    for name, value in results.items():
        for row in value if isinstance(value, list) else [value]:
            print(name, row)


if __name__ == "__main__":
    main()
