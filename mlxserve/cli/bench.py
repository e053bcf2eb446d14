"""``mlxserve bench``: engines compared on one prompt set, a load client, and throughput against latency."""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from tqdm import tqdm

from mlxserve.benchmark.acceptance import measure as measure_acceptance
from mlxserve.benchmark.arms import ARMS, BASELINES, Arm, Workload, run_arm
from mlxserve.benchmark.distributions import Arrivals
from mlxserve.benchmark.kernels import COLUMNS as KERNEL_COLUMNS
from mlxserve.benchmark.kernels import measure_kernels
from mlxserve.benchmark.load import LoadConfig, plan_load, run_load
from mlxserve.benchmark.report import plot_lines, plot_rows, table, write_json
from mlxserve.benchmark.summary import Objective, RequestRecord, summarise
from mlxserve.cli.options import add_engine_options, add_model_options, engine_config, model_config
from mlxserve.config import EngineConfig
from mlxserve.errors import ConfigError

_LOAD_COLUMNS = (
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
    modes = parser.add_subparsers(title="modes", metavar="MODE", help="serve, sweep, kernels; none: compare the arms")
    parser.set_defaults(mode=_run_arms)
    parser.add_argument("--num-prompts", type=int, default=16, metavar="N", help="default: 16")
    parser.add_argument("--max-tokens", type=int, default=64, metavar="N", help="default: 64")
    parser.add_argument("--arm", action="append", choices=[arm.name for arm in ARMS], help="only these arms of ours")
    parser.add_argument("--baseline", action="append", choices=[arm.name for arm in BASELINES], default=[])
    parser.add_argument("--acceptance", action="store_true", help="measure the acceptance criteria instead")
    _add_outputs(parser)
    add_model_options(parser)
    add_engine_options(parser)

    serve = modes.add_parser("serve", help="send load to a running server, this one or any OpenAI-compatible one")
    _add_load_arguments(serve)
    serve.add_argument("--requests", type=Path, metavar="FILE", help="write one JSON line a request")
    serve.set_defaults(mode=_run_load)

    sweep = modes.add_parser("sweep", help="throughput against latency over concurrency")
    _add_load_arguments(sweep)
    sweep.add_argument(
        "--levels", type=_levels, default=[1, 2, 4, 8, 16], metavar="N,N,...", help="default: 1,2,4,8,16"
    )
    sweep.set_defaults(mode=_run_sweep)

    kernels = modes.add_parser("kernels", help="each Metal kernel's time beside MLX's operator; needs a GPU")
    kernels.add_argument(
        "--write", type=Path, metavar="FILE", help="the faster ones as a table: $MLXSERVE_KERNEL_TABLE"
    )
    kernels.add_argument("--json", type=Path, metavar="FILE", help="write the times, with the machine and versions")
    kernels.set_defaults(mode=_run_kernels)


def _levels(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def _add_outputs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results, with the machine and versions")
    parser.add_argument("--plot", type=Path, metavar="FILE.png", help="draw the results")


def _add_load_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default="http://127.0.0.1:8000", help="default: http://127.0.0.1:8000")
    parser.add_argument("--model", dest="served_model", metavar="NAME", help="default: the first that the server lists")
    parser.add_argument("--num-prompts", type=int, default=16, metavar="N")
    parser.add_argument("--arrivals", choices=get_args(Arrivals), default="closed", help="closed loop, or at --rate")
    parser.add_argument("--rate", type=float, default=1.0, metavar="R", help="requests/s")
    parser.add_argument("--concurrency", type=int, default=8, metavar="N", help="most requests in flight")
    parser.add_argument(
        "--shared-prefix", type=float, default=0.0, metavar="X", help="share of each prompt that is equal"
    )
    parser.add_argument("--prompt-tokens", default="128", metavar="D", help="N, A-B (uniform) or N~S (normal)")
    parser.add_argument("--output-tokens", default="64", metavar="D", help="likewise")
    parser.add_argument("--trace", type=Path, metavar="FILE", help='JSON lines {"prompt", "max_tokens", "at"}')
    parser.add_argument("--timeout", type=float, default=600.0, metavar="S")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    parser.add_argument("--slo-ttft", type=float, metavar="MS", help="goodput counts requests within these limits")
    parser.add_argument("--slo-tpot", type=float, metavar="MS")
    parser.add_argument("--slo-e2e", type=float, metavar="MS")
    _add_outputs(parser)


def run(args: argparse.Namespace) -> int:
    return int(args.mode(args))


def _run_acceptance(args: argparse.Namespace) -> int:
    found = measure_acceptance(model_config(args))
    for one in found:
        sign = ">=" if one.at_least else "<="
        print(f"{one.number}. {one.name}: {one.value:.2f} ({sign} {one.limit:g}) {'met' if one.met else 'NOT met'}")
    print("2. greedy equals transformers: tests/e2e/test_parity.py")
    if args.json:
        write_json(args.json, {"criteria": [vars_of(one) for one in found]})
    return 0 if all(one.met for one in found) else 1


def _run_arms(args: argparse.Namespace) -> int:
    if args.acceptance:
        return _run_acceptance(args)
    for flag, value in (("--num-prompts", args.num_prompts), ("--max-tokens", args.max_tokens)):
        if value < 1:
            raise ConfigError(flag, value, "must be at least 1")
    workload = Workload(model=args.model, num_prompts=args.num_prompts, max_tokens=args.max_tokens, dtype=args.dtype)
    engine = engine_config(args)
    chosen = [arm for arm in ARMS if not args.arm or arm.name in args.arm]
    chosen += [arm for arm in BASELINES if arm.name in args.baseline]
    rows = [_arm_row(arm, workload, engine) for arm in chosen]
    print(table(rows))
    if args.json:
        flags = {"workload": vars_of(workload), "engine": vars_of(engine)}
        write_json(args.json, {**flags, "arms": rows})
    if args.plot:
        plot_rows(args.plot, rows)
    return 0


def _run_kernels(args: argparse.Namespace) -> int:
    with tqdm(unit="kernel", leave=False) as bar:
        times = measure_kernels(bar.update)
    print(table(times.rows, KERNEL_COLUMNS))
    print(f"machine: {times.bandwidth_gb_s:.0f} GB/s")
    if args.write:
        args.write.write_text(times.table)
    if args.json:
        write_json(args.json, {"bandwidth_gb_s": times.bandwidth_gb_s, "kernels": times.rows})
    return 0


def vars_of(settings: Any) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in settings.__slots__}


