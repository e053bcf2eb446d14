"""The API under uvicorn over an engine that emits tokens at a wanted pace from a thread of its own, for ``bench.api``.

The pace is the request's cache_salt: ``rate=100`` tokens/s on its own clock, ``rate=100,steps`` at the same moments as
all others (as an engine that batches does), ``rate=0`` as fast as they are read. ``GET /times/ID`` tells when each
token was emitted, on this machine's monotonic clock.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from itertools import cycle, islice

from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from mlxserve.api.app import create_app
from mlxserve.api.server import serve
from mlxserve.api.settings import ApiSettings
from mlxserve.formats.checkpoint import open_checkpoint
from mlxserve.text.load import load_text
from mlxserve.text.processor import TextProcessor
from mlxserve.types import Delta, ModelInfo, Request, Snapshot, Stats, Usage

TICK_S = 0.001
LEAD = 256  # unread tokens of a stream without a pace
WORDS = " the of and to in is that for it as was with be by on not he this are or his from at which but".split(" ")


class Feed:
    """One request's tokens: made in the engine's thread, read in the event loop."""

    def __init__(self, request: Request, token_ids: tuple[int, ...]) -> None:
        pace = dict(part.partition("=")[::2] for part in request.salt.split(","))
        self.rate = float(pace["rate"])
        self.emitted: list[float] = []
        self.unread: deque[Delta] = deque()
        self.waiter: asyncio.Future[None] | None = None
        self._total = request.params.max_tokens or 0
        self._deltas = self._make(request, token_ids)
        now = time.monotonic()
        self.next_at = (now * self.rate // 1 + 1) / self.rate if "steps" in pace else now

    def _make(self, request: Request, token_ids: tuple[int, ...]) -> Iterator[Delta]:
        made = [Delta(request_id=request.request_id, token_ids=(token,)) for token in token_ids]
        yield from islice(cycle(made), self._total - 1)
        usage = Usage(len(request.prompt), self._total, 0)
        yield dataclasses.replace(made[0], finish_reason="length", usage=usage)

    @property
    def done(self) -> bool:
        return len(self.emitted) == self._total

    def due(self, now: float) -> int:
        """How many tokens to emit now."""
        if not self.rate:
            return min(LEAD - len(self.unread), self._total - len(self.emitted))
        count = 0
        while self.next_at <= now and len(self.emitted) + count < self._total:
            self.next_at += 1 / self.rate
            count += 1
        return count

    def emit(self, count: int) -> list[Delta]:
        self.emitted += [time.monotonic()] * count
        return list(islice(self._deltas, count))

    def put(self, deltas: list[Delta]) -> None:
        self.unread += deltas
        if self.waiter is not None and not self.waiter.done():
            self.waiter.set_result(None)


class PacedEngine:
    """Emits in a thread; one wake-up of the event loop a moment, whatever the number of streams."""

    def __init__(self, info: ModelInfo, token_ids: tuple[int, ...]) -> None:
        self.info = info
        self.times: dict[str, list[float]] = {}
        self._token_ids = token_ids
        self._feeds: list[Feed] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._started = time.monotonic()
        self._wake = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    async def generate(self, request: Request) -> AsyncGenerator[Delta, None]:
        loop = self._loop = asyncio.get_running_loop()
        feed = Feed(request, self._token_ids)
        self.times[request.request_id] = feed.emitted
        self._feeds = [*self._feeds, feed]
        self._wake.set()
        try:
            while True:
                while feed.unread:
                    delta = feed.unread.popleft()
                    yield delta
                    if delta.finish_reason is not None:
                        return
                feed.waiter = loop.create_future()
                await feed.waiter
        finally:
            self._feeds = [other for other in self._feeds if other is not feed]

    def _run(self) -> None:
        while True:
            feeds = self._feeds
            if not feeds:
                self._wake.wait()
                self._wake.clear()
                continue
            now = time.monotonic()
            mail = [(feed, feed.emit(count)) for feed in feeds if (count := feed.due(now)) > 0]
            if mail and self._loop is not None:
                self._loop.call_soon_threadsafe(_deliver, mail)
            paced = [feed.next_at for feed in feeds if feed.rate and not feed.done]
            time.sleep(min(TICK_S, max(0.0, min(paced, default=now + TICK_S) - time.monotonic())))

    def abort(self, request_id: str, index: int | None = None, keep: int | None = None) -> None:
        """Nothing here ends early."""

    def healthy(self) -> str | None:
        return None

    async def snapshot(self) -> Snapshot:
        raise NotImplementedError

    def stats(self) -> Stats:
        zeros: dict[str, float] = {field.name: 0 for field in dataclasses.fields(Stats)}
        return Stats(**zeros | {"uptime_s": time.monotonic() - self._started})  # type: ignore[arg-type]


def _deliver(mail: list[tuple[Feed, list[Delta]]]) -> None:
    for feed, deltas in mail:
        feed.put(deltas)


def build(max_model_len: int = 1 << 20) -> tuple[PacedEngine, TextProcessor]:
    checkpoint = open_checkpoint("smollm2-135m")
    text = load_text(checkpoint.tokenizer, checkpoint.eos_token_ids)
    token_ids = tuple(text.tokenizer.encode(" " + word)[0] for word in WORDS)
    info = ModelInfo(
        name="bench",
        quantization="none",
        backend="fake",
        dtype="float32",
        vocab_size=text.tokenizer.vocab_size,
        max_model_len=max_model_len,
        block_size=16,
        num_blocks=1 << 20,
        max_num_seqs=64,
        eos_token_ids=checkpoint.eos_token_ids,
    )
    return PacedEngine(info, token_ids), text


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--coalesce-after", type=int, default=1 << 30)
    args = parser.parse_args()
    engine, text = build()

    async def times(request: HttpRequest) -> Response:
        return JSONResponse(engine.times.pop(request.path_params["id"]))

    settings = ApiSettings(served_names=("bench",), coalesce_after=args.coalesce_after)
    app = create_app(engine, text, engine.info, settings, pages=[Route("/times/{id}", times)])
    serve(app, "127.0.0.1", 0, on_ready=lambda url: print(url, flush=True))


if __name__ == "__main__":
    main()
