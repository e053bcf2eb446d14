"""What is answered while the model loads, when there is no app yet: how far it is, and that everything else must wait.

A thread of the standard library's server, on a copy of the socket that the app will listen on. Knows no model.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType

import msgspec

from mlxserve.api.answers import Answer, LoadingHealth
from mlxserve.errors import EngineUnavailable

_POLL_S = 0.05  # how long the end of loading may wait for the thread
_CLIENT_S = 5.0  # a client that says nothing for so long is hung up on
_BODY_BYTES = 1 << 20  # read before a refusal, so that the client gets to see it


class LoadingAnswers:
    """A context manager: entering it starts to answer with 503, leaving it hands the socket over as it was."""

    def __init__(self, listening: socket.socket) -> None:
        self.health = LoadingHealth(progress=0.0)
        self._server = _Server(listening.dup(), self)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_S,), name="mlxserve-loading", daemon=True
        )

    def progress(self, done: int, total: int) -> None:
        """Tensors read so far and in all."""
        self.health = LoadingHealth(progress=round(done / max(1, total), 3))

    def __enter__(self) -> LoadingAnswers:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, listening: socket.socket, loading: LoadingAnswers) -> None:
        super().__init__(listening.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.loading = loading

    def handle_error(self, request: object, client_address: object) -> None:
        """Of a client that hung up; there is nobody to tell."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = _CLIENT_S

    def do_GET(self) -> None:
        health = self.server.loading.health
        if self.path == "/":  # for a browser, which asks again by itself
            text = f"The model is being loaded: {health.progress:.0%} of its {health.what}"
            self._answer(text.encode(), "text/plain; charset=utf-8")
        else:
            self._json(health if self.path == "/health" else None)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        with contextlib.suppress(ValueError):
            self.rfile.read(min(int(self.headers.get("content-length", 0)), _BODY_BYTES))
        self._json(None)

    def log_message(self, format: str, *args: object) -> None:
        """As the app itself, it logs no access."""

    def _json(self, answer: Answer | None) -> None:
        refusal = EngineUnavailable("The model is still being loaded; /health says how far it is").body()
        self._answer(msgspec.json.encode(refusal if answer is None else answer), "application/json")

    def _answer(self, body: bytes, content_type: str) -> None:
        """Ends the connection too: the next one may be the app's."""
        self.send_response(503)
        for name, value in (("content-type", content_type), ("content-length", str(len(body))), ("retry-after", "1")):
            self.send_header(name, value)
        self.send_header("refresh", "1")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
