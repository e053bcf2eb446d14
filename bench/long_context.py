"""What long prompts do to a server: 32 requests of about 970 tokens of their own, sent at a fixed rate, 128 tokens out.

``python -m bench.long_context``: for each set of flags, starts ``mlxserve serve`` with smollm2-135m, sends the load by
``mlxserve bench serve``, and asks ``/stats`` four times a second. ``--write`` keeps the figures in bench/results and
draws the pictures of docs/long-context.md; ``--draw`` only draws them again, of the figures that are kept.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import long_context_plots
from mlxserve.benchmark.machine import describe
from mlxserve.benchmark.report import table
from tests.e2e.server import running_server

ROOT = Path(__file__).parent.parent
RESULT = ROOT / "bench" / "results" / "long_context.json"
SERVERS = {
    "defaults": (),
    "--kv-blocks 512": ("--kv-blocks", "512"),
    "--max-num-seqs 4": ("--max-num-seqs", "4"),
    "--prefill-chunk 128": ("--prefill-chunk", "128"),
    "--max-num-batched-tokens 528": ("--max-num-batched-tokens", "528"),
}
LOAD = (
    "--num-prompts 32 --arrivals fixed --rate 4 --concurrency 32 --prompt-tokens 952 --output-tokens 128 --ignore-eos"
)
WARM_UP = "--num-prompts 2 --prompt-tokens 200 --output-tokens 8"
POLL_S = 0.25
KEPT = (
    "queue_depth",
    "requests_running",
    "kv_blocks_used",
    "kv_blocks_cached",
    "kv_blocks_total",
    "prefill_tokens_total",
    "decode_tokens_total",
    "preemptions_total",
    "steps_total",
)
COLUMNS = (
    ("server", "server", "{}"),
    ("duration_s", "all done s", "{:.1f}"),
    ("output_tokens_per_s", "out tok/s", "{:.0f}"),
    ("ttft_ms_p50", "TTFT p50 ms", "{:.0f}"),
    ("ttft_ms_p95", "p95", "{:.0f}"),
    ("tpot_ms_p50", "TPOT p50 ms", "{:.1f}"),
    ("gap_ms_p99", "gap p99 ms", "{:.0f}"),
    ("preemptions", "preemptions", "{}"),
    ("steps", "steps", "{}"),
)


class Watcher(threading.Thread):
    """Asks ``/stats`` until it is told to stop."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url = url
        self._stop_asking = threading.Event()
        self.seen: list[dict[str, float]] = []

    def run(self) -> None:
        while not self._stop_asking.wait(POLL_S):
            with urllib.request.urlopen(f"{self._url}/stats", timeout=30) as reply:
                stats = json.load(reply)
            self.seen.append({"unix_s": time.time(), **{name: stats[name] for name in KEPT}})

    def stop(self) -> list[dict[str, float]]:
        self._stop_asking.set()
        self.join()
        return self.seen


def send(url: str, flags: str, scratch: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """``mlxserve bench serve``: its row, and a record a request."""
    out, lines = scratch / "out.json", scratch / "requests.jsonl"
    files = ["--json", str(out), "--requests", str(lines)]
    command = [sys.executable, "-m", "mlxserve", "bench", "serve", "--url", url, *flags.split(), *files]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return json.loads(out.read_text())["result"], [json.loads(line) for line in lines.read_text().splitlines()]


def measure(flags: tuple[str, ...], scratch: Path) -> dict[str, Any]:
    """One server under the load. ``stats``: a list for each name, counted from the load's beginning, as its seconds."""
    with running_server("--model", "smollm2-135m", "--backend", "torch", *flags) as server:
        send(server.base_url, WARM_UP, scratch)
        watcher = Watcher(server.base_url)
        watcher.start()
        row, requests = send(server.base_url, LOAD, scratch)
        time.sleep(2 * POLL_S)
        seen = watcher.stop()
        server.stop()
    begin, first = row["begun_unix_s"], seen[0]
    samples = [relative(one, first, begin) for one in seen]
    stats = {name: [sample[name] for sample in samples] for name in samples[0]}
    for request in requests:
        del request["gaps_s"]
    counted = {"preemptions": stats["preemptions_total"][-1], "steps": stats["steps_total"][-1]}
    return {"result": {**row, **counted}, "requests": requests, "stats": stats}


def relative(stats: Mapping[str, float], first: Mapping[str, float], begin: float) -> dict[str, float]:
    """Counters less what they were at first; the clock less the load's beginning."""
    counts = {name: stats[name] - (first[name] if name.endswith("_total") else 0) for name in KEPT}
    counts["kv_blocks_total"] = stats["kv_blocks_total"]  # a size, not a counter
    return {"at_s": round(stats["unix_s"] - begin, 3), **counts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="keep the figures and draw the pictures")
    parser.add_argument("--draw", action="store_true", help="measure nothing; draw the figures that are kept")
    args = parser.parse_args()
    if args.draw:
        long_context_plots.draw(json.loads(RESULT.read_text())["servers"])
        return
    with tempfile.TemporaryDirectory() as scratch:
        servers = {name: measure(flags, Path(scratch)) for name, flags in SERVERS.items()}
    print(table([{"server": name, **found["result"]} for name, found in servers.items()], COLUMNS))
    if args.write:
        content = {"machine": describe(), "load": LOAD, "servers": servers}
        RESULT.write_text(json.dumps(content, separators=(",", ":")) + "\n")
        long_context_plots.draw(servers)


if __name__ == "__main__":
    main()
