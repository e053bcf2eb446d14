"""The asyncio bridge to an engine that steps in a thread of its own.

Knows threads and event loops; nothing of scheduling, text or HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from functools import partial

from mlxserve.engine.delta_stream import DeltaStream
from mlxserve.engine.interfaces import EngineCore
from mlxserve.engine.readers import Readers, call
from mlxserve.errors import EngineUnavailable, MlxserveError
from mlxserve.types import Delta, Request, Snapshot, Stats

_log = logging.getLogger(__name__)

_HEARTBEAT_S = 1.0  # an idle engine looks for work at least this often
_STALLED_S = 15.0  # without a step or a heartbeat for so long, the engine is not healthy


@dataclass(frozen=True, slots=True)
class _Command:
    """Something for the engine's thread to do, or to refuse when it can do no more."""

    run: Callable[[], None]
    refuse: Callable[[MlxserveError], None] = lambda error: None


class ThreadedEngine:
    """Runs an engine in a thread. Its methods may be called from any thread, ``generate`` in any event loop.

    Should the thread die (a fault of ours, not of a request), all requests in flight and all later ones raise
    EngineUnavailable.
    """

    def __init__(self, core: EngineCore) -> None:
        self._core = core
        self._commands: queue.SimpleQueue[_Command] = queue.SimpleQueue()
        self._lock = threading.Lock()  # nothing is queued once _down is set
        self._down: str | None = "The engine has not been started"
        self._thread = threading.Thread(target=self._run, name="mlxserve-engine", daemon=True)
        # The engine's thread only:
        self._readers = Readers()
        self._drain_until: float | None = None  # set when shutting down

    def start(self) -> None:
        self._down = None
        self._thread.start()

    async def generate(self, request: Request) -> AsyncGenerator[Delta, None]:
        """Deltas of all choices; a reader that falls behind gets fewer and longer ones. Closing it aborts the request.

        Raises BadRequest before the first delta when the request can never run, EngineUnavailable when the engine is
        down or dies.
        """
        stream = DeltaStream()
        self._submit(_Command(partial(self._add, request, stream), stream.fail))
        live = request.params.n
        try:
            while live:
                for delta in await stream.take():
                    live -= delta.finish_reason is not None
                    yield delta
        finally:
            if live:
                self._try(partial(self._abandon, request.request_id, stream))

    def abort(self, request_id: str, index: int | None = None, keep: int | None = None) -> None:
        """Ends one choice (a stop string matched after ``keep`` tokens) or the whole request; its generator then yields
        the closing delta."""
        self._try(partial(self._core.abort, request_id, index, keep))

    def stats(self) -> Stats:
        return self._core.stats()

    async def snapshot(self) -> Snapshot:
        """What the engine holds between two steps. Raises EngineUnavailable when it is down."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Snapshot] = loop.create_future()

        def settle(result: Snapshot | MlxserveError) -> None:
            if answer.done():
                return
            if isinstance(result, Snapshot):
                answer.set_result(result)
            else:
                answer.set_exception(result)

        self._submit(
            _Command(
                lambda: call(loop, partial(settle, self._core.snapshot())),
                lambda error: call(loop, partial(settle, error)),
            )
        )
        return await answer

    def healthy(self) -> str | None:
        """None when the engine is up and stepped, or looked for work, in the last seconds; else why not."""
        if self._down is not None:
            return self._down
        age = self._core.stats().last_step_age_s
        return None if age < _STALLED_S else f"The engine has not stepped for {age:.1f} s"

    def shutdown(self, drain_s: float = 0.0) -> None:
        """Refuses new requests, lets those in flight go on for up to ``drain_s`` seconds, aborts the rest, closes the
        runner and waits for the thread to end. Idempotent. Blocks: from an event loop call it in another thread."""
        with self._lock:
            if self._down is None:
                self._down = "The engine is shutting down"
                self._commands.put(_Command(partial(setattr, self, "_drain_until", time.monotonic() + drain_s)))
        if self._thread.ident is not None:
            self._thread.join()

    def _submit(self, command: _Command) -> None:
        with self._lock:
            if self._down is not None:
                raise EngineUnavailable(self._down)
            self._commands.put(command)

    def _try(self, run: Callable[[], None]) -> None:
        """Like _submit, for what is pointless once the engine is down."""
        with self._lock:
            if self._thread.is_alive():
                self._commands.put(_Command(run))

    # From here on: the engine's thread.

    def _run(self) -> None:
        try:
            while not self._done():
                self._obey()
                for request_id in self._readers.deliver(self._core.step()):
                    self._core.abort(request_id)
            self._close("The engine has been shut down")
        except Exception as error:  # the thread's last resort: a fault of ours, and whoever waits must be told
            _log.exception("The engine died")
            self._close(f"The engine died: {type(error).__name__}: {error}")

    def _done(self) -> bool:
        if self._drain_until is None:
            return False
        if time.monotonic() >= self._drain_until:
            for request_id in self._readers.ids():
                self._core.abort(request_id)
        return not self._core.has_work()

    def _obey(self) -> None:
        """Runs the commands that have come; an idle engine waits for one."""
        if not self._core.has_work() and self._commands.empty():
            try:
                self._commands.get(timeout=_HEARTBEAT_S).run()
            except queue.Empty:
                return
        while not self._commands.empty():
            self._commands.get().run()

    def _add(self, request: Request, stream: DeltaStream) -> None:
        try:
            self._core.add(request)
        except MlxserveError as error:
            call(stream.loop, partial(stream.fail, error))
            return
        self._readers.add(request, stream)

    def _abandon(self, request_id: str, stream: DeltaStream) -> None:
        """The reader has gone. Not if the request was refused because another one has its id."""
        if self._readers.holds(request_id, stream):
            self._core.abort(request_id)

    def _close(self, reason: str) -> None:
        with self._lock:
            self._down = reason
        error = EngineUnavailable(reason)
        while not self._commands.empty():
            self._commands.get().refuse(error)
        self._readers.fail_all(error)
        self._core.close()
