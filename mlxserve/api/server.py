"""Runs an app under uvicorn until a signal, then drains it.

Knows nothing of what the app does.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from starlette.types import ASGIApp

from mlxserve.errors import ConfigError

_log = logging.getLogger(__name__)
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_BACKLOG = 2048
_KEEP_ALIVE_S = 65  # longer than clients keep an idle connection, so that they never send into one being closed
_LATE_S = 5  # after which uvicorn gives up answers that do not end when they are cancelled
_WATCHERS_S = 0.05  # in which the streams of those who watch end, so that they are not counted
_SWITCH_S = 0.001  # a thread that tokenises hands the interpreter back to the event loop after at most this


def bind(host: str, port: int) -> socket.socket:
    """A socket that has the address and does not listen yet; port 0 takes a free one. Raises ConfigError when the
    address cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    bound = socket.socket(family)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the last server's closed connections may linger
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        bound.bind((host, port))
    except OSError as error:
        bound.close()
        raise _unavailable(host, port, error) from None
    return bound


def listen(bound: socket.socket) -> None:
    """Raises ConfigError when another program has begun to listen there."""
    try:
        bound.listen(_BACKLOG)
    except OSError as error:
        host, port = bound.getsockname()[:2]
        raise _unavailable(host, port, error) from None


def _unavailable(host: str, port: int, error: OSError) -> ConfigError:
    return ConfigError("--port", port, f"{host}:{port} cannot be listened on: {error.strerror}")


def address(listening: socket.socket) -> str:
    """The URL of a socket that has one."""
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(
    app: ASGIApp,
    host: str,
    port: int,
    *,
    on_ready: Callable[[str], None] | None = None,
    on_drain: Callable[[], None] | None = None,
    drain_s: int = 30,
    listening: socket.socket | None = None,
) -> None:
    """Serves until SIGINT or SIGTERM, then ends what runs: no new connections, ``drain_s`` for the answers under way; a
    second signal ends them at once. Returns after that, so that the caller's exit status is 0.

    ``on_ready`` gets the real address once connections are accepted; ``on_drain`` ends what would never end by itself,
    such as the streams of those who watch. ``listening``: a socket from ``bind``, taken
    instead of host and port. Call it in the main thread.
    """
    listening = listening or bind(host, port)
    sys.setswitchinterval(_SWITCH_S)
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=drain_s + _LATE_S,
        timeout_keep_alive=_KEEP_ALIVE_S,
    )
    url = address(listening)
    server = _Server(config, lambda: on_ready and on_ready(url), on_drain, drain_s)
    gc.freeze()  # what is loaded by now stays: the collector need not walk it while requests run
    server.run(sockets=[listening])


class _Server(uvicorn.Server):
    """uvicorn's server, except that a signal which ends it is not raised again afterwards."""

    def __init__(
        self,
        config: uvicorn.Config,
        on_started: Callable[[], object],
        on_drain: Callable[[], None] | None,
        drain_s: float,
    ) -> None:
        super().__init__(config)
        self._on_started = on_started
        self._on_drain = on_drain
        self._drain_s = drain_s

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        if self._on_drain is not None:
            self._on_drain()
            await asyncio.sleep(_WATCHERS_S)
        if count := len(self.server_state.tasks):
            answers = f"{count} answer{'s' * (count != 1)}"
            _log.warning("Waiting up to %g s for %s under way; another Ctrl-C ends this now", self._drain_s, answers)
        late = asyncio.get_running_loop().call_later(self._drain_s, self._cancel)
        await super().shutdown(sockets)
        late.cancel()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._end)
        try:
            yield
        finally:
            for number in _SIGNALS:
                loop.remove_signal_handler(number)

    def _end(self) -> None:
        if self.should_exit:
            self._cancel()
        self.should_exit = True

    def _cancel(self) -> None:
        for task in self.server_state.tasks:
            task.cancel()
