"""One request's deltas between the engine and a reader that may be slower: what is unread is merged, not queued.

Knows event loops; nothing of threads or engines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain

from mlxserve.errors import MlxserveError
from mlxserve.types import Delta

_COALESCE = 32  # unread deltas of a choice that are merged into one


class DeltaStream:
    """Made and used in one event loop. Holds a bounded number of deltas for each choice, however slow the reader is."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._unread: dict[int, list[Delta]] = {}
        self._failure: MlxserveError | None = None
        self._ready = asyncio.Event()

    def put(self, delta: Delta) -> None:
        unread = self._unread.setdefault(delta.index, [])
        unread.append(delta)
        if len(unread) > _COALESCE:
            unread[:] = [merge(unread)]
        self._ready.set()

    def fail(self, error: MlxserveError) -> None:
        """The reader gets what is unread, then the error."""
        self._failure = error
        self._ready.set()

    async def take(self) -> list[Delta]:
        """What has come since the last call, one delta a choice; waits for some. Raises what ``fail`` was given."""
        await self._ready.wait()
        unread, self._unread = self._unread, {}
        if self._failure is None:
            self._ready.clear()
        elif not unread:
            raise self._failure
        return [merge(deltas) for deltas in unread.values()]


def merge(deltas: Sequence[Delta]) -> Delta:
    """Adjacent deltas of one choice as one."""
    first, last = deltas[0], deltas[-1]
    if first is last:
        return first
    logprobs = None
    if any(d.logprobs is not None for d in deltas):
        logprobs = tuple(chain.from_iterable(d.logprobs or () for d in deltas))
    return Delta(
        request_id=first.request_id,
        index=first.index,
        token_ids=tuple(chain.from_iterable(d.token_ids for d in deltas)),
        logprobs=logprobs,
        prompt_logprobs=first.prompt_logprobs,
        finish_reason=last.finish_reason,
        usage=last.usage,
        cache_report=last.cache_report,
        error=last.error,
    )
