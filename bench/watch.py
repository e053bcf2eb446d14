"""What the engine pays for being watched: one snapshot and its message, at the rate that the page asks for.

    python -m bench.watch [--json]

The worst case of the defaults: a pool of 8,192 blocks, all in use by 16 sequences. Thread CPU time in the engine's
process; the page's own work happens elsewhere.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import msgspec

from bench.host import BLOCK_SIZE, NullRunner
from mlxserve.api.web.live import INTERVAL_S
from mlxserve.benchmark.machine import describe
from mlxserve.config import EngineConfig
from mlxserve.engine.core import Engine
from mlxserve.ipc.messages import SnapshotTaken
from mlxserve.types import Request, SamplingParams

SEQUENCES = 16
LENGTH = 8192  # tokens each
ROUNDS = 200


def full_engine() -> Engine:
    """Every block of the pool held, every sequence decoding."""
    blocks = SEQUENCES * LENGTH // BLOCK_SIZE
    config = EngineConfig(max_num_seqs=SEQUENCES, kv_blocks=blocks, prefill_chunk=2048, max_num_batched_tokens=8192)
    engine = Engine(
        NullRunner(blocks),  # type: ignore[arg-type]
        config,
        eos_token_ids=(),
        max_model_len=LENGTH,
        vocab_size=1000,
    )
    for number in range(SEQUENCES):
        prompt = tuple((7 * i + number) % 1000 for i in range(LENGTH - 2 * BLOCK_SIZE))
        engine.add(Request(request_id=str(number), prompt=prompt, params=SamplingParams(ignore_eos=True)))
    while any(view.state != "decode" for view in (*engine.snapshot().running, *engine.snapshot().waiting)):
        engine.step()
    return engine


def measure() -> dict[str, float]:
    engine = full_engine()
    encoder = msgspec.msgpack.Encoder()
    times, size = [], 0
    for number in range(ROUNDS):
        started = time.thread_time()
        size = len(encoder.encode(SnapshotTaken(number, engine.snapshot())))
        times.append(time.thread_time() - started)
    median = statistics.median(times)
    return {
        "snapshot_ms": round(median * 1e3, 3),
        "message_bytes": size,
        "per_second": 1 / INTERVAL_S,
        "share_percent": round(100 * median / INTERVAL_S, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    result = measure()
    if args.json:
        print(json.dumps({"machine": describe(), "result": result}, indent=1))
    else:
        print(f"{result['snapshot_ms']} ms a snapshot, {result['share_percent']}% of the engine's time while watched")


if __name__ == "__main__":
    main()
