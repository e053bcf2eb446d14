import asyncio

import pytest

from mlxserve.engine.delta_stream import DeltaStream
from mlxserve.engine.readers import Readers, call
from mlxserve.errors import EngineUnavailable
from mlxserve.types import Delta
from tests.engine.support import request


def delta(request_id: str, *tokens: int, index: int = 0, end: bool = False) -> Delta:
    return Delta(request_id=request_id, index=index, token_ids=tokens, finish_reason="length" if end else None)


def test_each_reader_gets_its_own_until_its_last_choice_has_ended():
    async def scenario():
        readers, streams = Readers(), {name: DeltaStream() for name in "ab"}
        for name, stream in streams.items():
            readers.add(request(name, n=2), stream)
        assert readers.deliver([delta("a", 1), delta("b", 2), delta("a", 3, index=1, end=True), delta("c", 9)]) == []
        await asyncio.sleep(0)
        assert await streams["a"].take() == [delta("a", 1), delta("a", 3, index=1, end=True)]
        assert await streams["b"].take() == [delta("b", 2)]
        assert "a" in readers
        readers.deliver([delta("a", end=True)])
        assert "a" not in readers
        assert readers.ids() == ["b"]
        assert readers.holds("b", streams["b"])
        assert not readers.holds("b", streams["a"])

    asyncio.run(scenario())


def test_a_loop_is_woken_once_for_what_it_has_not_read():
    async def scenario():
        loop, wakeups = asyncio.get_running_loop(), []
        original = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda callback, *args: wakeups.append(callback) or original(callback, *args)
        readers, stream = Readers(), DeltaStream()
        readers.add(request("a"), stream)
        for token in range(3):
            readers.deliver([delta("a", token)])
        assert len(wakeups) == 1
        assert await stream.take() == [delta("a", 0, 1, 2)]
        readers.deliver([delta("a", 3)])
        assert len(wakeups) == 2

    asyncio.run(scenario())


def test_failures_reach_whoever_reads():
    async def scenario():
        readers, streams = Readers(), {name: DeltaStream() for name in "abc"}
        for name, stream in streams.items():
            readers.add(request(name), stream)
        readers.fail("a", EngineUnavailable("one"))
        readers.fail("nobody", EngineUnavailable("one"))
        readers.fail_all(EngineUnavailable("all"))
        assert readers.ids() == []
        for name, message in (("a", "one"), ("b", "all"), ("c", "all")):
            with pytest.raises(EngineUnavailable, match=message):
                await streams[name].take()

    asyncio.run(scenario())


def test_a_closed_loop_is_told_to_the_engine():
    async def open_stream() -> DeltaStream:
        return DeltaStream()

    readers, stream = Readers(), asyncio.run(open_stream())
    readers.add(request("a"), stream)
    assert readers.deliver([delta("a", 1)]) == ["a"]
    call(stream.loop, lambda: None)
