"""Events -> the bytes of a stream, frame by frame, and -> the body of an answer that is not streamed.

A frame is a prefix made once a choice, the text as JSON, and a suffix: nothing else happens for a token. The types in
``answers`` say what the bytes must decode to (pinned by tests/api/test_frames.py).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from mlxserve.api.answers import PromptDetails, UsageInfo
from mlxserve.api.events import Event
from mlxserve.errors import MlxserveError
from mlxserve.types import CacheReport, Usage

UsageFrames = Literal["final", "extra", "none"]

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"

encode = msgspec.json.Encoder().encode

# Line ends for some readers of lines, though neither JSON nor server-sent events count them as such.
_LINE_ENDS = (("\u2028".encode(), b"\\u2028"), ("\u2029".encode(), b"\\u2029"), ("\x85".encode(), b"\\u0085"))


def json_text(text: str) -> bytes:
    """A JSON string on one line."""
    encoded = encode(text)
    if not text.isascii():
        for raw, escaped in _LINE_ENDS:
            encoded = encoded.replace(raw, escaped)
    return encoded


def error_event(error: MlxserveError) -> bytes:
    return b"event: error\ndata: " + encode(error.body()) + b"\n\n"


@dataclass(frozen=True, slots=True)
class Ending:
    """What is known once every choice has ended."""

    usage: Usage
    cache_reports: list[CacheReport] | None = None

    def usage_info(self) -> UsageInfo:
        usage = self.usage
        return UsageInfo(
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            total_tokens=usage.prompt_tokens + usage.completion_tokens,
            prompt_tokens_details=PromptDetails(cached_tokens=usage.cached_tokens),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What every frame of an answer repeats."""

    id: str
    created: int
    model: str
    choices: int
    usage: UsageFrames = "final"

    def prefix(self, kind: str) -> bytes:
        return (
            b'data: {"id":' + encode(self.id) + b',"object":"' + kind.encode() + b'","created":' + b"%d" % self.created
            + b',"model":' + encode(self.model) + b',"choices":['
        )  # fmt: skip


class Shape(ABC):
    """One answer in the form of one endpoint. Not thread-safe: frames of a choice must be made in order."""

    def __init__(self, head: Head, kind: str) -> None:
        self._head = head
        self._prefix = head.prefix(kind)
        self._end = b'],"usage":null}\n\n' if head.usage == "extra" else b"]}\n\n"

    @abstractmethod
    def opening(self) -> bytes:
        """What a stream begins with."""

    @abstractmethod
    def frame(self, event: Event, end: bytes) -> bytes:
        """The event's frames, the last of which closes with ``end``; b"" when there is nothing to show."""

    @abstractmethod
    def body(self, events: Sequence[Event], ending: Ending) -> bytes:
        """The whole answer, of all its events."""

    def frames(self, events: Iterable[Event], ending: Ending | None = None) -> bytes:
        """``ending`` with the last events of all: the usage goes where the request wants it, and the stream ends."""
        if ending is None:
            return b"".join([self.frame(event, self._end) for event in events])
        *earlier, last = events
        parts = [self.frame(event, self._end) for event in earlier]
        extra = b'],"usage":' + encode(ending.usage_info())
        report = b',"cache_report":' + encode(ending.cache_reports) if ending.cache_reports else b""
        match self._head.usage:
            case "final":
                parts.append(self.frame(last, extra + report + b"}\n\n"))
            case "extra":
                parts += [self.frame(last, self._end), self._prefix, extra, report, b"}\n\n"]
            case "none":
                parts.append(self.frame(last, b"]" + report + b"}\n\n"))
        return b"".join([*parts, DONE])
