"""What the load client sends: its settings, and the requests drawn from them or read from a trace. Knows no HTTP."""

from __future__ import annotations

import json
import math
import random
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlxserve.benchmark.distributions import Arrivals, arrival_times, lengths
from mlxserve.benchmark.prompts import unique_prompts
from mlxserve.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadConfig:
    """What is sent. Lengths as ``distributions.lengths`` reads them."""

    url: str
    model: str | None = None  # None: the first that the server lists
    num_prompts: int = 16
    arrivals: Arrivals = "closed"
    rate: float = 1.0  # requests/s, unless closed
    concurrency: int = 8  # most requests in flight
    shared_prefix: float = 0.0  # share of each prompt that is the same text
    prompt_tokens: str = "128"
    output_tokens: str = "64"
    trace: Path | None = None  # JSON lines {"prompt", "max_tokens", "at"?} instead of drawn ones
    ignore_eos: bool = False  # the servers that know this field give exactly the tokens asked for
    timeout_s: float = 600.0  # of a whole request, from its sending
    seed: int = 0

    def __post_init__(self) -> None:
        for flag, value in (("--num-prompts", self.num_prompts), ("--concurrency", self.concurrency)):
            if value < 1:
                raise ConfigError(flag, value, "must be at least 1")
        for flag, number in (("--rate", self.rate), ("--timeout", self.timeout_s)):
            if not 0 < number < math.inf:
                raise ConfigError(flag, number, "must be a number above 0")
        if not self.url.startswith(("http://", "https://")):
            raise ConfigError("--url", self.url, "must begin with http:// or https://")
        if not 0 <= self.shared_prefix < 1:
            raise ConfigError("--shared-prefix", self.shared_prefix, "must be from 0 to below 1")


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request of the load."""

    at_s: float | None  # since the run's start; None: as soon as a client is free
    prompt: str
    max_tokens: int


def plan_load(config: LoadConfig) -> list[PlannedRequest]:
    """The requests, the same for the same configuration but for a tag of this run. Raises ConfigError on a trace that
    cannot be read."""
    if config.trace is not None:
        if planned := list(_read_trace(config.trace)):
            return planned
        raise ConfigError("--trace", config.trace, "holds no request")
    rng = random.Random(config.seed)
    prompt, output = lengths("--prompt-tokens", config.prompt_tokens), lengths("--output-tokens", config.output_tokens)
    sizes = [prompt(rng) for _ in range(config.num_prompts)]
    times = arrival_times(config.arrivals, config.rate, config.num_prompts, rng)
    prompts = unique_prompts(sizes, config.shared_prefix, config.seed, secrets.token_hex(3))
    return [PlannedRequest(at, text, output(rng)) for at, text in zip(times, prompts, strict=True)]


def _read_trace(path: Path) -> Iterator[PlannedRequest]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("--trace", path, f"cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        try:
            yield _traced(json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError):
            wanted = 'an object with "prompt" (text), "max_tokens" (from 1) and perhaps "at" (seconds from 0)'
            raise ConfigError("--trace", path, f"line {number} is not {wanted}") from None


def _traced(entry: dict[str, Any]) -> PlannedRequest:
    """Raises ValueError, TypeError, KeyError or AttributeError when ``entry`` is not a request."""
    at, prompt, max_tokens = entry.get("at"), entry["prompt"], entry["max_tokens"]
    at_s = None if at is None else float(at)
    if not isinstance(prompt, str) or type(max_tokens) is not int or max_tokens < 1:
        raise ValueError
    if at_s is not None and not 0 <= at_s < math.inf:
        raise ValueError
    return PlannedRequest(at_s, prompt, max_tokens)
