"""A client that goes, in any state, ends its work; a slow one slows nobody."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest

from tests.api.fakes import FakeEngine, Script
from tests.api.harness import CHAT, COMPLETIONS, HI, Api, parse_stream
from tests.api.tiny_text import ids

Send = Callable[[Any], Awaitable[None]]


class Client:
    """One request at the ASGI level, whose client reads and leaves when told to."""

    def __init__(self, app: Any, path: str, body: dict[str, Any] | None) -> None:
        self.sent: list[dict[str, Any]] = []
        self.gone = asyncio.Event()
        self.reads = asyncio.Event()
        self.reads.set()
        self._body = body
        scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "headers": [],
            "query_string": b"",
            "root_path": "",
            "http_version": "1.1",
        }
        self.task = asyncio.create_task(app(scope, self._receive, self._send))

    async def _receive(self) -> dict[str, Any]:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": json.dumps(body).encode()}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: dict[str, Any]) -> None:
        await self.reads.wait()
        self.sent.append(message)

    @property
    def raw(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    async def leave(self) -> None:
        self.gone.set()
        await asyncio.wait_for(self.task, 20)


async def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        await asyncio.sleep(0.002)


PATHS = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
STREAM = pytest.mark.parametrize("stream", [False, True])


def body(stream: bool, **fields: Any) -> dict[str, Any]:
    return {"messages": HI, "prompt": ["a", "b"], "stream": stream, "max_tokens": 400, **fields}


@PATHS
@STREAM
@pytest.mark.parametrize("first_delay_s", [0.0, 30.0])
def test_a_client_that_leaves_ends_its_work_within_a_step(path: str, stream: bool, first_delay_s: float) -> None:
    """Before the first token and in the middle, streaming or not."""
    engine = FakeEngine(
        lambda request: Script(lambda index: ids("abc" * 100), delay_s=0.01, first_delay_s=first_delay_s)
    )
    api = Api(engine=engine)

    async def run() -> None:
        client = Client(api.app, path, body(stream))
        await until(lambda: bool(engine.live) and (first_delay_s > 0 or engine.count["decoded"] > 3))
        decoded = engine.count["decoded"]
        await client.leave()
        assert not engine.live
        assert engine.count["decoded"] <= decoded + 2
        if not stream:
            assert client.sent == []

    asyncio.run(run())
    assert sorted(engine.closed) == sorted(request.request_id for request in engine.requests)
    assert api.get("/health").status == 200


def test_a_client_that_leaves_while_its_prompt_is_tokenised_starts_nothing() -> None:
    api = Api()
    entered, release = threading.Event(), threading.Event()
    encode = api.text.completion_prompt

    def slow(text: str, fits: Callable[[int], None] | None = None) -> list[int]:
        entered.set()
        release.wait(5)
        return encode(text, fits)

    api.text.completion_prompt = slow  # type: ignore[method-assign]

    async def run() -> None:
        client = Client(api.app, COMPLETIONS, body(False))
        await until(entered.is_set)
        await client.leave()
        release.set()
        await asyncio.sleep(0.05)
        assert client.sent == []

    asyncio.run(run())
    assert not api.engine.requests


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize"])
def test_a_client_that_leaves_in_its_body_is_forgotten(path: str) -> None:
    api = Api()

    async def run() -> None:
        client = Client(api.app, path, None)
        await client.leave()
        assert client.sent == []

    asyncio.run(run())
    assert not api.engine.requests


@STREAM
def test_a_server_that_ends_tells_its_clients(stream: bool) -> None:
    """It cancels what still runs when draining takes too long."""
    engine = FakeEngine(lambda request: Script(first_delay_s=30))
    api = Api(engine=engine, open_after_s=0.01)

    async def run() -> None:
        client = Client(api.app, CHAT, body(stream))
        await until(lambda: bool(engine.live) and (not stream or bool(client.sent)))
        client.task.cancel()
        await client.task
        assert not engine.live
        error = parse_stream(200, httpx.Headers(), client.raw).error if stream else json.loads(client.raw)["error"]
        assert error["type"] == "engine_unavailable"
        assert client.sent[0]["status"] == (200 if stream else 503)
        assert not client.sent[-1].get("more_body", False)

    asyncio.run(run())


def test_a_slow_reader_gets_coalesced_frames_and_slows_nobody() -> None:
    engine = FakeEngine(lambda request: Script(lambda index: ids("abc" * 100)))
    api = Api(engine=engine)

    async def run() -> None:
        slow, quick = Client(api.app, CHAT, body(True)), Client(api.app, CHAT, body(True))
        slow.reads.clear()
        await asyncio.wait_for(quick.task, 20)
        await until(lambda: not engine.live)  # the engine has finished both
        slow.reads.set()
        await asyncio.wait_for(slow.task, 20)
        for client in (slow, quick):
            stream = parse_stream(200, httpx.Headers(), client.raw)
            assert stream.text() == "abc" * 100
            assert stream.finishes() == ["length"]
        assert len(slow.sent) < 10
        assert slow.raw.count(b"content") < 50

    asyncio.run(run())


def test_a_stop_string_ends_the_engine_although_nobody_reads() -> None:
    engine = FakeEngine(lambda request: Script(lambda index: ids("abcd" * 100), delay_s=0.001))
    api = Api(engine=engine)

    async def run() -> None:
        client = Client(api.app, CHAT, body(True, stop="cd"))
        client.reads.clear()
        await until(lambda: bool(engine.requests) and not engine.live)
        assert engine.count["decoded"] < 20
        client.reads.set()
        await asyncio.wait_for(client.task, 20)
        assert parse_stream(200, httpx.Headers(), client.raw).text() == "ab"

    asyncio.run(run())


def test_many_at_once_keep_to_themselves() -> None:
    engine = FakeEngine(lambda request: Script(lambda index: ids(f"{request.request_id}-{index}"), delay_s=0.001))
    api = Api(engine=engine)

    async def run() -> None:
        clients = [Client(api.app, CHAT, body(True, n=2, request_id=f"r{number}")) for number in range(40)]
        await asyncio.gather(*(client.task for client in clients))
        for number, client in enumerate(clients):
            stream = parse_stream(200, httpx.Headers(), client.raw)
            assert [stream.text(index) for index in range(2)] == [f"r{number}-0", f"r{number}-1"]

    asyncio.run(run())


def test_con_01_health_answers_while_a_prompt_is_tokenised() -> None:
    api = Api()
    release = threading.Event()
    encode = api.text.completion_prompt

    def slow(text: str, fits: Callable[[int], None] | None = None) -> list[int]:
        release.wait(5)
        return encode(text, fits)

    api.text.completion_prompt = slow  # type: ignore[method-assign]

    async def run() -> None:
        async with api.client() as client:
            task = asyncio.create_task(client.post(COMPLETIONS, json={"prompt": "a"}))
            for _ in range(20):
                started = time.monotonic()
                assert (await client.get("/health")).status_code == 200
                assert time.monotonic() - started < 0.5
            assert not task.done()
            release.set()
            assert (await task).status_code == 200

    asyncio.run(run())
