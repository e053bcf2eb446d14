"""How good the decode kernels are, counted in the simulator: ``python -m bench.kernels --json``.

A table row is one decode step of one layer: a model, a number of rows (sequences) and a context. Ours and MLX's own
kernels do the same work side by side. Nothing here is a time: what a GPU makes of these counts only a Mac can show.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

from bench.kernel_counts import MODELS, Cost, Counter, Shape
from mlxserve.benchmark.machine import describe

ROWS = (1, 4, 8, 16)
CONTEXTS = (512, 4096, 32768)
RESULT = Path(__file__).parent / "results" / "kernels.json"
OTHER_SHARE = 0.05
LAUNCHES = {"default": 9, "in_place": 7}


def mlx_takes_vectors(rows: int, n: int, k: int) -> bool:
    """Whether MLX 0.32 multiplies row by row (qmv) on an M1 or M2; with more rows it takes tiles (qmm), which reduce by
    matrix operations and so need no simd operations."""
    limit = 14 if n <= 2048 and k <= 2048 else 10 if n <= 4096 and k <= 4096 else 6
    return rows < limit


def products(counter: Counter, shape: Shape, rows: int) -> dict[str, dict[str, Cost]]:
    """Each product of a layer, by us and by MLX."""
    table = {}
    for name, (n, k, form) in shape.products().items():
        qmv = counter.mlx_qmv(n, k, rows)
        table[name] = {
            "ours": counter.product(n, k, rows, form),
            "mlx": qmv if mlx_takes_vectors(rows, n, k) else counter.mlx_qmm(n, k, rows),
            "mlx_qmv": qmv,
        }
    return table


def total(parts: list[Cost]) -> Cost:
    result = Cost()
    for part in parts:
        result += part
    return result


def as_dicts(arms: dict[str, Cost]) -> dict[str, dict[str, float]]:
    return {arm: dataclasses.asdict(c) for arm, c in arms.items()}


def table_row(counter: Counter, shape: Shape, rows: int, context: int, kernels: dict[str, dict[str, Cost]]) -> Any:
    attention = {
        "ours": counter.attention(shape, rows, context),
        "mlx": counter.mlx_attention(shape, rows, context),
    }
    ours = total([p["ours"] for p in kernels.values()] + [attention["ours"], counter.rotation(shape, rows)])
    mlx = total([p["mlx"] for p in kernels.values()] + [attention["mlx"]])
    return {
        "model": shape.name,
        "rows": rows,
        "context": context,
        "ours": dataclasses.asdict(ours),
        "mlx": dataclasses.asdict(mlx),
        "attention": as_dicts(attention),
        "bars": bars(ours, mlx, attention, kernels),
    }


def bars(
    ours: Cost, mlx: Cost, attention: dict[str, Cost], kernels: dict[str, dict[str, Cost]]
) -> dict[str, bool | float]:
    """What the decode kernels have to keep; the share is of the streamed bytes."""
    return {
        "read_once": all(c.read == c.needed for c in (attention["ours"], *(p["ours"] for p in kernels.values()))),
        "other_share": round(ours.other / ours.needed, 4),
        "other_small": ours.other <= OTHER_SHARE * ours.needed,
        "fewer_simd_operations": ours.simd_operations < mlx.simd_operations,
        "attention_fewer": attention["ours"].simd_operations < attention["mlx"].simd_operations,
    }


def measure(models: list[Shape], rows: tuple[int, ...], contexts: tuple[int, ...]) -> dict[str, Any]:
    counter = Counter()
    table, layers = [], []
    for shape in models:
        for count in rows:
            kernels = products(counter, shape, count)
            layers.append({"model": shape.name, "rows": count} | {n: as_dicts(arms) for n, arms in kernels.items()})
            table += [table_row(counter, shape, count, context, kernels) for context in contexts]
    launches = {mode: counter.launches(MODELS[0], mode == "in_place") for mode in LAUNCHES}
    checks = ("read_once", "other_small", "fewer_simd_operations", "attention_fewer")
    passed = all(row["bars"][c] for row in table for c in checks)
    passed = passed and all(launches[mode] <= limit for mode, limit in LAUNCHES.items())
    return {
        "machine": describe(),
        "unit": "one layer, one decode step",
        "launches": launches,
        "passed": passed,
        "table": table,
        "products": layers,
    }


def line(row: dict[str, Any]) -> str:
    ours, mlx, bars = row["ours"], row["mlx"], row["bars"]
    return (
        f"{row['model']:<13}{row['rows']:>3} rows {row['context']:>6}"
        f"  MB {ours['read'] / 1e6:8.1f} (MLX {mlx['read'] / 1e6:8.1f})"
        f"  other {100 * bars['other_share']:4.1f}%  partials {ours['partials'] / 1e6:6.2f} MB"
        f"  simd {ours['simd_operations'] / 1e3:8.1f}k (MLX {mlx['simd_operations'] / 1e3:9.1f}k)"
        f"  8x8 {ours['matrix_operations'] / 1e3:8.0f}k"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.kernels", description=__doc__)
    parser.add_argument("--json", action="store_true", help=f"write {RESULT.parent.name}/{RESULT.name} and print it")
    parser.add_argument("--quick", action="store_true", help="the smallest model and context only")
    args = parser.parse_args()
    result = measure(MODELS[:1], ROWS, CONTEXTS[:1]) if args.quick else measure(MODELS, ROWS, CONTEXTS)
    if args.json:
        text = json.dumps(result, indent=1)
        if not args.quick:
            RESULT.parent.mkdir(exist_ok=True)
            RESULT.write_text(text + "\n")
        print(text)
    else:
        print("\n".join(line(row) for row in result["table"]))
        print(f"launches a layer: {result['launches']}; every bar passed: {result['passed']}")
    if not result["passed"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
