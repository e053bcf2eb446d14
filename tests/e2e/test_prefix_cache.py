"""The prefix cache as a client sees it, on a real server."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.e2e.server import ServerProcess

MODEL = "smollm2-135m"
LONG = "Rules: " + " ".join(f"point {i} is {i * 7 % 13};" for i in range(24))


def chat(server: ServerProcess, text: str, system: str | None = None, **fields: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}] if system else []
    body = {"model": MODEL, "messages": [*messages, {"role": "user", "content": text}], "temperature": 0, **fields}
    reply = httpx.post(f"{server.base_url}/v1/chat/completions", json={"max_tokens": 6, **body}, timeout=120)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def cached(answer: dict[str, Any]) -> int:
    count: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


def content(answer: dict[str, Any]) -> str:
    text: str = answer["choices"][0]["message"]["content"]
    return text


def ids(length: int) -> list[int]:
    """A prompt of distinct ordinary tokens, of which shorter ones are beginnings."""
    return [(100 + 37 * i) % 40_000 for i in range(length)]


def complete(server: ServerProcess, prompt: object, **fields: Any) -> dict[str, Any]:
    body = {"model": MODEL, "prompt": prompt, "temperature": 0, "logprobs": 5, **fields}
    reply = httpx.post(f"{server.base_url}/v1/completions", json=body, timeout=120)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    """Two choices of one prompt: the same tokens, with log-probabilities that differ by rounding alone."""
    assert one["text"] == other["text"]
    assert one["logprobs"]["tokens"] == other["logprobs"]["tokens"]
    assert one["logprobs"]["token_logprobs"] == pytest.approx(other["logprobs"]["token_logprobs"], abs=1e-3)


def test_pfx_01_answers_are_the_same_cold_and_warm(server: ServerProcess) -> None:
    """PFX-01: whole numbers of blocks, and one token more or less."""
    for length in (15, 16, 17, 31, 32, 33, 63, 64, 65, 255, 256, 257):
        cold = complete(server, ids(length), max_tokens=8, cache_salt=f"cold {length}")
        warm = complete(server, ids(length), max_tokens=8, cache_salt=f"cold {length}")
        same(cold["choices"][0], warm["choices"][0])
        assert cached(cold) == 0
        assert (cached(warm) > 0) == (length > 16)
        assert cached(warm) < length


def test_num_01_answers_are_the_same_alone_and_in_company(server: ServerProcess) -> None:
    """NUM-01: one at a time, all at once, and as the prompts of one request."""
    prompts = [[(11 + 41 * n + 37 * i) % 40_000 for i in range(1 + 5 * n)] for n in range(12)]
    alone = [complete(server, prompt, max_tokens=12)["choices"][0] for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        together = list(pool.map(lambda prompt: complete(server, prompt, max_tokens=12)["choices"][0], prompts))
    listed = complete(server, prompts, max_tokens=12)["choices"]
    assert [choice["index"] for choice in listed] == list(range(len(prompts)))
    for choices in zip(alone, together, listed, strict=True):
        same(choices[0], choices[1])
        same(choices[0], choices[2])


def test_pfx_03_no_request_leaves_anything_in_another(server: ServerProcess) -> None:
    """PFX-03: the same small prompt among others, and among streams that are broken off."""
    first = content(chat(server, "Hi!"))
    for i in range(3):
        chat(server, f"Name a thing that weighs {i} kg.")
        body = {"model": MODEL, "messages": [{"role": "user", "content": f"Story {i}"}], "stream": True}
        with httpx.stream("POST", f"{server.base_url}/v1/chat/completions", json=body, timeout=60) as stream:
            next(stream.iter_lines())
        assert content(chat(server, "Hi!")) == first


def test_pfx_06_an_adapter_is_refused_not_ignored(server: ServerProcess) -> None:
    """PFX-06."""
    for field in ("adapter", "adapters"):
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], field: "a"}
        reply = httpx.post(f"{server.base_url}/v1/chat/completions", json=body, timeout=60)
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == field


def test_pfx_07_salts_separate(server: ServerProcess) -> None:
    """PFX-07."""
    ask = {"system": "Salted. " + LONG, "text": "Which point is 7?"}
    answers = [chat(server, **ask, cache_salt=salt) for salt in ("a", "b", "a")]
    unsalted = chat(server, **ask)
    assert [cached(one) > 0 for one in (*answers, unsalted)] == [False, False, True, False]
    assert len({content(one) for one in (*answers, unsalted)}) == 1
    for bad in ("", 5):
        body = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "cache_salt": bad}
        reply = httpx.post(f"{server.base_url}/v1/chat/completions", json=body, timeout=60)
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == "cache_salt"


@pytest.mark.parametrize(
    "fields", [{"stream": False}, {"chat_template_kwargs": {}}, {"chat_template_kwargs": {"x": 1}}]
)
def test_pfx_10_every_shape_of_request_fills_and_hits_the_cache(server: ServerProcess, fields: dict[str, Any]) -> None:
    """PFX-10."""
    system = f"For {fields}. {LONG}"
    assert cached(chat(server, "one", system, **fields)) < 40
    second = chat(server, "one", system, **fields)
    assert cached(second) > 100
    assert cached(second) < second["usage"]["prompt_tokens"]


def test_pfx_10_streams_do_too(server: ServerProcess) -> None:
    """PFX-10."""
    body = {
        "model": MODEL,
        "messages": [{"role": "system", "content": "Streamed. " + LONG}, {"role": "user", "content": "one"}],
        "max_tokens": 4,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    for _ in range(2):
        reply = httpx.post(f"{server.base_url}/v1/chat/completions", json=body, timeout=120)
        usage = [line for line in reply.text.splitlines() if '"usage":{' in line][-1]
    hit = int(usage.split('"cached_tokens":')[1].split("}")[0])
    assert hit > 100
    assert cached(chat(server, "one", "Streamed. " + LONG)) == hit


def test_pfx_12_only_the_common_beginning_counts_as_cached(server: ServerProcess) -> None:
    """PFX-12."""
    heads = [f"x-anthropic-billing-header: v=1; cch={code};\nYou are terse. {LONG}" for code in ("a1b2c", "9f8e7")]
    first, second = (chat(server, "one", head) for head in heads)
    assert cached(second) < 40 <= first["usage"]["prompt_tokens"]


def test_a_report_says_why_the_cache_missed(server: ServerProcess) -> None:
    chat(server, "one", "Reported. " + LONG)
    answer = chat(server, "Which of these points is the largest of all? " * 4, "Reported. " + LONG, cache_report=True)
    [report] = answer["cache_report"]
    assert report["cached_tokens"] == cached(answer) > 100
    assert report["divergent_position"] >= report["cached_tokens"]
    assert report["reason"] in ("other_token", "never_seen")
