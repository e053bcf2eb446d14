"""Who reads which request's deltas, and the way to them from an engine's thread. Knows streams and event loops."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from mlxserve.engine.delta_stream import DeltaStream
from mlxserve.errors import MlxserveError
from mlxserve.types import Delta, Request


@dataclass(slots=True)
class _Reader:
    """Who reads a request's deltas, and how many of its choices have not finished."""

    stream: DeltaStream
    live: int


class _Mailbox:
    """Carries deltas to one event loop: one wake-up a step at most, and none while another is pending."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._mail: deque[tuple[DeltaStream, Delta]] = deque()
        self._woken = False

    def post(self, mail: list[tuple[DeltaStream, Delta]]) -> None:
        """Raises RuntimeError when the loop is closed."""
        self._mail.extend(mail)
        if not self._woken:
            self._woken = True
            self.loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        self._woken = False  # first: what is posted from now on wakes again
        while self._mail:
            stream, delta = self._mail.popleft()
            stream.put(delta)


class Readers:
    """Not thread-safe: one thread, or a lock. The streams themselves live in their event loops."""

    def __init__(self) -> None:
        self._readers: dict[str, _Reader] = {}
        self._mailboxes: dict[asyncio.AbstractEventLoop, _Mailbox] = {}

    def add(self, request: Request, stream: DeltaStream) -> None:
        self._readers[request.request_id] = _Reader(stream, request.params.n)

    def __contains__(self, request_id: object) -> bool:
        return request_id in self._readers

    def holds(self, request_id: str, stream: DeltaStream) -> bool:
        """Whether this very stream reads the request."""
        reader = self._readers.get(request_id)
        return reader is not None and reader.stream is stream

    def ids(self) -> list[str]:
        return list(self._readers)

    def deliver(self, deltas: Iterable[Delta]) -> list[str]:
        """Hands every delta to its reader; a request nobody reads any more is passed over. Returns the requests whose
        event loops are closed: nobody will ever read these."""
        mail: dict[asyncio.AbstractEventLoop, list[tuple[DeltaStream, Delta]]] = {}
        for delta in deltas:
            reader = self._readers.get(delta.request_id)
            if reader is None:
                continue
            mail.setdefault(reader.stream.loop, []).append((reader.stream, delta))
            if delta.finish_reason is not None:
                reader.live -= 1
                if not reader.live:
                    del self._readers[delta.request_id]
        return [request_id for loop, letters in mail.items() for request_id in self._post(loop, letters)]

    def fail(self, request_id: str, error: MlxserveError) -> None:
        """Ends one request's stream with an error; nothing when nobody reads it."""
        reader = self._readers.pop(request_id, None)
        if reader is not None:
            call(reader.stream.loop, partial(reader.stream.fail, error))

    def fail_all(self, error: MlxserveError) -> None:
        for request_id in self.ids():
            self.fail(request_id, error)

    def _post(self, loop: asyncio.AbstractEventLoop, letters: list[tuple[DeltaStream, Delta]]) -> list[str]:
        mailbox = self._mailboxes.get(loop)
        if mailbox is None:
            self._mailboxes = {old: box for old, box in self._mailboxes.items() if not old.is_closed()}
            mailbox = self._mailboxes[loop] = _Mailbox(loop)
        try:
            mailbox.post(letters)
        except RuntimeError:
            return [delta.request_id for _, delta in letters]
        return []


def call(loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
    """From another thread; nothing when the loop is closed, because then nobody waits."""
    try:
        loop.call_soon_threadsafe(callback)
    except RuntimeError:
        return
