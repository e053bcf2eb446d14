"""One HTTP exchange at the ASGI level: reading a body within its limit, and ending work whose client has gone.

Knows nothing of what is asked or answered.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

import msgspec
from starlette.types import Message, Receive, Scope, Send

from mlxserve.errors import BadRequest, MlxserveError, RequestTooLarge


class ClientGone(Exception):
    """The client closed the connection: nobody is left to answer."""


class Outgoing:
    """A ``send`` that knows how far its answer has come."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False
        self.complete = False

    async def __call__(self, message: Message) -> None:
        self.started = True
        self.complete = message["type"] == "http.response.body" and not message.get("more_body", False)
        await self._send(message)


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """Raises RequestTooLarge before more than ``limit`` bytes are held, ClientGone when the body never ends."""
    declared = dict(scope["headers"]).get(b"content-length")
    if declared is not None:
        if not declared.isdigit():
            raise BadRequest("The content-length header is not a number.")
        if int(declared) > limit:
            raise RequestTooLarge(f"The body has {int(declared)} bytes, but at most {limit} are accepted.")
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            raise RequestTooLarge(f"The body has more than {limit} bytes, which is the most that is accepted.")
        if not message.get("more_body", False):
            return b"".join(parts)


async def until_gone(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Runs ``work`` to its end, or cancels it once the client has gone. The one place that races the two."""
    task = asyncio.ensure_future(work)
    watch = asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in (task, watch):
            if not each.done():
                each.cancel()
        await asyncio.wait((task, watch))
    if not task.cancelled():
        task.result()


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def start(send: Send, status: int, content_type: bytes, headers: Mapping[str, str]) -> None:
    """Sends the status line and the headers."""
    extra = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", content_type), *extra]})


async def send_json(send: Send, status: int, body: bytes, headers: Mapping[str, str]) -> None:
    """Sends a whole answer."""
    await start(send, status, b"application/json", {"content-length": str(len(body)), **headers})
    await send({"type": "http.response.body", "body": body})


async def send_error(send: Send, error: MlxserveError, headers: Mapping[str, str]) -> None:
    """Sends OpenAI's error object with the error's own status."""
    await send_json(send, error.status, msgspec.json.encode(error.body()), headers)
