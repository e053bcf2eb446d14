"""What several engine processes counted, as one server's figures. Knows no process."""

from __future__ import annotations

from dataclasses import replace

from mlxserve.types import Stats

COUNTERS = (
    "requests_total",
    "requests_aborted",
    "requests_completed",
    "errors_total",
    "prefix_cache_hits",
    "prefix_tokens_saved",
    "prefill_tokens_total",
    "decode_tokens_total",
    "preemptions_total",
    "steps_total",
)


def added(stats: Stats, earlier: Stats) -> Stats:
    """``stats`` of a process, with what those before it counted. The gauges are its own."""
    sums = {name: getattr(stats, name) + getattr(earlier, name) for name in COUNTERS}
    return replace(stats, **sums, batch_size_max=max(stats.batch_size_max, earlier.batch_size_max))


def stopped(stats: Stats) -> Stats:
    """``stats`` once the process is gone: the requests that it held have failed. Idempotent."""
    return replace(
        stats,
        errors_total=stats.errors_total + stats.requests_active,
        requests_active=0,
        requests_running=0,
        queue_depth=0,
        tokens_per_sec=0.0,
    )
