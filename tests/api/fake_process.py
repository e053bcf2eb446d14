"""A real server process over the fake engine: ``python -m tests.api.fake_process``; prints its address.

Words in the prompt choose the script: "slow" takes 10 ms a token, "wait" never has a first token, "break" fails after
three. ``GET /fake`` tells what the engine did.
"""

from __future__ import annotations

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mlxserve.api.app import create_app
from mlxserve.api.server import serve
from mlxserve.api.settings import ApiSettings
from mlxserve.types import Request
from tests.api.fakes import EOS, FakeEngine, Script
from tests.api.tiny_text import FIRST_BYTE, ids, tiny_text


def script(request: Request) -> Script:
    prompt = bytes(token - FIRST_BYTE for token in request.prompt if token >= FIRST_BYTE)
    if b"slow" in prompt:
        return Script(lambda index: ids("abc" * 100), delay_s=0.01)
    if b"wait" in prompt:
        return Script(first_delay_s=3600)
    return Script(lambda index: (*ids("Hello there"), EOS), fail_after=3 if b"break" in prompt else None)


def main() -> None:
    engine = FakeEngine(script)

    async def told(request: HttpRequest) -> Response:
        return JSONResponse({"live": len(engine.live), "closed": len(engine.closed), **engine.count})

    settings = ApiSettings(served_names=("fake",), open_after_s=0.05)
    app = create_app(engine, tiny_text(), engine.info, settings, pages=[Route("/fake", told)])
    serve(app, "127.0.0.1", 0, on_ready=lambda url: print(url, flush=True), drain_s=2)


if __name__ == "__main__":
    main()
