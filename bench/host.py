"""Host cost of the engine's loop: what Python spends a step and a sequence while a device would be computing.

    python -m bench.host [--json] [--steps N]

A runner that computes nothing takes the batches, so that all the time measured is the loop's: scheduling, block tables,
flat batches, sampling inputs, commits, stops, deltas. Times are the thread's CPU time, so other work on the machine
does not count. Also: the match of a 32k-token prompt in a full prefix cache.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from dataclasses import asdict, dataclass

from mlxserve.benchmark.machine import describe
from mlxserve.config import EngineConfig
from mlxserve.engine.core import Engine
from mlxserve.engine.interfaces import ForwardBatch, Pending, Sampled, SampleInputs
from mlxserve.engine.kv_manager import PagedKVManager
from mlxserve.engine.sequence import RequestState, Sequence, make_choices
from mlxserve.types import Request, SamplingParams

BLOCK_SIZE = 16
TOKEN = (7,)
LIMIT_US = (60.0, 3.0)  # a step may cost this much, and this much more for each sequence


class NullRunner:
    """Samples the same token every time, at once."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = BLOCK_SIZE

    def forward(self, batch: ForwardBatch, prev: Pending | None) -> NullRunner:
        return self

    def start(self) -> None:
        return

    def sample(self, forward: NullRunner, inputs: SampleInputs) -> NullPending:
        count = len(inputs.rows)
        return NullPending(Sampled(tokens=[TOKEN] * count, logprobs=[None] * count))

    def close(self) -> None:
        return


@dataclass(frozen=True, slots=True)
class NullPending:
    sampled: Sampled

    def wait(self) -> Sampled:
        return self.sampled


@dataclass(frozen=True, slots=True)
class Row:
    """Microseconds a decode step of ``sequences`` sequences that are ``context`` tokens long when it begins."""

    sequences: int
    context: int
    penalties: bool
    median_us: float
    mean_us: float
    p99_us: float
    limit_us: float


def measure(sequences: int, context: int, steps: int, *, penalties: bool = False) -> Row:
    """Steady decoding: every sequence gets one token a step and crosses a block boundary every BLOCK_SIZE steps."""
    length = context + steps + 8
    blocks = sequences * (length // BLOCK_SIZE + 2) + sequences
    config = EngineConfig(
        max_num_seqs=sequences, prefill_chunk=8192, max_num_batched_tokens=1 << 20, prefix_caching=True
    )
    engine = Engine(NullRunner(blocks), config, eos_token_ids=(0,), max_model_len=length, vocab_size=50_000)
    params = SamplingParams(frequency_penalty=0.5 if penalties else 0.0)
    for i in range(sequences):
        prompt = tuple((i * 31 + j * 17) % 40_000 for j in range(context))
        engine.add(Request(request_id=f"request-{i}", prompt=prompt, params=params))
    while engine.stats().decode_tokens_total < sequences:
        engine.step()
    gc.collect()
    times = []
    for _ in range(steps):
        start = time.thread_time_ns()
        deltas = engine.step()
        times.append((time.thread_time_ns() - start) / 1000)
        assert len(deltas) == sequences
    times.sort()
    fixed, each = LIMIT_US
    return Row(
        sequences,
        context,
        penalties,
        statistics.median(times),
        statistics.fmean(times),
        times[int(0.99 * len(times))],
        fixed + each * sequences,
    )


def match_ms(tokens: int) -> dict[str, float]:
    """Milliseconds to match a prompt whose every block is cached: hashing included, and hashed before."""
    kv = PagedKVManager(tokens // BLOCK_SIZE + 1, BLOCK_SIZE)

    def sequence() -> Sequence:
        state = RequestState(Request(request_id="r", prompt=tuple(i % 40_000 for i in range(tokens))), 0.0)
        return make_choices(state, first_number=0, limit=tokens + 1, stop_ids=frozenset())[0]

    first = sequence()
    kv.allocate(first, tokens)
    first.scheduled = first.computed = tokens
    kv.publish(first)
    kv.free(first)
    cold, warm = [], []
    for _ in range(20):
        seq = sequence()
        for times in (cold, warm):
            start = time.thread_time_ns()
            hit = kv.match(seq)
            times.append((time.thread_time_ns() - start) / 1e6)
            assert hit.tokens == (tokens - 1) // BLOCK_SIZE * BLOCK_SIZE
    return {"tokens": tokens, "median_ms": statistics.median(cold), "again_ms": statistics.median(warm)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Host cost of the engine's loop")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--steps", type=int, default=500)
    args = parser.parse_args()
    cases = [(n, context, False) for n in (1, 4, 16, 64, 128, 256) for context in (100, 4000)] + [(64, 100, True)]
    rows = [measure(n, context, args.steps, penalties=penalties) for n, context, penalties in cases]
    match = match_ms(32_768)
    if args.json:
        result = {"decode_step": [asdict(row) for row in rows], "prefix_match": match}
        print(json.dumps({"machine": describe(), "result": result}, indent=1))
        return
    print(
        f"{'sequences':>9} {'context':>7} {'penalties':>9} {'median us':>9} {'mean us':>8} {'p99 us':>8} {'limit':>6}"
    )
    for row in rows:
        print(
            f"{row.sequences:9} {row.context:7} {'yes' if row.penalties else 'no':>9} {row.median_us:9.1f} "
            f"{row.mean_us:7.1f} {row.p99_us:7.1f} {row.limit_us:6.0f}"
        )
    print(
        f"prefix match of {match['tokens']:.0f} tokens: {match['median_ms']:.2f} ms, again {match['again_ms']:.2f} ms"
    )


if __name__ == "__main__":
    main()
