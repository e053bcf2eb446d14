"""What is counted and how it is shown: flat JSON for ``/stats``, Prometheus families for ``/metrics``.

The engine counts its own work; the API adds what only it sees: the distribution of the times to the first token and
between tokens, and what it refused. No value that a client chooses becomes a label.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mlxserve.engine.interfaces import AsyncEngine
from mlxserve.types import ModelInfo, Stats

_TTFT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TPOT_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0)


class Recorder:
    """Times of the requests that the API served. For the event loop's thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._ttft_histogram = Histogram(
            "mlxserve_time_to_first_token_seconds",
            "From the arrival of a request's body to its first token",
            buckets=_TTFT_BUCKETS,
            registry=registry,
        )
        self._tpot_histogram = Histogram(
            "mlxserve_time_per_output_token_seconds",
            "Mean time between the tokens of a request, after its first",
            buckets=_TPOT_BUCKETS,
            registry=registry,
        )
        self.rejected = 0  # requests answered with a 4xx
        self.failed = 0  # requests that ended with a 5xx or an error event

    def generated(self, first_s: float, rest_s: float, tokens: int) -> None:
        """A prompt's output is complete: its first token after ``first_s``, the other ones within ``rest_s``."""
        self._ttft_histogram.observe(first_s)
        if tokens > 1:
            self._tpot_histogram.observe(rest_s / (tokens - 1))

    def answered_error(self, status: int) -> None:
        """A request ended with this HTTP status, or with an error event that stands for it."""
        if status < 500:
            self.rejected += 1
        else:
            self.failed += 1


def flat(stats: Stats, model: str, recorder: Recorder) -> dict[str, object]:
    """The object of ``/stats``."""
    return {
        "uptime_s": round(stats.uptime_s, 3),
        "model": model,
        "requests_total": stats.requests_total,
        "requests_active": stats.requests_active,
        "requests_running": stats.requests_running,
        "requests_completed": stats.requests_completed,
        "requests_aborted": stats.requests_aborted,
        "requests_rejected": recorder.rejected,
        "queue_depth": stats.queue_depth,
        "errors_total": stats.errors_total,
        "ttft_ms": {"p50": stats.ttft_ms_p50, "p95": stats.ttft_ms_p95},
        "tpot_ms": {"p50": stats.tpot_ms_p50, "p95": stats.tpot_ms_p95},
        "tokens_per_sec": round(stats.tokens_per_sec, 3),
        "kv_blocks_total": stats.kv_blocks_total,
        "kv_blocks_used": stats.kv_blocks_used,
        "kv_blocks_cached": stats.kv_blocks_cached,
        "kv_blocks_free": stats.kv_blocks_free,
        "prefix_cache_hits": stats.prefix_cache_hits,
        "prefix_tokens_saved": stats.prefix_tokens_saved,
        "prefill_tokens_total": stats.prefill_tokens_total,
        "decode_tokens_total": stats.decode_tokens_total,
        "preemptions_total": stats.preemptions_total,
        "batch_size_last": stats.batch_size_last,
        "batch_size_max": stats.batch_size_max,
        "steps_total": stats.steps_total,
        "last_step_age_s": round(stats.last_step_age_s, 3),
    }


# (name without the prefix, help, field of Stats)
_COUNTERS = (
    ("requests_started", "Requests that the engine accepted", "requests_total"),
    ("requests_completed", "Requests that ran to their end", "requests_completed"),
    ("requests_aborted", "Requests ended by their client", "requests_aborted"),
    ("errors", "Requests whose computation failed", "errors_total"),
    ("prefix_cache_hits", "Requests that found blocks in the prefix cache", "prefix_cache_hits"),
    ("prefix_tokens_saved", "Prompt tokens that the prefix cache saved", "prefix_tokens_saved"),
    ("prefill_tokens", "Prompt tokens computed", "prefill_tokens_total"),
    ("decode_tokens", "Tokens sampled", "decode_tokens_total"),
    ("preemptions", "Sequences that gave up their blocks for others", "preemptions_total"),
    ("steps", "Steps of the scheduler", "steps_total"),
)
_GAUGES = (
    ("uptime_seconds", "Time since the engine was first ready", "uptime_s"),
    ("requests_active", "Requests in the engine, waiting or running", "requests_active"),
    ("requests_running", "Requests that are being computed", "requests_running"),
    ("queue_depth", "Requests that wait", "queue_depth"),
    ("tokens_per_second", "Tokens sampled a second, over the last 10 s", "tokens_per_sec"),
    ("kv_blocks_total", "Blocks of the KV pool", "kv_blocks_total"),
    ("kv_blocks_used", "Blocks referenced or cached", "kv_blocks_used"),
    ("kv_blocks_cached", "Blocks that only the prefix cache holds", "kv_blocks_cached"),
    ("kv_blocks_free", "Blocks that hold nothing", "kv_blocks_free"),
    ("batch_size_last", "Sequences in the last step", "batch_size_last"),
    ("batch_size_max", "Most sequences in one step", "batch_size_max"),
    ("last_step_age_seconds", "Time since the engine last stepped or looked for work", "last_step_age_s"),
)


class EngineCollector(Collector):
    """The engine's snapshot as Prometheus families, taken anew for every scrape."""

    def __init__(self, engine: AsyncEngine, info: ModelInfo, recorder: Recorder) -> None:
        self._engine = engine
        self._info = info
        self._recorder = recorder

    def describe(self) -> Iterable[Metric]:
        """Nothing: registering must not ask the engine."""
        return ()

    def collect(self) -> Iterable[Metric]:
        stats = self._engine.stats()
        info = self._info
        model = GaugeMetricFamily(
            "mlxserve_model_info", "The model served", labels=("model", "quantization", "backend", "dtype")
        )
        model.add_metric((info.name, info.quantization, info.backend, info.dtype), 1)
        yield model
        for name, text, field in _COUNTERS:
            yield CounterMetricFamily(f"mlxserve_{name}", text, value=getattr(stats, field))
        yield CounterMetricFamily(
            "mlxserve_http_rejected_requests", "Requests answered with a 4xx", value=self._recorder.rejected
        )
        yield CounterMetricFamily(
            "mlxserve_http_failed_requests",
            "Requests that ended with a 5xx or an error event",
            value=self._recorder.failed,
        )
        for name, text, field in _GAUGES:
            yield GaugeMetricFamily(f"mlxserve_{name}", text, value=getattr(stats, field))
