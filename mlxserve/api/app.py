"""The HTTP app: routes, error shapes and the API key, put together from a running engine and a text processor.

Starts no engine and opens no socket.
"""

from __future__ import annotations

import hmac
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from mlxserve import __version__
from mlxserve.api.chat import plan_chat
from mlxserve.api.completions import plan_completion
from mlxserve.api.docs import docs_page
from mlxserve.api.endpoint import TextEndpoint
from mlxserve.api.exchange import send_error
from mlxserve.api.generate import GenerateEndpoint
from mlxserve.api.openapi import openapi
from mlxserve.api.service import Service
from mlxserve.api.settings import ApiSettings
from mlxserve.api.system import JsonResponse, SystemEndpoints
from mlxserve.api.tokens import apply_template, detokenize, tokenize
from mlxserve.engine.interfaces import AsyncEngine
from mlxserve.errors import MlxserveError
from mlxserve.text.processor import TextProcessor
from mlxserve.types import ModelInfo


def create_app(
    engine: AsyncEngine,
    text: TextProcessor,
    info: ModelInfo,
    settings: ApiSettings,
    *,
    pages: Sequence[BaseRoute] = (),
) -> Starlette:
    """The app over an engine that already runs. Its lifespan ends the app's own threads, not the engine.

    ``pages``: further routes, such as ``web.routes`` makes.
    """
    service = Service(engine, text, info, settings)
    system = SystemEndpoints(service, started=int(time.time()))
    description = openapi(__version__, settings.served_names, keys=bool(settings.api_keys))
    page = docs_page(description)

    async def described(request: Request) -> Response:
        return JsonResponse(description)

    async def docs(request: Request) -> Response:
        return HTMLResponse(page, headers={"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'"})

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        yield
        service.close()

    post, get = ["POST"], ["GET"]
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", GenerateEndpoint(service, plan_chat), methods=post),
            Route("/v1/completions", GenerateEndpoint(service, plan_completion), methods=post),
            Route("/tokenize", TextEndpoint(service, tokenize), methods=post),
            Route("/detokenize", TextEndpoint(service, detokenize), methods=post),
            Route("/apply-template", TextEndpoint(service, apply_template), methods=post),
            Route("/v1/requests/{id}/cancel", system.cancel, methods=post),
            Route("/v1/models", system.models, methods=get),
            Route("/v1/models/{model:path}", system.model, methods=get),
            Route("/v1/capabilities", system.capabilities, methods=get),
            Route("/health", system.health, methods=get),
            Route("/stats", system.stats, methods=get),
            Route("/metrics", system.metrics, methods=get),
            Route("/openapi.json", described, methods=get),
            Route("/docs", docs, methods=get),
            *pages,
        ],
        middleware=[Middleware(KeyGuard, keys=settings.api_keys)] if settings.api_keys else [],
        exception_handlers={MlxserveError: _known, HTTPException: _http, Exception: _unknown},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    return app


class KeyGuard:
    """Asks every request but those to open paths for one of the API keys, as a bearer token."""

    def __init__(self, app: ASGIApp, keys: tuple[str, ...]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not _is_open(scope["path"]) and not self._admits(scope):
            await send_error(send, Unauthorized(), {"www-authenticate": "Bearer"})
            return
        await self._app(scope, receive, send)

    def _admits(self, scope: Scope) -> bool:
        """Compares with every key, each in constant time."""
        scheme, _, key = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
        matches = [hmac.compare_digest(key.strip(), known) for known in self._keys]
        return scheme.lower() == b"bearer" and any(matches)


def _is_open(path: str) -> bool:
    """Health for who watches the server, and the page, which holds no secret and asks its reader for the key."""
    return path in ("/health", "/") or path.startswith("/ui/")


class Unauthorized(MlxserveError):
    """The request carries no valid API key."""

    status = 401
    type = "invalid_request_error"

    def __init__(self) -> None:
        super().__init__("A valid API key is needed: Authorization: Bearer KEY", code="invalid_api_key")


async def _known(request: Request, error: Exception) -> Response:
    assert isinstance(error, MlxserveError)
    return JsonResponse(error.body(), status_code=error.status)


async def _http(request: Request, error: Exception) -> Response:
    """Unknown paths and methods, in OpenAI's shape."""
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path[:200]}: {error.detail}"
    body = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": None}}
    return JsonResponse(body, status_code=error.status_code, headers=dict(error.headers or {}))


async def _unknown(request: Request, error: Exception) -> Response:
    """A fault of ours: the log has it, the client learns nothing of the inside."""
    return JsonResponse(MlxserveError("The server failed.").body(), status_code=500)
