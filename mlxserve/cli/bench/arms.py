"""``mlxserve bench`` without a mode: engines compared on one prompt set, or the acceptance criteria."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from mlxserve.benchmark.arms import ARMS, BASELINES, Arm, Workload, run_arm
from mlxserve.benchmark.report import plot_rows, table, write_json
from mlxserve.benchmark.summary import summarise
from mlxserve.cli.bench.outputs import add_outputs, check_outputs, progress_bar
from mlxserve.cli.options import add_engine_options, add_model_options, engine_config, model_config
from mlxserve.errors import ConfigError, MlxserveError
from mlxserve.hub import Hub


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--num-prompts", type=int, default=16, metavar="N", help="default: 16")
    parser.add_argument("--max-tokens", type=int, default=64, metavar="N", help="default: 64")
    parser.add_argument("--arm", action="append", choices=[arm.name for arm in ARMS], help="only these arms of ours")
    parser.add_argument(
        "--baseline",
        action="append",
        choices=[arm.name for arm in BASELINES],
        default=[],
        help="also this engine, on the same prompts; may be repeated",
    )
    parser.add_argument("--acceptance", action="store_true", help="measure the acceptance criteria instead")
    add_outputs(parser)
    add_model_options(parser)
    add_engine_options(parser)
    parser.set_defaults(mode=run)


def run(args: argparse.Namespace) -> int:
    """1 if an arm failed; the others have run."""
    check_outputs(args)
    if args.acceptance:
        return _run_acceptance(args)
    for flag, value in (("--num-prompts", args.num_prompts), ("--max-tokens", args.max_tokens)):
        if value < 1:
            raise ConfigError(flag, value, "must be at least 1")
    workload = Workload(
        model=model_config(args), engine=engine_config(args), num_prompts=args.num_prompts, max_tokens=args.max_tokens
    )
    path = Hub().open_model(args.model).path  # a model that is not there is said once, before any arm
    chosen = [arm for arm in ARMS if not args.arm or arm.name in args.arm]
    chosen += [arm for arm in BASELINES if arm.name in args.baseline]
    rows = []
    for arm in chosen:
        missing = arm.missing(path)
        rows.append({"name": arm.name, "title": arm.title, "missing": missing} if missing else _row(arm, workload))
    print(table(rows))
    if args.json:
        write_json(args.json, {"workload": asdict(workload), "arms": rows})
    if args.plot:
        plot_rows(args.plot, rows)
    return 1 if any("failed_because" in row for row in rows) else 0


def _row(arm: Arm, workload: Workload) -> dict[str, Any]:
    row = {"name": arm.name, "title": arm.title}
    with progress_bar(workload.num_prompts, arm.title) as bar:
        try:
            result = run_arm(arm, workload, lambda count: bar.update(count) and None)
        except MlxserveError as error:
            return {**row, "failed_because": error.message}
    return {
        **row,
        **summarise(result.records, result.duration_s),
        "padded_tokens": result.padded_tokens,
        "peak_memory_mib": result.peak_memory_bytes / 2**20,
        "details": result.details,
    }


def _run_acceptance(args: argparse.Namespace) -> int:
    from mlxserve.benchmark.acceptance import measure

    found = measure(model_config(args))
    for one in found:
        sign = ">=" if one.at_least else "<="
        print(f"{one.number}. {one.name}: {one.value:.2f} ({sign} {one.limit:g}) {'met' if one.met else 'NOT met'}")
    print("2. greedy equals transformers: tests/e2e/test_parity.py")
    if args.json:
        write_json(args.json, {"criteria": [asdict(one) for one in found]})
    return 0 if all(one.met for one in found) else 1
