"""One API request under way: its prompts run side by side, and their events wait in one place for their reader.

The engine is read whether or not the reader keeps up, so a slow reader slows nobody and a stop string is seen at once.
Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import aclosing
from types import TracebackType
from typing import Self

from mlxserve.api.events import Event, Job, events
from mlxserve.api.metrics import Recorder
from mlxserve.engine.interfaces import AsyncEngine
from mlxserve.text.processor import TextProcessor
from mlxserve.types import CacheReport, Usage

_RUN = 64  # events taken from the engine without letting others run


class Generation:
    """An async context manager: leaving it ends what still runs. For one task, on the event loop."""

    def __init__(
        self, engine: AsyncEngine, text: TextProcessor, jobs: Sequence[Job], recorder: Recorder, received: float
    ) -> None:
        """``received``: when the request's body had arrived, on the clock of ``time.monotonic``."""
        self._engine = engine
        self._text = text
        self._jobs = jobs
        self._recorder = recorder
        self._received = received
        self._tasks: list[asyncio.Task[None]] = []
        self._waiting: list[Event] = []
        self._waiter: asyncio.Future[None] | None = None
        self._failure: BaseException | None = None
        self._unfinished = sum(job.request.params.n for job in jobs)
        self._usages: list[dict[int, Usage]] = [{} for _ in jobs]
        self._reports: list[CacheReport | None] = [None for _ in jobs]

    async def __aenter__(self) -> Self:
        self._tasks = [asyncio.create_task(self._pump(number, job)) for number, job in enumerate(self._jobs)]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def finished(self) -> bool:
        """Every choice has ended and its events have been taken."""
        return not self._unfinished and not self._waiting

    async def take(self, timeout: float | None = None) -> list[Event]:
        """All events that wait, oldest first; [] after ``timeout`` seconds without any.

        Raises what ended a prompt, once the events before it have been taken."""
        if not self._waiting:
            if self._failure is None and self._unfinished:
                await self._wait(timeout)
            if not self._waiting and self._failure is not None:
                raise self._failure
        taken, self._waiting = self._waiting, []
        return taken

    async def _wait(self, timeout: float | None) -> None:
        loop = asyncio.get_running_loop()
        self._waiter = loop.create_future()
        timer = loop.call_later(timeout, self._wake) if timeout is not None else None
        try:
            await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _pump(self, number: int, job: Job) -> None:
        first = last = 0.0
        taken = tokens = 0
        try:
            async with aclosing(events(self._engine, self._text, job)) as stream:
                async for event in stream:
                    self._waiting.append(event)
                    if event.finish_reason is not None:
                        self._finish(number, event)
                    self._wake()
                    if not event.is_prompt and event.token_ids:
                        last = time.monotonic()
                        first = first or last
                        tokens += len(event.token_ids)
                    taken += 1
                    if taken % _RUN == 0:
                        await asyncio.sleep(0)
        except Exception as error:  # whatever ended the prompt is raised by take(), in the reader's task
            self._failure = self._failure or error
            self._wake()
        if first:
            self._recorder.generated(first - self._received, last - first, tokens)

    def _finish(self, number: int, event: Event) -> None:
        assert event.usage is not None
        self._unfinished -= 1
        self._usages[number][event.index] = event.usage
        self._reports[number] = self._reports[number] or event.cache_report

    def usage(self) -> Usage:
        """Of the whole answer: each prompt is counted once, the completions of all choices are summed."""
        assert not self._unfinished
        firsts = [min(usages.items())[1] for usages in self._usages]
        return Usage(
            sum(usage.prompt_tokens for usage in firsts),
            sum(usage.completion_tokens for usages in self._usages for usage in usages.values()),
            sum(usage.cached_tokens for usage in firsts),
        )

    def cache_reports(self) -> list[CacheReport] | None:
        """One a prompt, when they were asked for."""
        reports = [report for report in self._reports if report is not None]
        return reports or None
