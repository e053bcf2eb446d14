"""``mlxserve bench serve``: load on a running server, and the flags that it shares with ``sweep``."""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from mlxserve.benchmark.distributions import Arrivals
from mlxserve.benchmark.load import LoadConfig, plan_load
from mlxserve.benchmark.report import plot_lines, table, write_json
from mlxserve.benchmark.summary import Objective, RequestRecord, summarise
from mlxserve.cli.bench.outputs import add_outputs, check_outputs, progress_bar, require
from mlxserve.errors import ConfigError

COLUMNS = (
    ("concurrency", "clients", "{}"),
    ("requests", "requests", "{}"),
    ("failed", "failed", "{}"),
    ("requests_per_s", "req/s", "{:.2f}"),
    ("output_tokens_per_s", "out tok/s", "{:.1f}"),
    ("ttft_ms_p50", "TTFT p50 ms", "{:.0f}"),
    ("ttft_ms_p95", "p95", "{:.0f}"),
    ("tpot_ms_p50", "TPOT p50 ms", "{:.1f}"),
    ("tpot_ms_p95", "p95", "{:.1f}"),
    ("latency_ms_p50", "E2E p50 ms", "{:.0f}"),
    ("latency_ms_p95", "p95", "{:.0f}"),
    ("cached_share", "cached", "{:.0%}"),
    ("goodput_per_s", "good req/s", "{:.2f}"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_load_arguments(parser)
    parser.add_argument("--requests", type=Path, metavar="FILE", help="write one JSON line a request")
    parser.set_defaults(mode=run)


def add_load_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--url", default="http://127.0.0.1:8000", help="default: http://127.0.0.1:8000")
    add("--model", dest="served_model", metavar="NAME", help="default: the first that the server lists")
    add("--num-prompts", type=int, default=16, metavar="N", help="default: 16")
    add(
        "--arrivals", choices=get_args(Arrivals), default="closed", help="at --rate, or closed (default): when one ends"
    )
    add("--rate", type=float, default=1.0, metavar="R", help="requests/s, unless closed (default: 1)")
    add("--concurrency", type=int, default=8, metavar="N", help="most requests in flight (default: 8)")
    add("--shared-prefix", type=float, default=0.0, metavar="X", help="share of each prompt that is equal (default: 0)")
    add("--prompt-tokens", default="128", metavar="D", help="N, A-B (uniform) or N~S (normal); about (default: 128)")
    add("--output-tokens", default="64", metavar="D", help="likewise, at most (default: 64)")
    add(
        "--ignore-eos", action="store_true", help="exactly --output-tokens, from servers that know the field ignore_eos"
    )
    add("--trace", type=Path, metavar="FILE", help='instead: JSON lines {"prompt", "max_tokens", "at"?}, at in seconds')
    add("--timeout", type=float, default=600.0, metavar="S", help="of a whole request (default: 600)")
    add("--seed", type=int, default=0, metavar="N", help="of lengths, words and arrivals (default: 0)")
    add("--slo-ttft", type=float, metavar="MS", help="goodput counts the requests within every limit that is given")
    add("--slo-tpot", type=float, metavar="MS", help="likewise")
    add("--slo-e2e", type=float, metavar="MS", help="likewise")
    add_outputs(parser)


def load_config(args: argparse.Namespace) -> LoadConfig:
    """Raises ConfigError naming the flag that is out of range."""
    return LoadConfig(
        url=args.url,
        model=args.served_model,
        num_prompts=args.num_prompts,
        arrivals=args.arrivals,
        rate=args.rate,
        concurrency=args.concurrency,
        shared_prefix=args.shared_prefix,
        prompt_tokens=args.prompt_tokens,
        output_tokens=args.output_tokens,
        ignore_eos=args.ignore_eos,
        trace=args.trace,
        timeout_s=args.timeout,
        seed=args.seed,
    )


def objective(args: argparse.Namespace) -> Objective | None:
    """The limits that were given, in seconds; None of none."""
    limits = []
    for flag, ms in (("--slo-ttft", args.slo_ttft), ("--slo-tpot", args.slo_tpot), ("--slo-e2e", args.slo_e2e)):
        if ms is not None and not 0 < ms < math.inf:
            raise ConfigError(flag, ms, "must be a number of milliseconds above 0")
        limits.append(None if ms is None else ms / 1000)
    return Objective(*limits) if any(limit is not None for limit in limits) else None


def measure(config: LoadConfig, limits: Objective | None) -> tuple[dict[str, Any], list[RequestRecord]]:
    """One run: its row of figures, and the requests."""
    require("httpx", "the load client")
    from mlxserve.benchmark.client import run_load

    requests = plan_load(config)
    begun = time.time()
    with progress_bar(len(requests), config.url) as bar:
        records, duration = asyncio.run(run_load(config, requests, lambda record: bar.update(1) and None))
    figures = summarise(records, duration, limits)
    return {"concurrency": config.concurrency, "begun_unix_s": begun, **figures}, records


def print_failures(records: Sequence[RequestRecord]) -> None:
    """Each distinct reason once, the commonest first."""
    for error, count in Counter(record.error for record in records if record.error).most_common():
        print(f"{count} failed: {error}")


def settings(config: LoadConfig) -> dict[str, Any]:
    """For the JSON file."""
    return {**asdict(config), "trace": str(config.trace or "")}


def run(args: argparse.Namespace) -> int:
    """1 if every request failed."""
    config, limits = load_config(args), objective(args)
    check_outputs(args, "--requests")
    row, records = measure(config, limits)
    print(table([row], COLUMNS))
    print_failures(records)
    if args.requests:
        args.requests.write_text("".join(json.dumps(asdict(record)) + "\n" for record in records))
    if args.json:
        write_json(args.json, {"load": settings(config), "result": row})
    if args.plot:
        _plot_requests(args.plot, records)
    return 1 if row["failed"] == row["requests"] else 0


def _plot_requests(path: Path, records: Sequence[RequestRecord]) -> None:
    """Each request's time to first token, over the moment it was sent."""
    points = sorted((r.sent_s, r.first_token_s * 1000) for r in records if r.first_token_s is not None)
    rows = [{"sent": sent, "ttft": ttft, "note": ""} for sent, ttft in points]
    plot_lines(path, rows, "sent", "ttft", ("sent at, s", "time to first token, ms"), "note")
