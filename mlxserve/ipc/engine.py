"""The server's side: an AsyncEngine whose work is done in a supervised process.

Knows how to start that process again, and what its requests must be told meanwhile; nothing of what it computes.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import subprocess
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace
from functools import partial

from mlxserve.config import EngineConfig, ModelConfig
from mlxserve.engine.delta_stream import DeltaStream
from mlxserve.engine.readers import Readers, call
from mlxserve.errors import BadRequest, CheckpointError, EngineUnavailable, MlxserveError
from mlxserve.ipc.messages import (
    Abort,
    Add,
    AskSnapshot,
    Beat,
    Channel,
    Configure,
    Deltas,
    Failed,
    FromEngine,
    Loading,
    Ready,
    Refused,
    Shutdown,
    SnapshotTaken,
    ToEngine,
)
from mlxserve.ipc.totals import added, stopped
from mlxserve.types import Delta, ModelInfo, Request, Snapshot, Stats

_log = logging.getLogger(__name__)

_STALLED_S = 15.0  # without a step or a heartbeat for so long, the engine is not healthy
_BACKOFF_S = (0.2, 1.0, 3.0, 10.0, 30.0)  # before each new start in a row
_SETTLED_S = 60.0  # a process that lived so long starts the backoff anew
_KILL_S = 5.0  # what a process that was asked to end gets


class ProcessEngine:
    """``command`` starts the process; the number of its socket is appended to it.

    ``start`` blocks until the model is loaded. From then on a thread listens to the process and starts it again when it
    ends; meanwhile the requests that were in flight, and new ones, raise EngineUnavailable. ``generate`` and
    ``snapshot`` may be used in any event loop, the rest from any thread.
    """

    def __init__(
        self,
        command: Sequence[str],
        model: ModelConfig,
        engine: EngineConfig,
        *,
        backoff_s: Sequence[float] = _BACKOFF_S,
    ) -> None:
        """``backoff_s``: the pause before each new start in a row; the last one is kept."""
        self._command = tuple(command)
        self._backoff_s = tuple(backoff_s)
        self._configure = Configure(model, engine)
        self._lock = threading.Lock()  # guards all that follows
        self._readers = Readers()
        self._snapshots: dict[int, tuple[asyncio.AbstractEventLoop, asyncio.Future[Snapshot]]] = {}
        self._numbers = itertools.count()
        self._down: str | None = "The engine has not been started"
        self._closing = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: Channel[FromEngine] | None = None
        self._loading = False
        self._stats: Stats | None = None  # of all processes so far together
        self._earlier: Stats | None = None  # of those that have ended
        self._started_s = 0.0  # monotonic time at which the first process was ready
        self._heard_s = 0.0  # monotonic time of the newest stats
        self._thread = threading.Thread(target=self._supervise, name="mlxserve-engine", daemon=True)

    @property
    def pid(self) -> int | None:
        """Of the running process."""
        with self._lock:
            return None if self._process is None else self._process.pid

    def start(self, progress: Callable[[int, int], None] | None = None) -> tuple[ModelInfo, list[str]]:
        """Loads the model; returns what it is and the startup plan's lines.

        Raises CheckpointError with the words of what loading found wrong, EngineUnavailable when the process ends
        before it is ready.
        """
        ready = self._launch(progress)
        self._thread.start()
        return ready.info, ready.plan

    async def generate(self, request: Request) -> AsyncGenerator[Delta, None]:
        """See AsyncEngine. A reader that falls behind gets fewer and longer deltas."""
        stream = DeltaStream()
        with self._lock:
            if self._down is not None:
                raise EngineUnavailable(self._down)
            if request.request_id in self._readers:
                raise BadRequest(
                    f"A request with the id {request.request_id!r} is already in flight", param="request_id"
                )
            self._readers.add(request, stream)
        self._send(Add(request))
        live = request.params.n
        try:
            while live:
                for delta in await stream.take():
                    live -= delta.finish_reason is not None
                    yield delta
        finally:
            if live:
                self._abandon(request.request_id, stream)

    def abort(self, request_id: str, index: int | None = None, keep: int | None = None) -> None:
        """See AsyncEngine."""
        self._send(Abort(request_id, index, keep))

    def stats(self) -> Stats:
        """As the process last told them, at most a heartbeat old while it is healthy. Counters and uptime are the
        server's: they go on when the process is started again."""
        with self._lock:
            assert self._stats is not None, "not started"
            age = time.monotonic() - self._heard_s
            return replace(
                self._stats,
                uptime_s=self._stats.uptime_s + age,
                last_step_age_s=self._stats.last_step_age_s + age,
            )

    async def snapshot(self) -> Snapshot:
        """What the engine holds between two steps. Raises EngineUnavailable when it is down."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Snapshot] = loop.create_future()
        number = next(self._numbers)
        with self._lock:
            if self._down is not None:
                raise EngineUnavailable(self._down)
            self._snapshots[number] = (loop, answer)
        self._send(AskSnapshot(number))
        return await answer

    def healthy(self) -> str | None:
        """See AsyncEngine."""
        with self._lock:
            if self._down is not None:
                return self._down
        age = self.stats().last_step_age_s
        return None if age < _STALLED_S else f"The engine has not stepped for {age:.1f} s"

    def shutdown(self, drain_s: float = 0.0) -> None:
        """Refuses new requests, lets those in flight go on for up to ``drain_s`` seconds, aborts the rest and ends the
        process: at once while it loads. Idempotent. Blocks."""
        with self._lock:
            self._down = "The engine is shutting down"
            self._closing.set()
            process, in_flight, loading = self._process, self._readers.ids(), self._loading
        self._send(Shutdown())
        if process is not None:
            if loading:  # it listens only when it is done, and has nothing to lose
                process.kill()
            if in_flight and not _ended(process, drain_s):
                for request_id in in_flight:
                    self._send(Abort(request_id))
            if not _ended(process, _KILL_S):
                process.kill()
                process.wait()
        if self._thread.ident is not None:
            self._thread.join()
        if self._channel is not None:
            self._channel.close()

    def _send(self, message: ToEngine) -> None:
        """Nothing when the process is gone: the listening thread finds that out and tells everybody."""
        with self._lock:
            channel = self._channel
        if channel is None:
            return
        try:
            channel.send(message)
        except OSError:
            return

    def _abandon(self, request_id: str, stream: DeltaStream) -> None:
        """The reader has gone. Not if another one has the id by now."""
        with self._lock:
            mine = self._readers.holds(request_id, stream)
        if mine:
            self._send(Abort(request_id))

    # From here on: the listening thread, and at first the one that starts it.

    def _launch(self, progress: Callable[[int, int], None] | None = None) -> Ready:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [*self._command, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # the terminal's signals are for the server, which ends it
            )
        channel: Channel[FromEngine] = Channel(ours, FromEngine)
        self._incoming = channel.receive()
        with self._lock:
            self._process, self._channel, self._loading = process, channel, True
        self._send(self._configure)
        try:
            for message in self._incoming:
                match message:
                    case Loading(done, total) if progress is not None:
                        progress(done, total)
                    case Failed(text):
                        raise CheckpointError(text)
                    case Ready():
                        self._ready(message)
                        return message
        except OSError:  # it died with something of ours unread
            pass
        raise EngineUnavailable(f"The engine's process ended while it was loading ({_ending(process)})")

    def _ready(self, message: Ready) -> None:
        with self._lock:
            self._loading = False
            if not self._closing.is_set():
                self._down = None
            if self._stats is None:
                self._started_s = time.monotonic() - message.stats.uptime_s
            self._note(message.stats)

    def _supervise(self) -> None:
        """Listens until the process ends, and starts it again unless that was wanted."""
        starts = 0
        while True:
            since = time.monotonic()
            self._listen()
            process = self._process
            assert process is not None
            reason = f"The engine's process ended unexpectedly ({_ending(process)}); it is being started again"
            self._lost("The engine has been shut down" if self._closing.is_set() else reason)
            starts = 0 if time.monotonic() - since > _SETTLED_S else starts
            while True:
                if self._closing.wait(self._backoff_s[min(starts, len(self._backoff_s) - 1)]):
                    return
                starts += 1
                try:
                    self._launch(partial(self._loading_again, reason))
                except MlxserveError as error:
                    self._lost(error.message)
                    continue
                _log.warning("The engine is back")
                break

    def _loading_again(self, reason: str, done: int, total: int) -> None:
        with self._lock:
            if not self._closing.is_set():
                self._down = f"{reason}, {done / total:.0%} of its weights are loaded"

    def _listen(self) -> None:
        try:
            for message in self._incoming:
                self._hear(message)
        except OSError:  # the process died with something of ours unread
            return

    def _hear(self, message: FromEngine) -> None:
        match message:
            case Deltas(deltas, stats):
                with self._lock:
                    self._note(stats)
                    unread = self._readers.deliver(deltas)
                for request_id in unread:
                    self._send(Abort(request_id))
            case Beat(stats):
                with self._lock:
                    self._note(stats)
            case Refused(request_id, text, param, code):
                with self._lock:
                    self._readers.fail(request_id, BadRequest(text, param=param, code=code))
            case SnapshotTaken(number, snapshot):
                with self._lock:
                    loop, answer = self._snapshots.pop(number)
                    snapshot = replace(snapshot, stats=self._whole(snapshot.stats))
                call(loop, partial(_settle, answer, snapshot))

    def _note(self, stats: Stats | None) -> None:
        if stats is not None:
            self._stats = self._whole(stats)
            self._heard_s = time.monotonic()

    def _whole(self, stats: Stats) -> Stats:
        """A process's figures as the server's."""
        whole = stats if self._earlier is None else added(stats, self._earlier)
        return replace(whole, uptime_s=time.monotonic() - self._started_s)

    def _lost(self, reason: str) -> None:
        """Tells everybody who waits that the process is gone."""
        error = EngineUnavailable(reason)
        with self._lock:
            if not self._closing.is_set():
                self._down = reason
                _log.error("%s", reason)
            assert self._channel is not None
            assert self._stats is not None
            self._stats = self._earlier = stopped(self._stats)
            self._channel.close()
            self._readers.fail_all(error)
            waiting, self._snapshots = self._snapshots, {}
        for loop, answer in waiting.values():
            call(loop, partial(_settle, answer, error))


def _settle(answer: asyncio.Future[Snapshot], result: Snapshot | MlxserveError) -> None:
    if answer.done():
        return
    if isinstance(result, Snapshot):
        answer.set_result(result)
    else:
        answer.set_exception(result)


def _ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _ending(process: subprocess.Popen[bytes]) -> str:
    """How a process that closed its socket ended."""
    if not _ended(process, _KILL_S):
        process.kill()
        process.wait()
        return "it hung up and was killed"
    status = process.returncode
    return f"signal {-status}" if status < 0 else f"exit status {status}"
