"""A load client for any OpenAI-compatible server: sends requests as arrivals say, and times every piece of the answers.

Knows HTTP and the completions endpoint's stream; nothing of this project's server.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from mlxserve.benchmark.distributions import Arrivals, arrival_times, lengths
from mlxserve.benchmark.prompts import unique_prompts
from mlxserve.benchmark.summary import RequestRecord
from mlxserve.errors import ConfigError, MlxserveError


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
    timeout_s: float = 600.0
    seed: int = 0

    def __post_init__(self) -> None:
        for flag, value in (("--num-prompts", self.num_prompts), ("--concurrency", self.concurrency)):
            if value < 1:
                raise ConfigError(flag, value, "must be at least 1")
        for flag, number in (("--rate", self.rate), ("--timeout", self.timeout_s)):
            if number <= 0:
                raise ConfigError(flag, number, "must be above 0")
        if not 0 <= self.shared_prefix < 1:
            raise ConfigError("--shared-prefix", self.shared_prefix, "must be from 0 to below 1")


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """One request of the load."""

    at_s: float
    prompt: str
    max_tokens: int


def plan_load(config: LoadConfig) -> list[PlannedRequest]:
    """The requests, the same for the same configuration. Raises ConfigError on a trace that cannot be read."""
    if config.trace is not None:
        return list(_read_trace(config.trace))
    rng = random.Random(config.seed)
    prompt, output = lengths("--prompt-tokens", config.prompt_tokens), lengths("--output-tokens", config.output_tokens)
    sizes = [prompt(rng) for _ in range(config.num_prompts)]
    times = arrival_times(config.arrivals, config.rate, config.num_prompts, rng)
    prompts = unique_prompts(sizes, config.shared_prefix, config.seed)
    return [PlannedRequest(at, text, output(rng)) for at, text in zip(times, prompts, strict=True)]


def _read_trace(path: Path) -> Iterator[PlannedRequest]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise ConfigError("--trace", path, f"cannot be read: {error.strerror}") from None
    for number, line in enumerate(lines, 1):
        try:
            entry = json.loads(line)
            yield PlannedRequest(float(entry.get("at", 0.0)), str(entry["prompt"]), int(entry["max_tokens"]))
        except (ValueError, TypeError, KeyError, AttributeError):
            raise ConfigError(
                "--trace", path, f'line {number} is not an object with "prompt", "max_tokens" and perhaps "at"'
            ) from None


async def run_load(
    config: LoadConfig, requests: list[PlannedRequest], done: Callable[[RequestRecord], None]
) -> tuple[list[RequestRecord], float]:
    """Sends everything and returns the records, in the requests' order, and the run's duration in seconds.

    A failed request is a record with ``error``; only a server that cannot be reached at all raises MlxserveError.
    """
    limits = httpx.Limits(max_connections=config.concurrency, max_keepalive_connections=config.concurrency)
    async with httpx.AsyncClient(base_url=config.url.rstrip("/"), timeout=config.timeout_s, limits=limits) as client:
        model = config.model or await _first_model(client)
        free = asyncio.Semaphore(config.concurrency)
        start = time.perf_counter()

        async def one(request: PlannedRequest) -> RequestRecord:
            await asyncio.sleep(max(0.0, request.at_s - (time.perf_counter() - start)))
            async with free:
                # With a rate, waiting for a free connection is the server's doing and counts.
                sent = time.perf_counter() if config.arrivals == "closed" else start + request.at_s
                record = await _send(client, model, request, sent)
            record.sent_s = sent - start
            done(record)
            return record

        records = await asyncio.gather(*map(one, requests))
        return records, time.perf_counter() - start


async def _first_model(client: httpx.AsyncClient) -> str:
    try:
        reply = (await client.get("/v1/models")).raise_for_status()
        return str(reply.json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError) as error:
        raise MlxserveError(f"{client.base_url} does not answer as an OpenAI-compatible server: {error}") from None


async def _send(client: httpx.AsyncClient, model: str, request: PlannedRequest, sent: float) -> RequestRecord:
    record = RequestRecord()
    body = {
        "model": model,
        "prompt": request.prompt,
        "max_tokens": request.max_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    try:
        async with client.stream("POST", "/v1/completions", json=body) as reply:
            if reply.status_code != 200:
                record.error = f"HTTP {reply.status_code}: {(await reply.aread())[:200].decode('utf-8', 'replace')}"
                return record
            await _read_stream(reply, record, sent)
    except httpx.HTTPError as error:
        record.error = f"{type(error).__name__}: {error}"
    return record


async def _read_stream(reply: httpx.Response, record: RequestRecord, sent: float) -> None:
    last, pieces = sent, 0
    async for line in reply.aiter_lines():
        if not line.startswith("data:"):
            continue
        payload = line[5:].strip()
        if payload == "[DONE]":
            break
        event: dict[str, Any] = json.loads(payload)
        if "error" in event:
            record.error = str(event["error"])[:200]
            return
        now = time.perf_counter()
        if usage := event.get("usage"):
            record.prompt_tokens = usage.get("prompt_tokens")
            record.output_tokens = usage.get("completion_tokens", 0)
            record.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        if any(choice.get("text") for choice in event.get("choices", ())):
            pieces += 1
            if record.first_token_s is None:
                record.first_token_s = now - sent
            else:
                record.gaps_s.append(now - last)
            last = now
    record.output_tokens = record.output_tokens or pieces  # a server that reports no usage
    record.end_s = time.perf_counter() - sent
