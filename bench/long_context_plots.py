"""The pictures of docs/long-context.md, drawn of the figures that ``bench.long_context`` keeps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot
from matplotlib.axes import Axes

IMAGES = Path(__file__).parent.parent / "docs" / "images"
BIN_S = 2  # a step with prompts in it may take a second, and counts as it begins
POOLS = ("defaults", "--kv-blocks 512")

Server = Mapping[str, Any]


def draw(servers: Mapping[str, Server]) -> None:
    _first_tokens(servers, IMAGES / "long-context-ttft.png")
    _engine({name: servers[name] for name in POOLS}, IMAGES / "long-context-engine.png")


def _first_tokens(servers: Mapping[str, Server], path: Path) -> None:
    """Left: each request's time to first token. Right: what the flags do to the time between tokens."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained")
    for name, server in servers.items():
        points = sorted((one["sent_s"], one["first_token_s"]) for one in server["requests"] if one["first_token_s"])
        left.plot([x for x, _ in points], [y for _, y in points], marker=".", label=name)
    left.set_xlabel("sent at, s")
    left.set_ylabel("time to first token, s")
    left.legend(frameon=False, fontsize=8)
    results = [server["result"] for server in servers.values()]
    for shift, (key, label) in enumerate((("tpot_ms_p50", "TPOT p50"), ("gap_ms_p99", "longest gap, p99"))):
        bars = right.barh(
            [place + 0.4 * shift for place in range(len(results))], [r[key] for r in results], 0.38, label=label
        )
        right.bar_label(bars, fmt="%.0f", padding=3, fontsize=8)
    right.set_yticks([place + 0.2 for place in range(len(results))], list(servers), fontsize=8)
    right.invert_yaxis()
    right.set_xlabel("ms")
    right.legend(frameon=False, fontsize=8)
    _save(figure, (left, right), path)


def _engine(servers: Mapping[str, Server], path: Path) -> None:
    """A column a server: tokens computed a second, sequences, and blocks."""
    figure, axes = pyplot.subplots(3, len(servers), figsize=(10, 7.5), sharex="col", sharey="row", layout="constrained")
    for column, (name, server) in zip(axes.T, servers.items(), strict=True):
        stats = server["stats"]
        times = stats["at_s"]
        rates, sequences, blocks = column
        rates.set_title(name, fontsize=10)
        for key, label in (("prefill_tokens_total", "prefill"), ("decode_tokens_total", "decode")):
            points = list(_rates(stats, key))
            rates.step([x for x, _ in points], [y for _, y in points], where="post", label=label)
        sequences.plot(times, stats["requests_running"], label="running")
        sequences.plot(times, stats["queue_depth"], label="waiting")
        sequences.plot(times, stats["preemptions_total"], ":", label="preemptions so far")
        used, cached = stats["kv_blocks_used"], stats["kv_blocks_cached"]
        blocks.plot(times, [a - b for a, b in zip(used, cached, strict=True)], label="held")
        blocks.plot(times, used, label="held or cached")
        if (total := stats["kv_blocks_total"][0]) < 4096:
            blocks.axhline(total, color="grey", linestyle="--", label="pool")
        blocks.set_xlabel("s")
        for panel in column:
            panel.legend(frameon=False, fontsize=8)
    for panel, label in zip(axes[:, 0], ("tokens/s", "sequences", "KV blocks"), strict=True):
        panel.set_ylabel(label)
    _save(figure, axes.flat, path)


def _rates(stats: Mapping[str, Sequence[float]], key: str) -> Iterator[tuple[float, float]]:
    """(time, tokens a second until the next), over spans of at least BIN_S; at the end, 0."""
    times, counts = stats["at_s"], stats[key]
    last = 0
    for i, time in enumerate(times):
        if time - times[last] >= BIN_S or i == len(times) - 1:
            yield times[last], (counts[i] - counts[last]) / (time - times[last])
            last = i
    yield times[-1], 0.0


def _save(figure: Any, panels: Any, path: Path) -> None:
    panel: Axes
    for panel in panels:
        panel.set_xlim(left=0)
        if not panel.yaxis_inverted():
            panel.set_ylim(bottom=0)
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=90)
    pyplot.close(figure)
