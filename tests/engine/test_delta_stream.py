import asyncio

import pytest

from mlxserve.engine.delta_stream import DeltaStream, merge
from mlxserve.errors import EngineUnavailable
from mlxserve.types import Delta, TokenLogprob, Usage


def delta(*tokens: int, index: int = 0, **fields) -> Delta:
    return Delta(request_id="r", index=index, token_ids=tokens, **fields)


def test_merge():
    logprobs = [tuple(TokenLogprob(t, -t) for t in part) for part in ((1,), (2, 3), ())]
    end = {"finish_reason": "length", "usage": Usage(1, 3, 0)}
    merged = merge(
        [
            delta(1, logprobs=logprobs[0], prompt_logprobs=(None,)),
            delta(2, 3, logprobs=logprobs[1]),
            delta(logprobs=logprobs[2], **end),
        ]
    )
    assert merged == delta(1, 2, 3, logprobs=sum(logprobs, ()), prompt_logprobs=(None,), **end)
    assert merge([delta(1), delta(2)]) == delta(1, 2)
    alone = delta(5)
    assert merge([alone]) is alone


def test_a_slow_reader_gets_one_delta_a_choice_and_nothing_piles_up():
    async def scenario():
        stream = DeltaStream()
        for i in range(1000):
            stream.put(delta(i, index=i % 2))
        assert sum(map(len, stream._unread.values())) < 100
        assert await stream.take() == [delta(*range(0, 1000, 2)), delta(*range(1, 1000, 2), index=1)]
        stream.put(delta(7))
        assert await stream.take() == [delta(7)]

    asyncio.run(scenario())


def test_take_waits():
    async def scenario():
        stream = DeltaStream()
        asyncio.get_running_loop().call_later(0.01, stream.put, delta(3))
        assert await stream.take() == [delta(3)]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stream.take(), 0.01)

    asyncio.run(scenario())


def test_what_is_unread_comes_before_the_failure():
    async def scenario():
        stream = DeltaStream()
        stream.put(delta(1))
        stream.fail(EngineUnavailable("gone"))
        assert await stream.take() == [delta(1)]
        for _ in range(2):
            with pytest.raises(EngineUnavailable, match="gone"):
                await stream.take()

    asyncio.run(scenario())
