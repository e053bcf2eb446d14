"""The thread, the event loops, and what happens when either goes away."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager

import pytest

from mlxserve.engine.async_engine import ThreadedEngine
from mlxserve.engine.core import Engine
from mlxserve.engine.interfaces import AsyncEngine
from mlxserve.errors import BadRequest, ContextLengthExceeded, EngineUnavailable
from mlxserve.types import Delta, Request
from tests.engine.support import VOCAB, Outputs, collect, expected, make_engine, request
from tests.fakes import FakeRunner


@contextmanager
def running(core: Engine | None = None) -> Iterator[ThreadedEngine]:
    engine = ThreadedEngine(core or make_engine())
    engine.start()
    try:
        yield engine
    finally:
        engine.shutdown()


def slow_core(step_s: float = 0.002, **fields) -> Engine:
    return make_engine(FakeRunner(num_blocks=400, vocab_size=VOCAB, step_s=step_s), **fields)


async def read(engine: AsyncEngine, r: Request) -> Outputs:
    outputs: Outputs = {}
    async for delta in engine.generate(r):
        collect(outputs, [delta])
    return outputs


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.002)


def play(scenario: Callable[[], Awaitable[None]]) -> None:
    async def limited():
        async with asyncio.timeout(20):
            await scenario()

    asyncio.run(limited())


def test_streams():
    async def scenario():
        requests = [request(f"r{i}", 5 + i, max_tokens=20, n=1 + i % 2, temperature=1.0, seed=i) for i in range(8)]
        for outputs, r in zip(await asyncio.gather(*(read(engine, r) for r in requests)), requests, strict=True):
            for i in range(r.params.n):
                assert outputs[r.request_id, i].tokens == expected(r, i)
        assert engine.healthy() is None
        assert engine.stats().requests_completed == 8

    with running() as engine:
        play(scenario)


def test_bad_requests_raise_before_the_first_delta():
    async def scenario():
        with pytest.raises(ContextLengthExceeded):
            await read(engine, request(max_tokens=10_000))
        first = engine.generate(request(max_tokens=300, ignore_eos=True))
        await anext(first)
        with pytest.raises(BadRequest, match="in flight"):
            await read(engine, request())
        assert engine.stats().requests_active == 1  # the refused one has not taken the other along
        await first.aclose()

    with running(slow_core()) as engine:
        play(scenario)


def test_closing_the_generator_aborts():
    """SCH-02."""

    async def scenario():
        for i in range(10):
            streams = [engine.generate(request(f"r{4 * i + k}", max_tokens=400, ignore_eos=True)) for k in range(4)]
            for stream in streams:
                await anext(stream)
            for stream in streams:
                await stream.aclose()
        outputs = await read(engine, request("last", max_tokens=3, ignore_eos=True))
        assert outputs["last", 0].reason == "length"
        await eventually(lambda: engine.stats().requests_active == 0)
        stats = engine.stats()
        assert (stats.requests_running, stats.queue_depth, stats.requests_aborted) == (0, 0, 40)
        assert stats.kv_blocks_used == stats.kv_blocks_cached
        assert not engine._readers.ids()

    with running(slow_core()) as engine:
        play(scenario)


def test_a_task_that_is_cancelled_aborts():
    async def scenario():
        task = asyncio.create_task(read(engine, request(max_tokens=400, ignore_eos=True)))
        await eventually(lambda: engine.stats().requests_running == 1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: engine.stats().requests_aborted == 1)

    with running(slow_core()) as engine:
        play(scenario)


def test_a_choice_cut_at_a_stop_string_ends_with_the_usage_that_counts():
    async def scenario():
        outputs: Outputs = {}
        async for delta in engine.generate(request(max_tokens=100, n=2, ignore_eos=True, temperature=1.0, seed=1)):
            collect(outputs, [delta])
            if delta.index == 1 and len(outputs["r", 1].tokens) >= 5 and outputs["r", 1].reason is None:
                engine.abort("r", 1, keep=3)
        assert (outputs["r", 0].reason, len(outputs["r", 0].tokens)) == ("length", 100)
        assert (outputs["r", 1].reason, outputs["r", 1].usage.completion_tokens) == ("abort", 3)
        assert engine.stats().requests_completed == 1

    with running(slow_core()) as engine:
        play(scenario)


def test_a_slow_reader_gets_fewer_and_longer_deltas():
    async def scenario():
        r = request(max_tokens=200, ignore_eos=True)
        async with aclosing(engine.generate(r)) as stream:
            deltas = [await anext(stream)]
            await eventually(lambda: engine.stats().requests_completed == 1)
            deltas += [delta async for delta in stream]
        assert sum((d.token_ids for d in deltas), ()) == expected(r)
        assert len(deltas) <= 3  # the last step may still be on its way when the engine has counted it

    with running(slow_core(0.001)) as engine:
        play(scenario)


def test_one_wake_up_a_step_at_most():
    async def scenario():
        loop = asyncio.get_running_loop()
        wakeups = 0
        original = loop.call_soon_threadsafe

        def counting(callback, *args, **kwargs):
            nonlocal wakeups
            wakeups += 1
            return original(callback, *args, **kwargs)

        loop.call_soon_threadsafe = counting
        await asyncio.gather(*(read(engine, request(f"r{i}", max_tokens=50, n=2, ignore_eos=True)) for i in range(8)))
        assert wakeups <= engine.stats().steps_total + 1

    with running(slow_core(max_num_seqs=16)) as engine:
        play(scenario)


def test_several_event_loops():
    def client(i: int) -> None:
        async def scenario():
            r = request(f"r{i}", 5 + i, max_tokens=50, ignore_eos=True)
            outputs = await read(engine, r)
            results[i] = outputs[f"r{i}", 0].tokens == expected(r)

        asyncio.run(scenario())

    results: dict[int, bool] = {}
    with running(slow_core()) as engine:
        threads = [threading.Thread(target=client, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == dict.fromkeys(range(4), True)


def test_a_loop_that_is_closed_under_a_stream_aborts_it():
    loop = asyncio.new_event_loop()
    with running(slow_core()) as engine:
        stream = engine.generate(request(max_tokens=400, ignore_eos=True))
        loop.run_until_complete(anext(stream))
        loop.close()
        play(lambda: eventually(lambda: engine.stats().requests_aborted == 1))
        play(lambda: read(engine, request("next", max_tokens=3)))
    asyncio.run(stream.aclose())


def test_snapshot():
    async def scenario():
        stream = engine.generate(request(prompt=20, max_tokens=400, ignore_eos=True))
        await anext(stream)
        snapshot = await engine.snapshot()
        assert [(v.request_id, v.state) for v in snapshot.running] == [("r", "decode")]
        await stream.aclose()

    with running(slow_core()) as engine:
        play(scenario)


class Broken:
    """A core whose step fails as only a fault of ours can."""

    def __init__(self, core: Engine, after: int) -> None:
        self._core = core
        self._steps = after

    def step(self) -> list[Delta]:
        self._steps -= 1
        assert self._steps > 0, "a planted bug"
        return self._core.step()

    def __getattr__(self, name: str):
        return getattr(self._core, name)


def test_the_death_of_the_thread_reaches_everybody(caplog):
    async def scenario():
        tasks = [asyncio.create_task(read(engine, request(f"r{i}", ignore_eos=True))) for i in range(6)]
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, EngineUnavailable)
            assert "a planted bug" in str(result)
        with pytest.raises(EngineUnavailable):
            await read(engine, request("later"))
        with pytest.raises(EngineUnavailable):
            await engine.snapshot()
        assert "a planted bug" in (engine.healthy() or "")
        assert engine.stats().requests_total == 6
        engine.abort("r1")

    core = slow_core()
    with caplog.at_level(logging.CRITICAL), running(Broken(core, after=20)) as engine:
        play(scenario)
    assert core._runner.closed


class TestShutdown:
    def test_drains(self):
        async def scenario():
            task = asyncio.create_task(read(engine, request(max_tokens=50, ignore_eos=True)))
            await eventually(lambda: engine.stats().requests_running == 1)
            down = asyncio.create_task(asyncio.to_thread(engine.shutdown, 10.0))
            await asyncio.sleep(0.01)
            with pytest.raises(EngineUnavailable, match="shutting down"):
                await read(engine, request("late"))
            outputs = await task
            assert outputs["r", 0].reason == "length"
            await down
            assert engine.healthy() == "The engine has been shut down"

        core = slow_core()
        with running(core) as engine:
            play(scenario)
        assert core._runner.closed

    def test_aborts_what_takes_longer(self):
        async def scenario():
            task = asyncio.create_task(read(engine, request(max_tokens=400, ignore_eos=True)))
            await eventually(lambda: engine.stats().requests_running == 1)
            start = time.monotonic()
            await asyncio.to_thread(engine.shutdown, 0.05)
            assert time.monotonic() - start < 0.5
            assert (await task)["r", 0].reason == "abort"

        with running(slow_core()) as engine:
            play(scenario)

    def test_before_the_start_and_twice(self):
        engine = ThreadedEngine(make_engine())
        assert engine.healthy() == "The engine has not been started"
        with pytest.raises(EngineUnavailable):
            play(lambda: read(engine, request()))
        engine.shutdown()
        engine.start()
        engine.shutdown()
        engine.shutdown()


def test_a_stalled_engine_is_not_healthy():
    now = [0.0]
    core = make_engine(clock=lambda: now[0])
    engine = ThreadedEngine(core)
    engine._down = None
    assert engine.healthy() is None
    now[0] = 20.0
    assert engine.healthy() == "The engine has not stepped for 20.0 s"


def test_an_idle_engine_is_healthy():
    with running() as engine:
        time.sleep(0.05)
        assert engine.healthy() is None
        assert engine.stats().last_step_age_s < 2
        assert engine.stats().steps_total == 0
