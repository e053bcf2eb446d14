"""The stream of engine snapshots that the page draws.

However many people watch, the engine is asked at most once an interval, and not at all when nobody does. Knows the
snapshot's form on the wire; nothing of how the engine takes it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Sequence
from typing import Protocol

import msgspec

from mlxserve.errors import MlxserveError
from mlxserve.types import ModelInfo, SequenceView, Snapshot

INTERVAL_S = 0.25


class SnapshotSource(Protocol):
    """The engine, as far as watching goes."""

    async def snapshot(self) -> Snapshot:
        """Raises EngineUnavailable while the engine is down."""
        ...


class Live:
    """Shares the engine's snapshots among any number of watchers. Used on the event loop only."""

    def __init__(self, source: SnapshotSource, info: ModelInfo, interval_s: float = INTERVAL_S) -> None:
        self._source = source
        self._info = info
        self._interval_s = interval_s
        self._newest: asyncio.Task[bytes] | None = None
        self._asked_at = float("-inf")
        self._closed = asyncio.Event()

    async def events(self) -> AsyncIterator[bytes]:
        """Server-sent events: ``model`` once, then ``snapshot``, or ``down`` with a message, at every interval."""
        yield event("model", msgspec.json.encode(self._info))
        while not self._closed.is_set():
            yield await self._shared_frame()
            await self._pause()

    def close(self) -> None:
        """Ends every watcher's stream; new ones end after their first event."""
        self._closed.set()

    async def _pause(self) -> None:
        try:
            await asyncio.wait_for(self._closed.wait(), self._interval_s)
        except TimeoutError:
            return

    async def _shared_frame(self) -> bytes:
        now = time.monotonic()
        if self._newest is None or (now - self._asked_at >= 0.9 * self._interval_s and self._newest.done()):
            self._asked_at = now
            self._newest = asyncio.create_task(self._frame())
        # A watcher that leaves must not cancel the frame that others wait for.
        return await asyncio.shield(self._newest)

    async def _frame(self) -> bytes:
        try:
            return event("snapshot", encode(await self._source.snapshot()))
        except MlxserveError as error:
            return event("down", msgspec.json.encode({"message": error.message}))


def event(name: str, data: bytes) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)


def encode(snapshot: Snapshot) -> bytes:
    """JSON of a snapshot: the block map in base64, block tables as spans."""
    return msgspec.json.encode(
        {
            "stats": snapshot.stats,
            "running": [_sequence(view) for view in snapshot.running],
            "waiting": [_sequence(view) for view in snapshot.waiting],
            "blocks": snapshot.blocks,
        }
    )


def _sequence(view: SequenceView) -> dict[str, object]:
    fields = {field.name: getattr(view, field.name) for field in dataclasses.fields(view) if field.name != "blocks"}
    return {**fields, "spans": spans(view.blocks)}


def spans(blocks: Sequence[int]) -> list[int]:
    """Runs of consecutive blocks, flat: [first, length, first, length, ...]. A table is mostly a few long runs."""
    out: list[int] = []
    for block in blocks:
        if out and block == out[-2] + out[-1]:
            out[-1] += 1
        else:
            out += (block, 1)
    return out
