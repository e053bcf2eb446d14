"""A small OpenAI-compatible server of somebody else's, with a known schedule and every way to fail.

What a prompt gets is chosen by its first word: "429", "error" (an event mid-stream), "cut" (the connection ends
mid-stream), "garbage" (an event that is no JSON), "stall" (nothing after the first piece); anything else streams whole.
"""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

Body = dict[str, Any]


@dataclass
class ForeignServer:
    """The first piece after ``first_s``, then one each ``gap_s``, of ``tokens_a_piece`` tokens."""

    first_s: float = 0.1
    gap_s: float = 0.02
    tokens_a_piece: int = 1
    usage: bool = True
    stream_options: bool = True  # knows the field; else refuses it
    stop_early: bool = False  # ends after two pieces, as for a stop token
    bodies: list[Body] = field(default_factory=list)
    arrived: list[float] = field(default_factory=list)
    active: int = 0
    most_active: int = 0

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._connection, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                stated = re.search(rb"(?i)content-length: *(\d+)", head)
                length = int(stated[1]) if stated else 0
                await self._answer(head, await reader.readexactly(length), writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, head: bytes, content: bytes, writer: asyncio.StreamWriter) -> None:
        if head.startswith(b"GET /v1/models"):
            return _whole(writer, 200, {"data": [{"id": "theirs"}]})
        body = json.loads(content)
        self.bodies.append(body)
        self.arrived.append(asyncio.get_running_loop().time())
        if "stream_options" in body and not self.stream_options:
            return _whole(writer, 400, {"error": {"message": "Unrecognized field: stream_options"}})
        kind = body["prompt"].split()[0]
        if kind == "429":
            return _whole(writer, 429, {"error": {"message": "Slow down."}})
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        self.active += 1
        self.most_active = max(self.most_active, self.active)
        try:
            await self._stream(kind, body, writer)
        finally:
            self.active -= 1
        return None

    async def _stream(self, kind: str, body: Body, writer: asyncio.StreamWriter) -> None:
        pieces = 2 if self.stop_early else -(-body["max_tokens"] // self.tokens_a_piece)
        await asyncio.sleep(self.first_s)
        for number in range(pieces):
            if number:
                await asyncio.sleep(self.gap_s)
            _event(writer, {"choices": [{"index": 0, "text": " word" * self.tokens_a_piece, "finish_reason": None}]})
            if kind == "error":
                return _event(writer, {"error": {"message": "The pool burst."}})
            if kind == "cut":
                raise ConnectionError
            if kind == "garbage":
                return _event(writer, "<html>")
            if kind == "stall":
                await asyncio.sleep(30)
        reason = "stop" if self.stop_early else "length"
        _event(writer, {"choices": [{"index": 0, "text": "", "finish_reason": reason}], "usage": None})
        if self.usage:
            _event(writer, {"choices": [], "usage": {"prompt_tokens": 40, "completion_tokens": body["max_tokens"]}})
        _chunk(writer, b"data: [DONE]\n\n")
        return _chunk(writer, b"")


def _whole(writer: asyncio.StreamWriter, status: int, content: Body) -> None:
    data = json.dumps(content).encode()
    writer.write(b"HTTP/1.1 %d Reason\r\nContent-Length: %d\r\n\r\n" % (status, len(data)) + data)


def _event(writer: asyncio.StreamWriter, content: Body | str) -> None:
    text = content if isinstance(content, str) else json.dumps(content)
    _chunk(writer, f"data: {text}\n\n".encode())


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(b"%x\r\n%s\r\n" % (len(data), data))


@contextmanager
def served(server: ForeignServer) -> Iterator[str]:
    """In a thread of its own, for clients that block. Gives its URL."""
    loop, started = asyncio.new_event_loop(), threading.Event()
    stop = asyncio.Event()
    url: list[str] = []

    async def main() -> None:
        async with server.running() as address:
            url.append(address)
            started.set()
            await stop.wait()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    thread = threading.Thread(target=loop.run_until_complete, args=(main(),))
    thread.start()
    started.wait()
    try:
        yield url[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()
