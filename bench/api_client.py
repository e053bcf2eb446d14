"""Raw sockets that read many streams at once and note when each token's frame arrived, for ``bench.api``."""

from __future__ import annotations

import http.client
import json
import selectors
import socket
import time
from dataclasses import dataclass, field

TOKEN = b'"delta":{"content":'  # once in every frame that carries text
DONE = b"data: [DONE]\n\n"


@dataclass
class Reading:
    """One stream: when each frame with text arrived, on the monotonic clock."""

    request_id: str
    connection: socket.socket
    arrivals: list[float] = field(default_factory=list)
    bytes: int = 0
    done: bool = False
    _tail: bytes = b""

    def feed(self, data: bytes, now: float) -> None:
        self.bytes += len(data)
        data = self._tail + data
        self.arrivals += [now] * data.count(TOKEN)
        cut = data.rfind(TOKEN)
        rest = data[cut + len(TOKEN) :] if cut >= 0 else data
        self.done = DONE in rest
        self._tail = rest[-len(DONE) :]


def open_stream(port: int, request_id: str, pace: str, tokens: int) -> Reading:
    body = {
        "model": "bench",
        "messages": [{"role": "user", "content": "hi"}],
        "stream": True,
        "max_tokens": tokens,
        "cache_salt": pace,
        "request_id": request_id,
    }
    raw = json.dumps(body).encode()
    connection = socket.create_connection(("127.0.0.1", port))
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\ncontent-length: {len(raw)}\r\n\r\n"
    connection.sendall(head.encode() + raw)
    connection.setblocking(False)
    return Reading(request_id, connection)


def read_all(readings: list[Reading], deadline_s: float = 120.0) -> None:
    """Until every stream has ended. Raises TimeoutError."""
    selector = selectors.DefaultSelector()
    for reading in readings:
        selector.register(reading.connection, selectors.EVENT_READ, reading)
    open_streams, until = len(readings), time.monotonic() + deadline_s
    while open_streams:
        if time.monotonic() > until:
            raise TimeoutError(f"{open_streams} streams did not end")
        for key, _ in selector.select(timeout=1.0):
            reading = key.data
            data = reading.connection.recv(1 << 18)
            assert data, "the server closed a stream"
            reading.feed(data, time.monotonic())
            if reading.done:
                selector.unregister(reading.connection)
                reading.connection.close()
                open_streams -= 1


def get_json(port: int, path: str) -> object:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path)
    return json.load(connection.getresponse())


def poll_health(port: int, seconds: float, every_s: float = 0.01) -> list[float]:
    """Seconds that /health took, again and again over one connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    took, until = [], time.monotonic() + seconds
    while time.monotonic() < until:
        started = time.monotonic()
        connection.request("GET", "/health")
        answer = connection.getresponse()
        answer.read()
        assert answer.status == 200
        took.append(time.monotonic() - started)
        time.sleep(max(0.0, every_s - took[-1]))
    return took
