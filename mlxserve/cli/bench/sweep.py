"""``mlxserve bench sweep``: the same load at several concurrencies, throughput against latency."""

from __future__ import annotations

import argparse
from dataclasses import replace

from mlxserve.benchmark.report import plot_lines, table, write_json
from mlxserve.cli.bench.load import (
    COLUMNS,
    add_load_arguments,
    load_config,
    measure,
    objective,
    print_failures,
    settings,
)
from mlxserve.cli.bench.outputs import check_outputs
from mlxserve.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_load_arguments(parser)
    parser.add_argument("--levels", default="1,2,4,8,16", metavar="N,N,...", help="default: 1,2,4,8,16")
    parser.set_defaults(mode=run)


def _levels(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        raise ConfigError("--levels", text, "must be whole numbers from 1 with commas between them")
    return [int(part) for part in parts]


def run(args: argparse.Namespace) -> int:
    """Each level has at least as many requests as clients. 1 if every request of a level failed."""
    config, limits, levels = load_config(args), objective(args), _levels(args.levels)
    check_outputs(args)
    rows, records = [], []
    for turn, level in enumerate(levels):
        step = replace(config, concurrency=level, seed=config.seed + turn, num_prompts=max(config.num_prompts, level))
        row, of_level = measure(step, limits)
        rows.append(row)
        records += of_level
    print(table(rows, COLUMNS))
    print_failures(records)
    if args.json:
        write_json(args.json, {"load": settings(config), "results": rows})
    if args.plot:
        drawn = [row for row in rows if row["output_tokens_per_s"] is not None and row["latency_ms_p50"] is not None]
        labels = ("end-to-end latency p50, ms", "output tokens/s")
        plot_lines(args.plot, drawn, "latency_ms_p50", "output_tokens_per_s", labels, "concurrency")
    return 1 if any(row["failed"] == row["requests"] for row in rows) else 0
