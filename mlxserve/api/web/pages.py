"""Routes of the page: its files, under a policy that lets the browser ask nobody but this server.

Knows where the files lie and which headers they need, not what they do.
"""

from __future__ import annotations

import os
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from mlxserve.api.web.live import Live

STATIC = Path(__file__).parent / "static"

# No inline script or style, no other host, no frame; and the browser refuses every innerHTML (trusted types), so that
# a model's words cannot become markup.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-cache",  # asks again each time; the answer is a 304 while the file is the same
}


class PageFiles(StaticFiles):
    """Static files with the page's headers."""

    def file_response(
        self, full_path: str | os.PathLike[str], stat_result: os.stat_result, scope: Scope, status_code: int = 200
    ) -> Response:
        response = super().file_response(full_path, stat_result, scope, status_code)
        response.headers.update(HEADERS)
        return response


def routes(live: Live) -> list[BaseRoute]:
    """``/``, ``/ui/...`` and ``/stats/stream``, for the app to mount."""

    async def index(request: Request) -> Response:
        return FileResponse(STATIC / "index.html", headers=HEADERS)

    async def stats_stream(request: Request) -> Response:
        return StreamingResponse(live.events(), media_type="text/event-stream", headers={"cache-control": "no-store"})

    return [
        Route("/", index, include_in_schema=False),
        Route("/stats/stream", stats_stream, include_in_schema=False),
        Mount("/ui", PageFiles(directory=STATIC)),
    ]
