"""Lengths and arrival times drawn from a seed. Knows nothing of requests."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from typing import Literal

from mlxserve.errors import ConfigError

Arrivals = Literal["closed", "poisson", "fixed"]
Draw = Callable[[random.Random], int]

_FORM = re.compile(r"(?P<a>\d+)(?:(?P<kind>[-~])(?P<b>\d+))?")


def lengths(flag: str, text: str) -> Draw:
    """ "N": always N. "A-B": uniform from A to B. "N~S": normal around N with standard deviation S, at least 1."""
    form = _FORM.fullmatch(text)
    if form is None or int(form["a"]) < 1:
        raise ConfigError(flag, text, "must be N, A-B or N~S with whole numbers from 1")
    a, b = int(form["a"]), int(form["b"] or 0)
    if form["kind"] == "-":
        if b < a:
            raise ConfigError(flag, text, "must not end below its beginning")
        return lambda rng: rng.randint(a, b)
    if form["kind"] == "~":
        return lambda rng: max(1, round(rng.gauss(a, b)))
    return lambda rng: a


def arrival_times(kind: Arrivals, rate: float, count: int, rng: random.Random) -> Sequence[float | None]:
    """Seconds from the start at which each request is sent; None in a closed loop, where a free client decides."""
    if kind == "closed":
        return [None] * count
    now, times = 0.0, list[float]()
    for _ in range(count):
        times.append(now)
        now += rng.expovariate(rate) if kind == "poisson" else 1 / rate
    return times
