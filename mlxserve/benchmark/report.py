"""A bench's results as a table, a JSON file or a picture. Knows no engine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mlxserve.benchmark.machine import describe

Row = Mapping[str, Any]

# key in a row, heading, format
COLUMNS = (
    ("title", "arm", "{}"),
    ("requests_per_s", "req/s", "{:.2f}"),
    ("output_tokens_per_s", "out tok/s", "{:.1f}"),
    ("total_tokens_per_s", "all tok/s", "{:.1f}"),
    ("ttft_ms_p50", "TTFT p50 ms", "{:.0f}"),
    ("ttft_ms_p95", "p95", "{:.0f}"),
    ("tpot_ms_p50", "TPOT p50 ms", "{:.1f}"),
    ("tpot_ms_p95", "p95", "{:.1f}"),
    ("latency_ms_p50", "latency p50 ms", "{:.0f}"),
    ("latency_ms_p90", "p90", "{:.0f}"),
    ("cached_share", "cached", "{:.0%}"),
    ("padded_tokens", "padded", "{}"),
    ("peak_memory_mib", "peak MiB", "{:.0f}"),
)


def table(rows: Sequence[Row], columns: Sequence[tuple[str, str, str]] = COLUMNS) -> str:
    """Plain text, one line a row; "-" where a row cannot say. A row with ``missing`` or
    ``failed_because`` says why it has no figures."""
    lines = [[heading for _, heading, _ in columns]]
    notes = []
    for row in rows:
        if missing := row.get("missing"):
            notes.append(f"{row['title']}: not run, {missing}")
            continue
        if reason := row.get("failed_because"):
            notes.append(f"{row['title']}: {reason}")
            continue
        lines.append([_cell(row.get(key), form) for key, _, form in columns])
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    text = [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
    return "\n".join([*text, *notes])


def _cell(value: object, form: str) -> str:
    return "-" if value is None else form.format(value)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps({"machine": describe(), **content}, indent=2) + "\n")


def plot_rows(path: Path, rows: Sequence[Row]) -> None:
    """Output tokens/s of each arm as bars."""
    pyplot = _pyplot()
    shown = [row for row in rows if row.get("output_tokens_per_s") is not None]
    figure, axes = pyplot.subplots(figsize=(8, 0.6 * len(shown) + 1.2), layout="constrained")
    bars = axes.barh([row["title"] for row in shown], [row["output_tokens_per_s"] for row in shown])
    axes.bar_label(bars, fmt="%.0f", padding=3)
    axes.invert_yaxis()
    axes.set_xlabel("output tokens/s")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def plot_lines(path: Path, rows: Sequence[Row], x: str, y: str, labels: tuple[str, str], note: str) -> None:
    """One curve through the rows, each point annotated with ``row[note]``."""
    pyplot = _pyplot()
    figure, axes = pyplot.subplots(figsize=(7, 4.5), layout="constrained")
    axes.plot([row[x] for row in rows], [row[y] for row in rows], marker="o")
    for row in rows:
        axes.annotate(str(row[note]), (row[x], row[y]), textcoords="offset points", xytext=(6, 6))
    axes.set_xlabel(labels[0])
    axes.set_ylabel(labels[1])
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
