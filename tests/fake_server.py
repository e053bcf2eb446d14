"""A small server that speaks OpenAI's chat stream and the page's routes without a model.

What it answers is chosen by the last user message: "think ..." reasons first, "markdown" shows every construct,
"long" goes on for 400 tokens, "wait" lets five seconds pass before the first token, "fail" is a 500, "break" fails in
the middle, "hang up" just ends there, "limit" ends by length; anything else is echoed. As a program:
``python -m tests.fake_server --port N [--load-s S] [--api-key K] [--demo]``; ``--demo`` keeps the pool busy.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from mlxserve.api import web
from tests.fake_engine import FakeEngine, FakeSequence

MARKDOWN = """## Paged attention

A sequence's keys and values live in **fixed blocks**, found by a *block table*:

| token | block | offset |
|------:|:-----:|--------|
| 0     | 7     | 0      |
| 17    | 3     | 1      |

1. `allocate` takes a block
2. the kernel reads through the table
   - no copies
   - no holes

```python
def slot(table: list[int], position: int, size: int = 16) -> int:
    return table[position // size] * size + position % size  # <b>not markup</b>
```

> A block is freed when *nobody* holds it.

See [the paper](https://arxiv.org/abs/2309.06180), not [this](javascript:alert(1)). <img src=x onerror=alert(1)>
"""


def script(text: str) -> list[str]:
    """The pieces that answer a message."""
    if text.startswith("markdown"):
        return [piece + " " for piece in MARKDOWN.split(" ")]
    if text.startswith("think"):
        return ["<think>", "Let me see. ", "Six times seven.", "</think>", "\n\nIt is ", "**42**."]
    if text.startswith("long"):
        return [f"word{i} " for i in range(400)]
    return [word + " " for word in f"You said: {text}".split(" ")]


class FakeServer:
    def __init__(self, load_s: float = 0, delay_s: float = 0.02, api_key: str | None = None) -> None:
        self.engine = FakeEngine()
        self.live = web.Live(self.engine, self.engine.info)
        self.load_s = load_s
        self.ready_at = time.monotonic() + load_s
        self.delay_s = delay_s
        self.api_key = api_key
        self.bodies: list[dict[str, object]] = []  # every chat request received

    def app(self, demo: bool = False) -> Starlette:
        @contextlib.asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
            task = asyncio.create_task(self.keep_busy()) if demo else None
            yield
            if task:
                task.cancel()

        routes = [
            Route("/health", self.health),
            Route("/v1/models", self.models),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/fake/bodies", self.show_bodies),
            *web.routes(self.live),
        ]
        return Starlette(routes=routes, lifespan=lifespan)

    async def health(self, request: Request) -> Response:
        if (left_s := self.ready_at - time.monotonic()) > 0:
            progress = max(0.0, 1 - left_s / self.load_s)
            return JSONResponse({"status": "loading", "progress": progress, "what": "weights"}, 503)
        info = self.engine.info
        return JSONResponse({"status": "ok", "model": info.name, "quant": info.quantization})

    async def models(self, request: Request) -> Response:
        if denied := self._denied(request):
            return denied
        return JSONResponse({"object": "list", "data": [{"id": self.engine.info.name, "object": "model"}]})

    async def show_bodies(self, request: Request) -> Response:
        return JSONResponse(self.bodies)

    def _denied(self, request: Request) -> Response | None:
        if self.api_key is None or request.headers.get("authorization") == f"Bearer {self.api_key}":
            return None
        return _error(401, "Incorrect API key provided.", "invalid_api_key")

    async def chat(self, request: Request) -> Response:
        if denied := self._denied(request):
            return denied
        body = await request.json()
        self.bodies.append(body)
        text = body["messages"][-1]["content"]
        if text.startswith("fail"):
            return _error(500, "The engine is on fire.", None)
        prompt = 31 + sum(len(message["content"]) // 4 for message in body["messages"]) + 120
        sequence = self.engine.add(prompt, body.get("max_tokens"))
        return StreamingResponse(self.stream(text, sequence), media_type="text/event-stream")

    async def stream(self, text: str, sequence: FakeSequence) -> AsyncIterator[str]:
        base = {"id": sequence.request_id, "object": "chat.completion.chunk", "created": 1, "model": "smollm2-135m"}

        def frame(delta: dict[str, str], finish: str | None = None, **more: object) -> str:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            return f"data: {json.dumps({**base, 'choices': [choice], **more})}\n\n"

        try:
            await asyncio.sleep(5 if text.startswith("wait") else self.delay_s)
            while sequence.computed < sequence.prompt:
                self.engine.prefill(sequence, 64)
                await asyncio.sleep(self.delay_s)
            yield frame({"role": "assistant", "content": ""})
            for number, piece in enumerate(script(text)):
                if sequence.max_tokens is not None and number >= sequence.max_tokens:
                    break
                if number == 3 and text.startswith("break"):
                    yield f"event: error\ndata: {json.dumps({'error': {'message': 'The pool burst.'}})}\n\n"
                    return
                if number == 2 and text.startswith("hang up"):
                    return
                self.engine.decode(sequence)
                yield frame({"content": piece})
                await asyncio.sleep(self.delay_s)
            usage = {
                "prompt_tokens": sequence.prompt,
                "completion_tokens": sequence.generated,
                "total_tokens": sequence.prompt + sequence.generated,
                "prompt_tokens_details": {"cached_tokens": sequence.cached},
            }
            yield frame({}, "length" if text.startswith("limit") else "stop")
            yield f"data: {json.dumps({**base, 'choices': [], 'usage': usage})}\n\n"
            yield "data: [DONE]\n\n"
        finally:
            self.engine.finish(sequence)

    async def keep_busy(self) -> None:
        """Requests of many sizes, up to twelve at once with a few waiting."""
        rng = random.Random(7)

        async def one(sequence: FakeSequence, tokens: int) -> None:
            while sequence.computed < sequence.prompt:
                self.engine.prefill(sequence, 64)
                await asyncio.sleep(0.1)
            for _ in range(min(tokens, sequence.max_tokens or tokens)):
                self.engine.decode(sequence)
                await asyncio.sleep(0.02)
            self.engine.finish(sequence)

        waiting: list[FakeSequence] = []
        running: set[asyncio.Task[None]] = set()
        while True:
            if len(waiting) < 3:
                waiting.append(self.engine.add(rng.randint(90, 700), rng.randint(100, 400)))
            if len(running) < 4 + 8 * (time.monotonic() % 20 > 8):
                task = asyncio.create_task(one(waiting.pop(0), rng.randint(100, 300)))
                running.add(task)
                task.add_done_callback(running.discard)
            await asyncio.sleep(rng.uniform(0.05, 0.6))


@contextlib.contextmanager
def running_fake_server(**options: Any) -> Iterator[str]:
    """The server in a thread of its own; ``options`` as FakeServer. Gives its URL."""
    listening = socket.create_server(("127.0.0.1", 0))
    fake = FakeServer(**options)
    config = uvicorn.Config(fake.app(), log_level="warning", ws="none", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        fake.live.close()
        server.should_exit = True
        thread.join()
        listening.close()


def _error(status: int, message: str, code: str | None) -> Response:
    return JSONResponse({"error": {"message": message, "type": "error", "param": None, "code": code}}, status)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--load-s", type=float, default=0)
    parser.add_argument("--api-key")
    parser.add_argument("--demo", action="store_true")
    args = parser.parse_args()
    server = FakeServer(load_s=args.load_s, api_key=args.api_key)
    print("loading weights", flush=True)
    uvicorn.run(server.app(demo=args.demo), port=args.port, log_level="warning", timeout_graceful_shutdown=1)


if __name__ == "__main__":
    main()