def _arm_row(arm: Arm, workload: Workload, engine: EngineConfig) -> dict[str, Any]:
    if missing := arm.missing():
        return {"name": arm.name, "title": arm.title, "missing": missing}
    with _bar(workload.num_prompts, arm.title) as bar:
        result = run_arm(arm, workload, engine, lambda count: bar.update(count) and None)
    return {
        "name": arm.name,
        "title": arm.title,
        **summarise(result.records, result.duration_s),
        "padded_tokens": result.padded_tokens,
        "peak_memory_mib": result.peak_memory_bytes / 2**20,
        "details": result.details,
    }


@contextmanager
def _bar(total: int, title: str) -> Iterator[Any]:
    with tqdm(total=total, desc=title, unit="req", leave=False, disable=None) as bar:
        yield bar


def _load_config(args: argparse.Namespace) -> LoadConfig:
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
        trace=args.trace,
        timeout_s=args.timeout,
        seed=args.seed,
    )


def _objective(args: argparse.Namespace) -> Objective | None:
    limits = [None if ms is None else ms / 1000 for ms in (args.slo_ttft, args.slo_tpot, args.slo_e2e)]
    return Objective(*limits) if any(limit is not None for limit in limits) else None


def _measure(config: LoadConfig, objective: Objective | None) -> tuple[dict[str, Any], list[RequestRecord]]:
    requests = plan_load(config)
    with _bar(len(requests), config.url) as bar:
        records, duration = asyncio.run(run_load(config, requests, lambda record: bar.update(1) and None))
    return {"concurrency": config.concurrency, **summarise(records, duration, objective)}, records


def _run_load(args: argparse.Namespace) -> int:
    config = _load_config(args)
    row, records = _measure(config, _objective(args))
    print(table([row], _LOAD_COLUMNS))
    if args.requests:
        args.requests.write_text("".join(json.dumps(record.as_dict()) + "\n" for record in records))
    if args.json:
        write_json(args.json, {"load": {**vars_of(config), "trace": str(config.trace or "")}, "result": row})
    if args.plot:
        plot_requests(args.plot, records)
    return 1 if row["failed"] == row["requests"] else 0


def plot_requests(path: Path, records: list[RequestRecord]) -> None:
    """Each request's time to first token, over the moment it was sent."""
    done = [record for record in records if record.first_token_s is not None]
    rows = [
        {"sent": r.sent_s, "ttft": (r.first_token_s or 0) * 1000, "note": ""}
        for r in sorted(done, key=lambda r: r.sent_s)
    ]
    plot_lines(path, rows, "sent", "ttft", ("sent at, s", "time to first token, ms"), "note")


def _run_sweep(args: argparse.Namespace) -> int:
    config = _load_config(args)
    rows = []
    for turn, level in enumerate(args.levels):
        step = replace(config, concurrency=level, seed=config.seed + turn, num_prompts=max(config.num_prompts, level))
        rows.append(_measure(step, _objective(args))[0])
    print(table(rows, _LOAD_COLUMNS))
    if args.json:
        write_json(args.json, {"load": {**vars_of(config), "trace": str(config.trace or "")}, "results": rows})
    if args.plot:
        labels = ("end-to-end latency p50, ms", "output tokens/s")
        plot_lines(args.plot, rows, "latency_ms_p50", "output_tokens_per_s", labels, "concurrency")
    return 0
