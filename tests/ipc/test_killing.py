"""The engine's process killed at whatever moment hypothesis finds: every request ends, and the engine comes back.

Processes are real and start in a tenth of a second, for their runner is a fake. What is drawn never depends on time;
what happens between the rules does.
"""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar

import httpx
import pytest
from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from mlxserve.api.app import create_app
from mlxserve.api.settings import ApiSettings
from mlxserve.config import EngineConfig, ModelConfig
from mlxserve.errors import EngineUnavailable
from mlxserve.ipc.engine import ProcessEngine
from mlxserve.types import Request
from tests.api.tiny_text import tiny_text
from tests.engine.support import Outputs, collect, expected, request
from tests.ipc.fake_process import DEADLY
from tests.ipc.test_process_engine import COMMAND

T = TypeVar("T")
PATIENCE_S = 20.0  # what takes longer hangs
TOKENS = st.integers(1, 40)
MOMENT_S = st.sampled_from((0.0, 0.001, 0.005, 0.02, 0.1))


class Reader:
    """One request's client: what it got, and how it ended."""

    def __init__(self, engine: ProcessEngine, r: Request) -> None:
        self.request = r
        self.outputs: Outputs = {}
        self.told: EngineUnavailable | None = None
        self.cut = False  # aborted, or the client left
        self.task = asyncio.ensure_future(self._read(engine))

    @property
    def most(self) -> int:
        return max((len(output.tokens) for output in self.outputs.values()), default=0)

    async def _read(self, engine: ProcessEngine) -> None:
        try:
            async with aclosing(engine.generate(self.request)) as deltas:
                async for delta in deltas:
                    collect(self.outputs, [delta])
        except EngineUnavailable as error:
            self.told = error

    def check(self) -> None:
        """It ended; what it got is the reference's text, whole unless it was told why not."""
        assert self.task.done()
        if not self.task.cancelled():
            self.task.result()
        for (_, index), output in self.outputs.items():
            wanted = expected(self.request, index)
            assert output.tokens == wanted[: len(output.tokens)]
            if self.told is None and not self.cut:
                assert output.tokens == wanted
        if self.told is None and not self.cut:
            assert len(self.outputs) == self.request.params.n


class Killing(RuleBasedStateMachine):
    readers = Bundle("readers")

    @initialize()
    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.pids = Path(self.folder.name, "pids")
        command = (*COMMAND, str(self.pids))
        self.engine = ProcessEngine(command, ModelConfig(model="fake"), EngineConfig(), backoff_s=(0.05,))
        info, _ = self.engine.start()
        app = create_app(self.engine, tiny_text(), info, ApiSettings(served_names=("fake",)))
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")
        self.loop = asyncio.new_event_loop()
        self.everybody: list[Reader] = []

    def play(self, scenario: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(scenario, PATIENCE_S))

    async def until(self, condition: Callable[[], object]) -> None:
        while not condition():
            await asyncio.sleep(0.002)

    async def health(self) -> int:
        answer = await self.client.get("/health")
        assert (answer.status_code, answer.json()["status"]) in ((200, "ok"), (503, "unavailable"))
        assert (answer.status_code == 503) == bool(answer.json().get("reason"))
        return answer.status_code

    async def healthy(self, status: int) -> None:
        while await self.health() != status:
            await asyncio.sleep(0.002)

    async def read(self, **fields: Any) -> Reader:
        reader = Reader(self.engine, request(f"r{len(self.everybody)}", **fields))
        self.everybody.append(reader)
        await asyncio.sleep(0)
        return reader

    async def kill(self) -> None:
        """Unless it is being started, the death of the process shows in /health."""
        up, pid = await self.health() == 200, self.engine.pid
        try:
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:  # killed before, and not yet started again
            return
        if up:
            await self.healthy(503)

    @rule(target=readers, prompt=st.integers(1, 60), max_tokens=TOKENS, n=st.integers(1, 3), ignore_eos=st.booleans())
    def add(self, prompt: int, max_tokens: int, n: int, ignore_eos: bool) -> Reader:
        return self.play(self.read(prompt=prompt, max_tokens=max_tokens, n=n, ignore_eos=ignore_eos))

    @rule(reader=readers, tokens=TOKENS)
    def stream(self, reader: Reader, tokens: int) -> None:
        self.play(self.until(lambda: reader.most >= tokens or reader.task.done()))

    @rule(reader=consumes(readers))
    def abort(self, reader: Reader) -> None:
        async def scenario() -> None:
            self.engine.abort(reader.request.request_id)
            await self.until(reader.task.done)

        reader.cut = True
        self.play(scenario())

    @rule(reader=consumes(readers))
    def leave(self, reader: Reader) -> None:
        reader.cut = True
        reader.task.cancel()
        self.play(self.until(reader.task.done))

    @rule(reader=readers, tokens=TOKENS)
    def kill_when_it_has_said_so_much(self, reader: Reader, tokens: int) -> None:
        async def scenario() -> None:
            await self.until(lambda: reader.most >= tokens or reader.task.done())
            await self.kill()
            await self.until(reader.task.done)

        self.play(scenario())

    @rule(seconds=MOMENT_S, again=MOMENT_S | st.none())
    def kill_after(self, seconds: float, again: float | None) -> None:
        """``again``: the next process too, perhaps while it is starting."""

        async def scenario() -> None:
            await asyncio.sleep(seconds)
            before = self.engine.pid
            await self.kill()
            if again is not None:
                await self.until(lambda: self.engine.pid != before)
                await asyncio.sleep(again)
                await self.kill()

        self.play(scenario())

    @rule()
    def kill_in_a_step(self) -> None:
        async def scenario() -> None:
            await self.healthy(200)
            reader = await self.read(prompt=(DEADLY, 1, 2), max_tokens=4)
            await self.until(reader.task.done)
            assert reader.told is not None
            assert reader.outputs == {}

        self.play(scenario())

    @rule()
    def recover(self) -> None:
        async def scenario() -> None:
            await self.healthy(200)
            reader = await self.read(prompt=20, max_tokens=10)
            await self.until(reader.task.done)
            assert reader.told is None
            reader.check()

        self.play(scenario())

    @invariant()
    def who_has_ended_ended_well(self) -> None:
        for reader in self.everybody:
            if reader.task.done():
                reader.check()

    def teardown(self) -> None:
        async def ended() -> None:
            await self.until(lambda: all(reader.task.done() for reader in self.everybody))
            await self.client.aclose()

        try:
            self.play(ended())
            for reader in self.everybody:
                reader.check()
        finally:
            self.engine.shutdown()
            self.loop.close()
        for pid in map(int, self.pids.read_text().split()):
            with pytest.raises(ProcessLookupError):  # else it is left over, or was never waited for
                os.kill(pid, 0)
        self.folder.cleanup()


TestKilling = Killing.TestCase
# No shrinking: what hangs would hang again, for as long.
TestKilling.settings = settings(max_examples=10, stateful_step_count=30, deadline=None, phases=[Phase.generate])
