"""The engine's deltas -> events: text, log-probabilities and endings of each choice. The one source of every answer.

Streamed or folded, an answer is made of these events. Knows nothing of HTTP or of the shapes of OpenAI's objects.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass

import msgspec

from mlxserve.engine.interfaces import AsyncEngine
from mlxserve.errors import GenerationFailed, MlxserveError, RequestTimeout
from mlxserve.text.processor import TextProcessor
from mlxserve.text.stream import OutputStream
from mlxserve.types import CacheReport, Delta, FinishReason, Request, TokenLogprob, Usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One prompt of an API request: an engine request and how its output is read."""

    request: Request
    first_index: int = 0  # index in the answer of the request's choice 0
    echo: str | None = None  # the prompt's text, when the answer begins with it
    stop: tuple[str, ...] = ()
    starts_text: bool = False  # the output begins a text of its own instead of continuing the prompt


class Event(msgspec.Struct, frozen=True, gc=False):
    """What was added to one choice. ``logprobs`` has one entry a token of ``token_ids``; the entry of a prompt's first
    token is None."""

    index: int
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob | None, ...] | None = None
    finish_reason: FinishReason | None = None
    usage: Usage | None = None  # with finish_reason
    cache_report: CacheReport | None = None  # with finish_reason, when asked for
    is_prompt: bool = False  # an echo


class _Choice:
    """Reads one choice's token ids as text until a stop string, a stop token or a limit ends it."""

    __slots__ = ("_index", "_kept", "_output", "stopped")

    def __init__(self, index: int, output: OutputStream) -> None:
        self._index = index
        self._output = output
        self._kept = 0
        self.stopped = False  # by a stop string

    @property
    def kept(self) -> int:
        """Tokens that count so far."""
        return self._kept

    def feed(self, delta: Delta) -> Event | None:
        """None when the delta changes nothing that is shown."""
        if self.stopped:
            return self._closing(delta) if delta.finish_reason is not None else None
        reason = delta.finish_reason
        # The token that ended the choice is not text.
        piece = self._output.push(delta.token_ids[:-1] if reason == "stop" else delta.token_ids)
        text, logprobs, ids = piece.text, delta.logprobs, delta.token_ids
        if piece.stopped:
            self.stopped = True
            new = piece.kept - self._kept
            ids, logprobs = ids[:new], logprobs and logprobs[:new]
        self._kept = piece.kept
        if reason is None:
            return Event(self._index, text, ids, logprobs)
        if not self.stopped:
            text += self._output.finish()
        assert delta.usage is not None, "a finished choice has a usage"
        usage, reason = (self._counted(delta.usage), "stop") if self.stopped else (delta.usage, reason)
        return Event(self._index, text, ids, logprobs, reason, usage, delta.cache_report)

    def _closing(self, delta: Delta) -> Event:
        assert delta.usage is not None, "a finished choice has a usage"
        return Event(self._index, "", (), None, "stop", self._counted(delta.usage), delta.cache_report)

    def _counted(self, usage: Usage) -> Usage:
        """What was sampled past the stop string does not count, whether the engine heard of the stop in time or not."""
        return Usage(usage.prompt_tokens, self._kept, usage.cached_tokens)


async def events(engine: AsyncEngine, text: TextProcessor, job: Job) -> AsyncGenerator[Event, None]:
    """The events of one prompt; ends when all of its choices have. Closing it aborts the engine's request.

    Raises what the engine raises before its first delta, GenerationFailed and RequestTimeout at any time.
    """
    request = job.request
    choices = [
        _Choice(job.first_index + i, text.output(job.stop, request.params.min_tokens, starts_text=job.starts_text))
        for i in range(request.params.n)
    ]
    unfinished = len(choices)
    echoed = job.echo is None
    async with aclosing(engine.generate(request)) as deltas:
        async for delta in deltas:
            if delta.finish_reason in ("error", "timeout"):
                raise _failure(delta)
            if not echoed:
                echoed = True
                for event in _echo(job, delta):
                    yield event
            choice = choices[delta.index]
            was_stopped = choice.stopped
            shown = choice.feed(delta)
            if choice.stopped and not was_stopped and delta.finish_reason is None:
                engine.abort(request.request_id, delta.index, choice.kept)
            if shown is not None:
                yield shown
            unfinished -= delta.finish_reason is not None
            if not unfinished:
                return
    raise AssertionError("the engine ended a request before its choices")


def _echo(job: Job, delta: Delta) -> Iterable[Event]:
    """The prompt as the beginning of every choice."""
    assert job.echo is not None
    for i in range(job.request.params.n):
        yield Event(job.first_index + i, job.echo, job.request.prompt, delta.prompt_logprobs, is_prompt=True)


def _failure(delta: Delta) -> MlxserveError:
    if delta.finish_reason == "timeout":
        return RequestTimeout(delta.error or "The request's timeout passed before it finished.", param="timeout")
    return GenerationFailed(delta.error or "The computation of this request failed.")


def coalesce(waiting: Iterable[Event]) -> list[Event]:
    """The same events with those of one choice joined, in the order in which the choices appear.

    A prompt's echo stays apart from what follows it.
    """
    groups: dict[tuple[int, bool], list[Event]] = {}
    for event in waiting:
        groups.setdefault((event.index, event.is_prompt), []).append(event)
    return [_join(group) for group in groups.values()]


def _join(group: list[Event]) -> Event:
    if len(group) == 1:
        return group[0]
    last = group[-1]
    scored = [event for event in group if event.logprobs is not None]
    return Event(
        last.index,
        "".join([event.text for event in group]),
        tuple(token for event in group for token in event.token_ids),
        tuple(entry for event in scored for entry in event.logprobs or ()) if scored else None,
        last.finish_reason,
        last.usage,
        last.cache_report,
        last.is_prompt,
    )
