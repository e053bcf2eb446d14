"""The engine's process: obeys what comes over the channel, steps, and sends what each step gave.

Knows how to run an EngineCore, not how to build one.
"""

from __future__ import annotations

import contextlib
import gc
import os
import queue
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable

import msgspec

from mlxserve.config import EngineConfig, ModelConfig
from mlxserve.engine.interfaces import EngineCore
from mlxserve.errors import BadRequest, CheckpointError, ConfigError
from mlxserve.ipc.messages import (
    Abort,
    Add,
    AskSnapshot,
    Beat,
    Channel,
    Configure,
    Deltas,
    Failed,
    Loading,
    Ready,
    Refused,
    Shutdown,
    SnapshotTaken,
    ToEngine,
)
from mlxserve.types import ModelInfo, Stats

HEARTBEAT_S = 1.0  # an idle engine says so this often
_STATS_S = 0.25  # a busy one's figures are no older

Build = Callable[[ModelConfig, EngineConfig, Callable[[int, int], None]], tuple[EngineCore, ModelInfo, list[str]]]


def run_child(sock: socket.socket, build: Build) -> None:
    """Serves one server until it says so, or until it is gone. Signals are the server's business: it tells us."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    channel: Channel[ToEngine] = Channel(sock, ToEngine)
    inbox: queue.SimpleQueue[ToEngine] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(channel, inbox), name="listen", daemon=True).start()
    configure = inbox.get()
    assert isinstance(configure, Configure)
    try:
        core, info, plan = build(
            configure.model, configure.engine, lambda done, total: channel.send(Loading(done, total))
        )
    except (ConfigError, CheckpointError) as error:
        channel.send(Failed(error.message))
        return
    gc.freeze()  # what is loaded by now stays: the collector need not walk it between steps
    channel.send(Ready(info, plan, core.stats()))
    _Loop(channel, inbox, core).run()
    core.close()


def _listen(channel: Channel[ToEngine], inbox: queue.SimpleQueue[ToEngine]) -> None:
    try:
        for message in channel.receive():
            inbox.put(message)
    except (OSError, msgspec.DecodeError) as error:
        print(f"the engine's process ends: {error}", file=sys.stderr)
    os._exit(0)  # the server is gone: nobody wants what is computed, and a step may be long


class _Loop:
    """The engine's thread, the process's main one."""

    def __init__(self, channel: Channel[ToEngine], inbox: queue.SimpleQueue[ToEngine], core: EngineCore) -> None:
        self._channel = channel
        self._inbox = inbox
        self._core = core
        self._ending = False
        self._told_stats_s = 0.0

    def run(self) -> None:
        while not self._ending or self._core.has_work():
            self._obey()
            deltas = self._core.step()
            if deltas:
                finished = any(delta.finish_reason is not None for delta in deltas)
                stale = time.monotonic() - self._told_stats_s > _STATS_S
                self._channel.send(Deltas(deltas, self._stats() if finished or stale else None))

    def _obey(self) -> None:
        """Does what has been asked for; an idle engine waits for something. Idle or not, and asked or not (whoever
        watches asks often), it shows that it is alive."""
        if not self._core.has_work():
            with contextlib.suppress(queue.Empty):
                self._do(self._inbox.get(timeout=HEARTBEAT_S))
        if time.monotonic() - self._told_stats_s > HEARTBEAT_S:
            self._channel.send(Beat(self._stats()))
        while not self._inbox.empty():
            self._do(self._inbox.get())

    def _stats(self) -> Stats:
        self._told_stats_s = time.monotonic()
        return self._core.stats()

    def _do(self, message: ToEngine) -> None:
        match message:
            case Add(request):
                try:
                    self._core.add(request)
                except BadRequest as error:
                    self._channel.send(Refused(request.request_id, error.message, error.param, error.code))
            case Abort(request_id, index, keep):
                self._core.abort(request_id, index, keep)
            case AskSnapshot(number):
                self._channel.send(SnapshotTaken(number, self._core.snapshot()))
            case Shutdown():
                self._ending = True
