"""The engine in a process of its own: the same answers as in a thread, and what happens when it dies."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing, contextmanager

import pytest

from mlxserve.api.metrics import _COUNTERS
from mlxserve.config import EngineConfig, ModelConfig
from mlxserve.errors import BadRequest, CheckpointError, EngineUnavailable
from mlxserve.ipc.child import HEARTBEAT_S
from mlxserve.ipc.engine import ProcessEngine
from mlxserve.ipc.totals import COUNTERS
from mlxserve.types import Request
from tests.engine.support import Outputs, collect, expected, request
from tests.ipc.fake_process import DEADLY

COMMAND = (sys.executable, "-m", "tests.ipc.fake_process")


@contextmanager
def running(model: str = "fake") -> Iterator[ProcessEngine]:
    engine = ProcessEngine(COMMAND, ModelConfig(model=model), EngineConfig())
    try:
        engine.start()
        yield engine
    finally:
        engine.shutdown()


def play(scenario: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await scenario()

    asyncio.run(bounded())


async def read(engine: ProcessEngine, r: Request) -> tuple[int, ...]:
    outputs: Outputs = {}
    async for delta in engine.generate(r):
        collect(outputs, [delta])
    return outputs[r.request_id, 0].tokens


async def eventually(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.02)


def test_it_loads_says_what_it_is_and_answers() -> None:
    async def scenario() -> None:
        wanted = [request(f"r{i}", prompt=5 + i, max_tokens=20) for i in range(12)]
        got = await asyncio.gather(*(read(engine, r) for r in wanted))
        assert got == [expected(r) for r in wanted]
        await eventually(lambda: engine.stats().requests_completed == 12)
        snapshot = await engine.snapshot()
        assert len(snapshot.blocks) == 400
        assert engine.healthy() is None

    engine = ProcessEngine(COMMAND, ModelConfig(model="fake"), EngineConfig())
    seen: list[tuple[int, int]] = []
    try:
        info, plan = engine.start(lambda done, total: seen.append((done, total)))
        assert (info.name, plan, seen) == ("fake", ["plan"], [(1, 2), (2, 2)])
        assert engine.stats().requests_total == 0
        play(scenario)
    finally:
        engine.shutdown()
    assert engine.healthy() == "The engine is shutting down"


@pytest.mark.parametrize(
    ("model", "error", "words"),
    [("broken", CheckpointError, "the model is broken"), ("crash", EngineUnavailable, "exit status 7")],
)
def test_a_model_that_does_not_load(model: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words), running(model):
        pass


def test_refusals_come_before_the_first_delta_and_harm_nobody() -> None:
    async def scenario() -> None:
        long = request("long", prompt=9, max_tokens=5000)
        with pytest.raises(BadRequest) as refused:
            await read(engine, long)
        assert refused.value.code == "context_length_exceeded"
        first = engine.generate(request("same", max_tokens=400, ignore_eos=True))
        await anext(first)
        with pytest.raises(BadRequest, match="already in flight"):
            await read(engine, request("same"))
        await first.aclose()
        await eventually(lambda: engine.stats().requests_aborted == 1)

    with running() as engine:
        play(scenario)


def test_a_choice_can_be_cut() -> None:
    async def scenario() -> None:
        outputs: Outputs = {}
        async with aclosing(engine.generate(request("r", max_tokens=400, ignore_eos=True))) as deltas:
            async for delta in deltas:
                collect(outputs, [delta])
                if len(outputs["r", 0].tokens) >= 5:
                    engine.abort("r", 0, keep=5)
        last = outputs["r", 0].deltas[-1]
        assert last.finish_reason == "abort"
        assert last.usage is not None
        assert last.usage.completion_tokens == 5

    with running() as engine:
        play(scenario)


def test_an_idle_engine_that_is_watched_shows_that_it_is_alive() -> None:
    """Whoever watches asks more often than an idle engine beats."""

    async def scenario() -> None:
        until = time.monotonic() + 3 * HEARTBEAT_S
        while time.monotonic() < until:
            await engine.snapshot()
            await asyncio.sleep(HEARTBEAT_S / 10)
        assert engine.stats().last_step_age_s < 2 * HEARTBEAT_S

    with running() as engine:
        play(scenario)


def test_a_crash_is_told_and_the_engine_comes_back() -> None:
    async def scenario() -> None:
        first_pid = engine.pid
        steady = asyncio.create_task(read(engine, request("steady", max_tokens=400, ignore_eos=True)))
        await eventually(lambda: engine.stats().requests_active == 1)
        watcher = asyncio.create_task(engine.snapshot())
        await watcher
        with pytest.raises(EngineUnavailable, match=f"signal {signal.SIGABRT.value}"):
            await read(engine, request("deadly", prompt=(DEADLY, 1, 2)))
        with pytest.raises(EngineUnavailable):
            await steady
        await eventually(lambda: engine.healthy() is None)
        assert engine.pid != first_pid
        again = request("again", max_tokens=20)
        assert await read(engine, again) == expected(again)

    with running() as engine:
        play(scenario)


def test_counters_and_uptime_go_on_when_the_process_is_started_again() -> None:
    """What was in flight has failed, so that every request that was counted has ended one way or another."""

    async def scenario() -> None:
        await read(engine, request("whole", max_tokens=20))
        steady = asyncio.create_task(read(engine, request("steady", max_tokens=400, ignore_eos=True)))
        await eventually(lambda: engine.stats().requests_active == 1 and engine.stats().requests_completed == 1)
        before, pid = engine.stats(), engine.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(EngineUnavailable):
            await steady
        down = engine.stats()
        await eventually(lambda: engine.healthy() is None)
        assert engine.pid != pid
        await read(engine, request("again", max_tokens=20))
        await eventually(lambda: engine.stats().requests_completed == 2)
        back, seen = engine.stats(), (await engine.snapshot()).stats
        for earlier, later in ((before, down), (down, back), (back, seen)):
            assert all(getattr(earlier, name) <= getattr(later, name) for name in (*COUNTERS, "uptime_s"))
        for stats in (back, seen):
            assert (stats.requests_total, stats.requests_completed, stats.errors_total) == (3, 2, 1)
        assert (down.requests_active, down.errors_total) == (0, 1)

    with running() as engine:
        play(scenario)


def test_every_figure_that_grows_is_kept() -> None:
    """The Prometheus counters are figures of Stats whose names are told here once more."""
    assert set(COUNTERS) == {field for _, _, field in _COUNTERS}


def test_while_it_is_down_requests_are_refused_at_once() -> None:
    async def scenario() -> None:
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        await eventually(lambda: engine.healthy() is not None)
        assert "signal 9" in (engine.healthy() or "")
        with pytest.raises(EngineUnavailable, match="signal 9"):
            await read(engine, request())
        with pytest.raises(EngineUnavailable):
            await engine.snapshot()
        await eventually(lambda: engine.healthy() is None)

    with running() as engine:
        play(scenario)


def test_how_far_it_is_again_is_told() -> None:
    async def scenario() -> None:
        assert engine.pid is not None
        os.kill(engine.pid, signal.SIGKILL)
        await eventually(lambda: "started again, 50% of its weights are loaded" in (engine.healthy() or ""))
        await eventually(lambda: engine.healthy() is None)

    with running("slow") as engine:
        play(scenario)


def test_shutdown_drains() -> None:
    async def scenario() -> None:
        r = request("r", max_tokens=60, ignore_eos=True)
        reading = asyncio.create_task(read(engine, r))
        await eventually(lambda: engine.stats().requests_active == 1)
        await asyncio.to_thread(engine.shutdown, 20.0)
        assert len(await reading) == 60

    with running() as engine:
        play(scenario)


def test_one_that_loads_is_ended_at_once() -> None:
    def interrupt(done: int, total: int) -> None:
        raise KeyboardInterrupt

    engine = ProcessEngine(COMMAND, ModelConfig(model="endless"), EngineConfig())
    with pytest.raises(KeyboardInterrupt):
        engine.start(interrupt)
    started = time.monotonic()
    engine.shutdown()
    assert time.monotonic() - started < 1
    assert engine._process is not None
    assert engine._process.poll() == -signal.SIGKILL


def test_the_terminals_signals_are_not_for_the_process() -> None:
    """Ctrl-C goes to the whole foreground group, and it may still be importing."""
    with running() as engine:
        assert engine.pid is not None
        assert os.getsid(engine.pid) == engine.pid != os.getsid(0)


def test_the_process_does_not_outlive_its_server() -> None:
    with running() as engine:
        pid = engine.pid
        assert pid is not None
        assert engine._channel is not None
        engine._closing.set()  # as when the server is killed, nobody starts another
        engine._channel.close()
        end = time.monotonic() + 10
        while engine._process is not None and engine._process.poll() is None:
            assert time.monotonic() < end, "the process lives on"
            time.sleep(0.02)
