"""Counters and timings of one engine. Cheap to feed: nothing is computed before somebody asks.

Fed by the engine's thread. Any thread may read: a reader sees each figure whole, though not all of one instant.
"""

from __future__ import annotations

from collections import deque

from mlxserve.engine.sequence import Sequence
from mlxserve.types import FinishReason

WINDOW_S = 10
_REMEMBERED = 1024  # timings that percentiles are taken of


class Metrics:
    """Times are in seconds of one monotonic clock."""

    def __init__(self, now: float) -> None:
        self.started_s = now
        self.requests_total = 0
        self.requests_completed = 0
        self.requests_aborted = 0
        self.requests_failed = 0
        self.prefix_cache_hits = 0
        self.prefix_tokens_saved = 0
        self.preemptions = 0
        self.prefill_tokens = 0
        self.decode_tokens = 0
        self.steps = 0
        self.batch_size_last = 0
        self.batch_size_max = 0
        self.last_step_s = now
        self._ttft_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._tpot_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._decoded = [0] * (WINDOW_S + 1)  # by second, a ring
        self._second = int(now)

    def step(self, now: float, batch_size: int) -> None:
        """A step was launched with ``batch_size`` sequences."""
        self.steps += 1
        self.batch_size_last = batch_size
        if batch_size > self.batch_size_max:
            self.batch_size_max = batch_size
        self.last_step_s = now

    def decoded(self, now: float, tokens: int) -> None:
        self.decode_tokens += tokens
        self._turn(now)
        self._decoded[int(now) % len(self._decoded)] += tokens

    def _turn(self, now: float) -> None:
        """Empties the seconds of the ring that have passed unseen."""
        second = int(now)
        size = len(self._decoded)
        for passed in range(max(self._second, second - size) + 1, second + 1):
            self._decoded[passed % size] = 0
        self._second = max(second, self._second)

    def tokens_per_second(self, now: float) -> float:
        """Over the last WINDOW_S seconds, or since the start if that is less."""
        second, size = int(now), len(self._decoded)
        seen = range(max(self._second - size, second - WINDOW_S - 1) + 1, self._second + 1)
        window = min(now - self.started_s, WINDOW_S + now - second)
        return sum(self._decoded[s % size] for s in seen) / window if window > 0 else 0.0

    def first_token(self, seconds: float) -> None:
        self._ttft_s.append(seconds)

    def choice_done(self, seq: Sequence, reason: FinishReason, keep: int | None, now: float) -> None:
        """A choice ended (``state.live`` still counts it). One cut at ``keep`` tokens is complete: its stop string
        matched. A request counts as failed if one of its choices failed, else as aborted if one was aborted."""
        state = seq.state
        if state.first_token_s is not None and seq.num_output > 1:
            self._tpot_s.append((now - state.first_token_s) / (seq.num_output - 1))
        state.failed |= reason in ("error", "timeout")
        state.gave_up |= reason == "abort" and keep is None
        if state.live == 1:
            self.requests_failed += state.failed
            self.requests_aborted += state.gave_up and not state.failed
            self.requests_completed += not (state.failed or state.gave_up)

    def admitted(self, cached_tokens: int) -> None:
        """A request was admitted for the first time."""
        self.prefix_cache_hits += cached_tokens > 0
        self.prefix_tokens_saved += cached_tokens

    def ttft_ms(self, share: float) -> float | None:
        return _percentile(self._ttft_s, share)

    def tpot_ms(self, share: float) -> float | None:
        return _percentile(self._tpot_s, share)


def _percentile(seconds: deque[float], share: float) -> float | None:
    """Nearest rank, in milliseconds."""
    ordered = sorted(seconds)  # copies in one call: the feeding thread cannot come between
    if not ordered:
        return None
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] * 1000
