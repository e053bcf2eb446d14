"""Requests' timings into the figures of a report. Times are in seconds unless a name says otherwise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class RequestRecord:
    """One request as its client saw it. Times count from the moment it was sent."""

    sent_s: float = 0.0  # since the run's start
    first_token_s: float | None = None
    end_s: float | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None  # None: the server did not say
    cached_tokens: int | None = None
    error: str | None = None
    gaps_s: list[float] = field(default_factory=list)  # between pieces of the stream

    @property
    def tpot_s(self) -> float | None:
        """Time per output token after the first; None with fewer than two."""
        if self.first_token_s is None or self.end_s is None or (self.output_tokens or 0) < 2:
            return None
        assert self.output_tokens is not None
        return (self.end_s - self.first_token_s) / (self.output_tokens - 1)


def percentile(values: Sequence[float], share: float) -> float | None:
    """The value that ``share`` of the values do not exceed (nearest rank); None of nothing."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


@dataclass(frozen=True, slots=True)
class Objective:
    """What a request must meet to count as good; None: not asked for."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def met(self, record: RequestRecord) -> bool:
        if record.error is not None or record.first_token_s is None or record.end_s is None:
            return False
        pairs = ((self.ttft_s, record.first_token_s), (self.tpot_s, record.tpot_s), (self.e2e_s, record.end_s))
        return all(limit is None or value is None or value <= limit for limit, value in pairs)


def summarise(
    records: Sequence[RequestRecord], duration_s: float, objective: Objective | None = None
) -> dict[str, float | int | None]:
    """Rates over ``duration_s`` and percentiles over the requests that succeeded."""
    done = [record for record in records if record.error is None and record.end_s is not None]
    ttft = [record.first_token_s for record in done if record.first_token_s is not None]
    tpot = [value for record in done if (value := record.tpot_s) is not None]
    latency = [record.end_s for record in done if record.end_s is not None]
    gaps = [gap for record in done for gap in record.gaps_s]
    prompt = [record.prompt_tokens for record in done if record.prompt_tokens is not None]
    cached = [record.cached_tokens for record in done if record.cached_tokens is not None]
    counts = [record.output_tokens for record in done if record.output_tokens is not None]
    output = sum(counts) if len(counts) == len(done) else None  # a sum over some of them would say too little
    return {
        "requests": len(records),
        "failed": len(records) - len(done),
        "duration_s": duration_s,
        "requests_per_s": len(done) / duration_s,
        "output_tokens_per_s": None if output is None else output / duration_s,
        "total_tokens_per_s": None
        if output is None or len(prompt) < len(done)
        else (output + sum(prompt)) / duration_s,
        "ttft_ms_p50": _ms(percentile(ttft, 0.5)),
        "ttft_ms_p95": _ms(percentile(ttft, 0.95)),
        "tpot_ms_p50": _ms(percentile(tpot, 0.5)),
        "tpot_ms_p95": _ms(percentile(tpot, 0.95)),
        "gap_ms_p99": _ms(percentile(gaps, 0.99)),
        "latency_ms_p50": _ms(percentile(latency, 0.5)),
        "latency_ms_p90": _ms(percentile(latency, 0.9)),
        "latency_ms_p95": _ms(percentile(latency, 0.95)),
        "cached_share": sum(cached) / sum(prompt) if cached and len(cached) == len(prompt) and sum(prompt) else None,
        "goodput_per_s": sum(map(objective.met, records)) / duration_s if objective is not None else None,
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
