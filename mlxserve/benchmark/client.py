"""A load client for any OpenAI-compatible server: sends requests when due, and times the pieces of the answers.

Knows HTTP and the completions endpoint's stream; nothing of this project's server.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any

import httpx

from mlxserve.benchmark.load import LoadConfig, PlannedRequest
from mlxserve.benchmark.summary import RequestRecord
from mlxserve.errors import MlxserveError

_ERROR_CHARS = 200


async def run_load(
    config: LoadConfig, requests: list[PlannedRequest], done: Callable[[RequestRecord], None]
) -> tuple[list[RequestRecord], float]:
    """Sends everything and returns the records, in the requests' order, and the run's duration in seconds.

    A failed request is a record with ``error``; only a server that cannot be asked for its models raises MlxserveError.
    """
    base = config.url.rstrip("/").removesuffix("/v1")
    limits = httpx.Limits(max_connections=config.concurrency, max_keepalive_connections=config.concurrency)
    async with httpx.AsyncClient(base_url=base, timeout=config.timeout_s, limits=limits) as client:
        sender = _Sender(client, config, config.model or await _first_model(client))
        free = asyncio.Semaphore(config.concurrency)
        start = time.perf_counter()

        async def one(request: PlannedRequest) -> RequestRecord:
            await asyncio.sleep(max(0.0, (request.at_s or 0.0) - (time.perf_counter() - start)))
            async with free:
                # A request that was due earlier has waited for a connection: the server's doing, so it counts.
                due = time.perf_counter() if request.at_s is None else start + request.at_s
                record = await sender.send(request, due)
            record.sent_s = due - start
            done(record)
            return record

        records = await asyncio.gather(*map(one, requests))
        return records, time.perf_counter() - start


async def _first_model(client: httpx.AsyncClient) -> str:
    try:
        reply = (await client.get("/v1/models")).raise_for_status()
        return str(reply.json()["data"][0]["id"])
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError) as error:
        said = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise MlxserveError(f"{client.base_url} does not answer as an OpenAI-compatible server: {said}") from None


class _Sender:
    """Sends requests one by one, and learns whether the server knows ``stream_options``."""

    def __init__(self, client: httpx.AsyncClient, config: LoadConfig, model: str) -> None:
        self._client = client
        self._model = model
        self._ignore_eos = config.ignore_eos
        self._timeout_s = config.timeout_s
        self._stream_options = True

    async def send(self, request: PlannedRequest, due: float) -> RequestRecord:
        """Times count from ``due``, on the clock of ``time.perf_counter``."""
        asked = self._stream_options
        record = RequestRecord()
        try:
            async with asyncio.timeout(self._timeout_s):
                refused = await self._stream(request, record, due)
                if refused and asked:
                    self._stream_options = False
                    record.error = None
                    await self._stream(request, record, due)
        except TimeoutError:
            record.error = f"no whole answer within {self._timeout_s:g} s"
        except httpx.HTTPError as error:
            record.error = f"{type(error).__name__}: {error}"[:_ERROR_CHARS]
        return record

    async def _stream(self, request: PlannedRequest, record: RequestRecord, due: float) -> bool:
        """Fills in ``record``. True if the server refused the request for its ``stream_options``."""
        body: dict[str, Any] = {
            "model": self._model,
            "prompt": request.prompt,
            "max_tokens": request.max_tokens,
            "temperature": 0,
            "stream": True,
        }
        if self._stream_options:
            body["stream_options"] = {"include_usage": True}
        if self._ignore_eos:
            body["ignore_eos"] = True
        async with self._client.stream("POST", "/v1/completions", json=body) as reply:
            if reply.status_code == 200:
                await _read_stream(reply, record, request.max_tokens, due)
                return False
            said = (await reply.aread()).decode("utf-8", "replace")
            record.error = f"HTTP {reply.status_code}: {said[:_ERROR_CHARS]}"
            return reply.status_code in (400, 422) and "stream_options" in said


async def _read_stream(reply: httpx.Response, record: RequestRecord, max_tokens: int, due: float) -> None:
    """Pieces may hold several tokens, so they are not counted: the tokens are those of ``usage``, or ``max_tokens``
    when the answer ended for its length, or unknown."""
    last, finish, ended = due, None, False
    async for line in reply.aiter_lines():
        if not line.startswith("data:"):
            continue
        payload = line[5:].strip()
        if ended := payload == "[DONE]":
            break
        event = _event(payload)
        if error := event.get("error"):
            record.error = str(error)[:_ERROR_CHARS]
            return
        if usage := event.get("usage"):
            record.prompt_tokens = usage.get("prompt_tokens")
            record.output_tokens = usage.get("completion_tokens")
            record.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        choices = event.get("choices") or []
        finish = next((choice["finish_reason"] for choice in choices if choice.get("finish_reason")), finish)
        if any(choice.get("text") for choice in choices):
            now = time.perf_counter()
            _piece(record, now - due, now - last)
            last = now
    if not ended and finish is None:
        record.error = "the stream ended before the answer did"
        return
    if record.output_tokens is None and finish == "length":
        record.output_tokens = max_tokens
    record.end_s = time.perf_counter() - due


def _event(payload: str) -> dict[str, Any]:
    """One event of the stream; an error of its own if it is no JSON object."""
    try:
        event = json.loads(payload)
    except ValueError:
        event = None
    return event if isinstance(event, dict) else {"error": f"an event that is no JSON object: {payload}"}


def _piece(record: RequestRecord, since_due: float, since_last: float) -> None:
    if record.first_token_s is None:
        record.first_token_s = since_due
    else:
        record.gaps_s.append(since_last)
