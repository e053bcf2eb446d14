"""The unmodified ``openai`` client against a real server process."""

from __future__ import annotations

import json
import socket
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest
from openai import BadRequestError, NotFoundError, OpenAI

from tests.e2e.server import ServerProcess

MODEL = "smollm2-135m"
CAPITAL = "What is the capital of France?"


def chat(client: OpenAI, text: str, **options: object):
    return client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": text}], temperature=0, **options
    )


def stats(server: ServerProcess) -> dict[str, float]:
    with urllib.request.urlopen(f"{server.base_url}/stats", timeout=10) as reply:
        return json.load(reply)


def test_chat_answers(client: OpenAI) -> None:
    reply = chat(client, CAPITAL)
    assert reply.choices[0].message.content == "The capital of France is Paris."
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply.usage.prompt_tokens_details.cached_tokens >= 0


def test_streamed_chat_is_the_same_text(client: OpenAI) -> None:
    whole = chat(client, "Tell me about the sea.", max_tokens=40)
    chunks = list(chat(client, "Tell me about the sea.", max_tokens=40, stream=True))
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole.choices[0].message.content
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason == "length"


def test_completions_streamed_and_not(client: OpenAI) -> None:
    ask = {"model": MODEL, "prompt": "1 2 3 4 5 6", "temperature": 0, "max_tokens": 8}
    whole = client.completions.create(**ask)
    assert whole.choices[0].text == " 7 8 9 10"[: len(whole.choices[0].text)]
    assert whole.usage.completion_tokens == 8
    joined = "".join(chunk.choices[0].text for chunk in client.completions.create(**ask, stream=True) if chunk.choices)
    assert joined == whole.choices[0].text


def test_models_and_health(client: OpenAI, server: ServerProcess) -> None:
    assert MODEL in [model.id for model in client.models.list()]
    with urllib.request.urlopen(f"{server.base_url}/health", timeout=10) as reply:
        assert json.load(reply)["status"] == "ok"


def test_eight_at_once_all_answer_right(client: OpenAI) -> None:
    questions = [f"{CAPITAL}", "Count from one to five.", "Name three colours.", "What is 2 + 2?"] * 2
    alone = [chat(client, question, max_tokens=24).choices[0].message.content for question in questions[:4]]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda q: chat(client, q, max_tokens=24).choices[0].message.content, questions))
    assert together == alone * 2


def test_a_bad_request_is_refused_and_harms_nobody(client: OpenAI) -> None:
    with pytest.raises(BadRequestError) as refused:
        chat(client, "hi", max_tokens=-1)
    assert refused.value.body["param"] == "max_tokens"  # type: ignore[index]
    with pytest.raises(BadRequestError) as refused:
        chat(client, "word " * 9000, stream=True)
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(NotFoundError):
        client.chat.completions.create(model="another", messages=[{"role": "user", "content": "hi"}])
    assert chat(client, CAPITAL).choices[0].message.content == "The capital of France is Paris."


def test_a_client_that_leaves_frees_its_blocks(server: ServerProcess) -> None:
    body = json.dumps({"model": MODEL, "prompt": "Once upon a time", "max_tokens": 4000, "ignore_eos": True})
    host, port = server.base_url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as connection:
        connection.sendall(
            f"POST /v1/completions HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        )
        wait_for(lambda: stats(server)["requests_active"] == 1)
    wait_for(lambda: stats(server)["requests_active"] == 0)
    after = stats(server)
    assert after["kv_blocks_used"] == after["kv_blocks_cached"]


def wait_for(condition, seconds: float = 10) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.02)
