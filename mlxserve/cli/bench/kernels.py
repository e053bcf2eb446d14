"""``mlxserve bench kernels``: each Metal kernel's time beside that of MLX's operator."""

from __future__ import annotations

import argparse
from pathlib import Path

from tqdm import tqdm

from mlxserve.benchmark.kernels import COLUMNS, measure_kernels, require_gpu
from mlxserve.benchmark.report import table, write_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--write", type=Path, metavar="FILE", help="the faster ones as a table: $MLXSERVE_KERNEL_TABLE")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the times, with the machine and versions")
    parser.set_defaults(mode=run)


def run(args: argparse.Namespace) -> int:
    require_gpu()
    with tqdm(unit="kernel", leave=False) as bar:
        times = measure_kernels(bar.update)
    print(table(times.rows, COLUMNS))
    print(f"machine: {times.bandwidth_gb_s:.0f} GB/s")
    if args.write:
        args.write.write_text(times.table)
    if args.json:
        write_json(args.json, {"bandwidth_gb_s": times.bandwidth_gb_s, "kernels": times.rows})
    return 0
