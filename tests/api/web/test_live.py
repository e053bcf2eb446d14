"""The snapshot stream: one question to the engine however many watch, none when nobody does."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxserve.api.web.live import Live, encode, spans
from mlxserve.errors import EngineUnavailable
from mlxserve.types import Snapshot
from tests.fake_engine import FakeEngine


class DownEngine:
    async def snapshot(self) -> Snapshot:
        raise EngineUnavailable("The engine died")


def parse(frame: bytes) -> tuple[str, dict[str, object]]:
    event, data, _ = frame.decode().split("\n", 2)
    return event.removeprefix("event: "), json.loads(data.removeprefix("data: "))


@given(st.lists(st.integers(0, 40), unique=True))
def test_spans_expand_to_the_table(table: list[int]) -> None:
    flat = spans(table)
    expanded = [b for first, length in zip(flat[::2], flat[1::2], strict=True) for b in range(first, first + length)]
    assert expanded == table


def test_a_contiguous_table_is_one_span() -> None:
    assert spans(range(3, 900)) == [3, 897]
    assert spans([]) == []


async def _busy_engine() -> FakeEngine:
    engine = FakeEngine(num_blocks=64)
    first = engine.add(prompt=100, max_tokens=5)
    while first.computed < first.prompt:
        engine.prefill(first, 64)
    engine.decode(first)
    second = engine.add(prompt=100)
    engine.prefill(second, 16)
    engine.add(prompt=30)
    return engine


def test_a_snapshot_on_the_wire() -> None:
    data = json.loads(encode(asyncio.run(_snapshot())))
    assert [s["state"] for s in data["running"]] == ["decode", "prefill"]
    assert [s["state"] for s in data["waiting"]] == ["waiting"]
    blocks = base64.b64decode(data["blocks"])
    assert len(blocks) == data["stats"]["kv_blocks_total"] == 64
    assert list(blocks[:4]) == [2, 2, 2, 2], "the first blocks are shared by both prompts"
    assert data["running"][0]["spans"] == [0, 7]
    assert data["running"][1]["cached_tokens"] == 64
    assert "blocks" not in data["running"][0]


async def _snapshot() -> Snapshot:
    return await (await _busy_engine()).snapshot()


def test_all_watchers_share_one_question() -> None:
    async def run() -> tuple[int, list[list[str]]]:
        engine = await _busy_engine()
        live = Live(engine, engine.info, interval_s=0.05)

        async def watch() -> list[str]:
            return [parse(frame)[0] async for frame in live.events()]

        watchers = [asyncio.create_task(watch()) for _ in range(20)]
        await asyncio.sleep(0.28)
        live.close()
        return engine.snapshots, await asyncio.gather(*watchers)

    asked, seen = asyncio.run(run())
    assert 2 <= asked <= 7
    assert all(events[0] == "model" and set(events[1:]) == {"snapshot"} and len(events) > 2 for events in seen)


def test_nobody_watching_costs_nothing_and_a_leaver_harms_no_other() -> None:
    async def run() -> tuple[int, int, str]:
        engine = await _busy_engine()
        live = Live(engine, engine.info, interval_s=0.01)
        staying, leaving = live.events(), live.events()
        for events in (staying, leaving):
            await anext(events)
        both = asyncio.gather(anext(staying), anext(leaving), return_exceptions=True)
        await asyncio.sleep(0)
        frame, _ = await both
        await leaving.aclose()
        assert not isinstance(frame, BaseException)
        kind, _ = parse(frame)
        await staying.aclose()
        before = engine.snapshots
        await asyncio.sleep(0.05)
        return before, engine.snapshots, kind

    before, after, kind = asyncio.run(run())
    assert before == after
    assert kind == "snapshot"


def test_an_engine_that_is_down_is_told_and_watched_on() -> None:
    async def run() -> list[tuple[str, dict[str, object]]]:
        live = Live(DownEngine(), FakeEngine().info, interval_s=0.01)
        events = live.events()
        frames = [parse(await anext(events)) for _ in range(3)]
        await events.aclose()
        return frames

    frames = asyncio.run(run())
    assert [kind for kind, _ in frames] == ["model", "down", "down"]
    assert frames[1][1] == {"message": "The engine died"}


@pytest.mark.parametrize("watchers", [0, 3])
def test_close_ends_every_stream(watchers: int) -> None:
    async def run() -> None:
        engine = FakeEngine()
        live = Live(engine, engine.info, interval_s=60)

        async def drain() -> int:
            return len([frame async for frame in live.events()])

        tasks = [asyncio.create_task(drain()) for _ in range(watchers)]
        await asyncio.sleep(0.01)
        live.close()
        assert await asyncio.wait_for(asyncio.gather(*tasks), 1) == [2] * watchers
        assert await drain() == 1

    asyncio.run(run())
