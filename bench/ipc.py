"""What the messages between the server and the engine's process cost a step: ``python -m bench.ipc --json``.

One step's deltas of a batch are encoded, sent over a socket pair, received and decoded in one thread, so the figure is
the processor time of both sides together. Median over many steps; the goal is at most 60 us for 16 sequences.
"""

from __future__ import annotations

import argparse
import json
import socket
import statistics
import time

from mlxserve.benchmark.machine import describe
from mlxserve.ipc.messages import Channel, Deltas, FromEngine
from mlxserve.types import Delta

BATCHES = (1, 16, 64)
STEPS = 2000


def measure(batch: int) -> float:
    """Microseconds a step."""
    left, right = socket.socketpair()
    sender: Channel[FromEngine] = Channel(left, FromEngine)
    receiver: Channel[FromEngine] = Channel(right, FromEngine)
    incoming = receiver.receive()
    message = Deltas([Delta(request_id=f"chatcmpl-{i:032x}", token_ids=(1000 + i,)) for i in range(batch)])
    times = []
    for _ in range(STEPS):
        start = time.perf_counter()
        sender.send(message)
        received = next(incoming)
        times.append(time.perf_counter() - start)
    assert received == message
    sender.close()
    receiver.close()
    return statistics.median(times) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.ipc", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    args = parser.parse_args()
    result = {f"us_per_step_{batch}": round(measure(batch), 1) for batch in BATCHES}
    if args.json:
        print(json.dumps({"machine": describe(), **result}, indent=2))
    else:
        print("  ".join(f"{name} {value}" for name, value in result.items()))


if __name__ == "__main__":
    main()
