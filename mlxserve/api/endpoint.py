"""What the POST endpoints have in common: a bounded body, errors in OpenAI's shape, work that ends with its client.

Knows nothing of what a body means.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from urllib.parse import quote

import msgspec
from starlette.types import Receive, Scope, Send

from mlxserve.api.answers import Answer
from mlxserve.api.exchange import ClientGone, Outgoing, read_body, send_error, send_json, until_gone
from mlxserve.api.frames import error_event
from mlxserve.api.service import Service
from mlxserve.errors import EngineUnavailable, MlxserveError


class PostEndpoint(ABC):
    """An ASGI app. Its client may leave in any state; the work then is cancelled."""

    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        outgoing = Outgoing(send)
        try:
            raw = await read_body(scope, receive, self._service.settings.body_limit)
            await until_gone(receive, self._answer(raw, outgoing))
        except ClientGone:
            return
        except MlxserveError as error:
            await self._refuse(outgoing, error)
        except asyncio.CancelledError:  # by the server alone, which ends and waits no longer; the task ends with this
            await self._cut_off(outgoing)

    async def _cut_off(self, outgoing: Outgoing) -> None:
        error = EngineUnavailable("The server is shutting down.")
        if not outgoing.started:
            await self._refuse(outgoing, error)
        elif not outgoing.complete:
            await outgoing({"type": "http.response.body", "body": error_event(error)})

    @abstractmethod
    async def _answer(self, raw: bytes, send: Send) -> None:
        """Sends the whole answer, whatever it is."""

    async def _refuse(self, send: Send, error: MlxserveError, headers: dict[str, str] | None = None) -> None:
        self._service.recorder.answered_error(error.status)
        await send_error(send, error, headers or {})

    def _ignored(self, names: Sequence[str]) -> dict[str, str]:
        """The header that reports unknown fields; each is logged once. Names are quoted as in a URL."""
        if not names:
            return {}
        self._service.report_ignored(names)
        shown = names[: self._service.settings.caps.ignored_fields]
        return {"x-mlxserve-ignored": ", ".join(quote(name[:64], safe="") for name in shown)}


class TextEndpoint(PostEndpoint):
    """Answers with what one function makes of the body, in a thread of the pool."""

    def __init__(self, service: Service, function: Callable[[Service, bytes], tuple[Answer, tuple[str, ...]]]) -> None:
        super().__init__(service)
        self._function = function

    async def _answer(self, raw: bytes, send: Send) -> None:
        body, ignored = await self._service.offload(self._encoded, raw)
        await send_json(send, 200, body, self._ignored(ignored))

    def _encoded(self, raw: bytes) -> tuple[bytes, tuple[str, ...]]:
        answer, ignored = self._function(self._service, raw)
        return msgspec.json.encode(answer), ignored
