"""A chat over OpenAI's HTTP interface: is the server ready, which model has it, and one streamed answer.

Knows the wire and the clock; nothing of terminals or of how conversations are kept.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import httpx
import msgspec

from mlxserve.errors import ConfigError, MlxserveError

_HEALTH_TIMEOUT_S = 2.0
_CONNECT_TIMEOUT_S = 10.0


class _Health(msgspec.Struct):
    """What a server says of itself while it cannot serve."""

    progress: float | None = None


class ChatFailed(MlxserveError):
    """The server refused a request, failed in the middle of an answer, or went away."""


@dataclass(frozen=True, slots=True)
class NotReady:
    """Why a server cannot serve yet. ``progress``: the share of the model that is loaded, where it says so."""

    reason: str
    progress: float | None = None


@dataclass(slots=True)
class Answer:
    """An answer as far as it has come. Times are in seconds."""

    content: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    completion_tokens: int = 0  # frames with text until the server has said how many tokens it was
    first_after_s: float | None = None
    decode_s: float = 0.0  # from the first to the last token
    started: float = field(default_factory=time.perf_counter)

    def receive(self, chunk: Mapping[str, Any]) -> None:
        """Adds one frame. Raises ChatFailed when it is an error."""
        if error := chunk.get("error"):
            raise ChatFailed(str(error.get("message", "the server failed")))
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            content, reasoning = delta.get("content") or "", delta.get("reasoning_content") or ""
            if content or reasoning:
                self._tick()
                self.content += content
                self.reasoning += reasoning
            self.finish_reason = choice.get("finish_reason") or self.finish_reason
        if usage := chunk.get("usage"):
            self.prompt_tokens = usage.get("prompt_tokens")
            self.completion_tokens = usage.get("completion_tokens", self.completion_tokens)
            self.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0

    def _tick(self) -> None:
        now = time.perf_counter() - self.started
        if self.first_after_s is None:
            self.first_after_s = now
        self.decode_s = now - self.first_after_s
        self.completion_tokens += 1

    def facts(self) -> str:
        """Tokens, tokens/s, time to first token and what the prefix cache served, as far as they are known."""
        out = []
        if self.completion_tokens:
            out.append(f"{self.completion_tokens} token{'s' * (self.completion_tokens != 1)}")
        if self.completion_tokens > 1 and self.decode_s > 0:
            out.append(f"{(self.completion_tokens - 1) / self.decode_s:.1f}/s")
        if self.first_after_s is not None:
            seconds = self.first_after_s
            out.append(f"first in {seconds * 1000:.0f} ms" if seconds < 1 else f"first in {seconds:.1f} s")
        if self.prompt_tokens:
            share = 100 * self.cached_tokens / self.prompt_tokens
            out.append(f"{share:.0f}% of the prompt cached")
        return ", ".join(out)


class ChatClient:
    """Connections to one server; an async context manager. Raises ConfigError when the URL is none."""

    def __init__(self, base_url: str, api_key: str | None = None) -> None:
        address = base_url if "://" in base_url else f"http://{base_url}"
        self.base_url = address.rstrip("/").removesuffix("/v1")
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        # A long prompt may take minutes before its first token, so only connecting is limited.
        timeout = httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S)
        # The server is named by a flag; a proxy from the environment has no business between.
        try:
            self._http = httpx.AsyncClient(base_url=self.base_url, headers=headers, timeout=timeout, trust_env=False)
        except httpx.InvalidURL as error:
            raise ConfigError("--base-url", base_url, f"that is no address: {error}") from None
        if self._http.base_url.scheme not in ("http", "https"):
            raise ConfigError("--base-url", base_url, "must begin with http:// or https://")

    async def __aenter__(self) -> ChatClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def ready(self) -> NotReady | None:
        """None when the server says it can serve."""
        try:
            response = await self._http.get("/health", timeout=_HEALTH_TIMEOUT_S)
        except httpx.TimeoutException:
            return NotReady("it does not answer yet")
        except httpx.HTTPError as error:
            return NotReady(f"no server answers: {error}" if str(error) else "no server answers")
        if response.status_code in (200, 404):  # other servers of the same interface may have no /health
            return None
        return _not_ready(response)

    async def model(self) -> str:
        """The first model the server offers. Raises ChatFailed."""
        try:
            response = await self._http.get("/v1/models", timeout=_CONNECT_TIMEOUT_S)
            if response.status_code != 200:
                raise ChatFailed(_message(response))
            return str(response.json()["data"][0]["id"])
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            raise ChatFailed(f"{self.base_url} does not list its models: {error or type(error).__name__}") from None

    async def chat(
        self, model: str, messages: Sequence[Mapping[str, str]], sampling: Mapping[str, Any]
    ) -> AsyncGenerator[Answer, None]:
        """Yields one growing Answer after every frame. Closing the generator ends the request. Raises ChatFailed."""
        answer = Answer()
        body = {
            "model": model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
            **sampling,
        }
        try:
            async with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.status_code != 200:
                    await response.aread()
                    raise ChatFailed(_message(response))
                async for data in _events(response):
                    if data == "[DONE]":
                        return
                    answer.receive(json.loads(data))
                    yield answer
        except httpx.HTTPError as error:
            raise ChatFailed(f"The connection to {self.base_url} broke: {error or type(error).__name__}") from None
        except ValueError:
            raise ChatFailed(f"{self.base_url} sent something that is no answer.") from None
        raise ChatFailed("The connection closed before the answer was complete.")


def _not_ready(response: httpx.Response) -> NotReady:
    try:
        health = msgspec.json.decode(response.content, type=_Health)
    except msgspec.DecodeError:  # another server's answer
        health = _Health()
    loaded = "" if health.progress is None else f", {health.progress:.0%} of its model is loaded"
    return NotReady(f"it answers {response.status_code}{loaded}", health.progress)


def _message(response: httpx.Response) -> str:
    if response.status_code == 401:
        return "The server asks for an API key: give one with --api-key-file."
    try:
        return str(response.json()["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return f"The server answered {response.status_code}."


async def _events(response: httpx.Response) -> AsyncIterator[str]:
    """The data of each server-sent event."""
    data: list[str] = []
    async for line in response.aiter_lines():
        if not line and data:
            yield "\n".join(data)
            data = []
        elif line.startswith("data:"):
            data.append(line[5:].removeprefix(" "))
