"""One answer over the wire: what is folded, and how each failure reads."""

from __future__ import annotations

import asyncio
import re
from contextlib import aclosing

import pytest

from mlxserve.errors import ConfigError
from mlxserve.tui.client import Answer, ChatClient, ChatFailed
from tests.fake_server import running_fake_server


async def ask(url: str, text: str, key: str | None = None, **sampling: float) -> Answer:
    async with ChatClient(url, key) as client:
        model = await client.model()
        async with aclosing(client.chat(model, [{"role": "user", "content": text}], sampling)) as answers:
            return [answer async for answer in answers][-1]


def test_an_answer_and_its_figures(fake_url: str) -> None:
    answer = asyncio.run(ask(fake_url + "/v1/", "hello"))
    assert answer.content == "You said: hello "
    assert (answer.finish_reason, answer.completion_tokens) == ("stop", 3)
    assert re.fullmatch(r"3 tokens, [\d.]+/s, first in \d+ ms, \d+% of the prompt cached", answer.facts())


@pytest.mark.parametrize(
    ("text", "match"),
    [("fail", "The engine is on fire."), ("break long", "The pool burst."), ("hang up", "The connection")],
)
def test_failures_say_why(fake_url: str, text: str, match: str) -> None:
    with pytest.raises(ChatFailed, match=match):
        asyncio.run(ask(fake_url, text))


def test_reasoning_apart_from_the_text() -> None:
    answer = Answer()
    answer.receive({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
    assert answer.first_after_s is None
    answer.receive({"choices": [{"delta": {"reasoning_content": "hm"}}]})
    answer.receive({"choices": [{"delta": {"content": "x"}, "finish_reason": "length"}]})
    answer.receive(
        {"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 9, "prompt_tokens_details": None}}
    )
    assert (answer.reasoning, answer.content, answer.finish_reason) == ("hm", "x", "length")
    assert answer.completion_tokens == 9
    assert "0% of the prompt" in answer.facts()


def test_a_key_is_sent() -> None:
    with running_fake_server(api_key="secret", delay_s=0) as url:
        assert asyncio.run(ask(url, "hi", "secret")).content == "You said: hi "
        with pytest.raises(ChatFailed, match="asks for an API key"):
            asyncio.run(ask(url, "hi"))


def test_readiness() -> None:
    async def ready(url: str) -> str | None:
        async with ChatClient(url) as client:
            return None if (not_ready := await client.ready()) is None else not_ready.reason

    with running_fake_server() as url:
        assert asyncio.run(ready(url.removeprefix("http://"))) is None, "http:// is understood"
    with running_fake_server(load_s=600) as url:
        assert asyncio.run(ready(url)) == "it answers 503, 0% of its model is loaded"
    assert asyncio.run(ready(url)) == "no server answers: All connection attempts failed"
    with pytest.raises(ConfigError, match="--base-url is ftp://localhost, but must begin with http:// or https://"):
        asyncio.run(ready("ftp://localhost"))
    with pytest.raises(ConfigError, match="--base-url is http://host:x, but that is no address"):
        asyncio.run(ready("http://host:x"))


def test_leaving_an_answer_ends_the_request(fake_url: str) -> None:
    async def leave() -> str:
        async with (
            ChatClient(fake_url) as client,
            aclosing(client.chat("m", [{"role": "user", "content": "long"}], {})) as answers,
        ):
            async for answer in answers:
                if answer.completion_tokens == 3:
                    return answer.content
        return ""

    assert asyncio.run(leave()) == "word0 word1 word2 "
