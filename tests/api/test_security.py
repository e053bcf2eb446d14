"""What a hostile request may not do."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from tests.api.harness import CHAT, COMPLETIONS, HI, Api

NAMES = [
    "../../etc",
    "/etc/passwd",
    "/var",
    "org/other-model",
    "http://127.0.0.1:9/x",
    "",
    "M\x00x",
    "a" * 10_240,
    "FAKE",
]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize", "/apply-template"])
@pytest.mark.parametrize("name", NAMES)
def test_sec_01_the_model_field_is_only_compared(path: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api()

    def never(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("a file was opened")

    monkeypatch.setattr("builtins.open", never)
    answer = api.post(path, {"model": name, "messages": HI, "prompt": "a", "tokens": [5]})
    monkeypatch.undo()
    assert answer.status == 404
    assert answer.error["code"] == "model_not_found"
    assert len(answer.raw) < 500
    assert not api.engine.requests


def test_sec_01_a_model_that_is_no_string_is_a_400_and_null_is_absent() -> None:
    api = Api()
    for wrong in (5, True, [], {}):
        api.refused(api.chat(model=wrong), "model")
    assert api.chat(model=None).status == 200
    same = [api.chat(model=name).error["message"] for name in ("/etc/passwd", "/etc/no-such-file")]
    assert same[0].replace("/etc/passwd", "") == same[1].replace("/etc/no-such-file", "")


BOMB = "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}"


def test_sec_03_no_template_comes_from_a_request() -> None:
    api = Api()
    api.refused(api.chat(chat_template=BOMB), "chat_template")
    api.refused(api.post("/tokenize", messages=HI, chat_template=BOMB), "chat_template")
    for name in ("chat_template", "tokenize", "tools", "messages", "add_generation_prompt", "continue_final_message"):
        api.refused(api.chat(chat_template_kwargs={name: BOMB}), "chat_template_kwargs")
        api.refused(api.post("/apply-template", messages=HI, chat_template_kwargs={name: BOMB}), "chat_template_kwargs")
    assert not api.engine.requests


def test_sec_05_without_the_key_everything_but_health_is_401() -> None:
    api = Api(api_keys=("k-123", "é-key"))
    routes = [(method, route.path) for route in api.app.routes for method in route.methods]  # type: ignore[attr-defined]
    assert len(routes) > 14
    for method, path in [*routes, ("GET", "/nothing"), ("POST", "/v1/embeddings")]:
        for key in (
            {},
            {"authorization": "Bearer wrong"},
            {"authorization": "k-123"},
            {"authorization": "Basic k-123"},
        ):
            answer = api.request(method, path, headers=key)
            if path == "/health":
                assert answer.status == 200
            else:
                assert answer.status == 401, (method, path)
                assert method == "HEAD" or answer.error["code"] == "invalid_api_key"
    assert api.get("/v1/models?api_key=k-123&key=k-123").status == 401
    for scheme in ("Bearer", "bearer"):
        assert api.get("/v1/models", authorization=f"{scheme} k-123").status == 200
    assert api.request("GET", "/v1/models", headers={"authorization": "Bearer é-key".encode()}).status == 200


def test_sec_05_the_default_host_is_this_machine() -> None:
    from mlxserve.config import ServerConfig

    assert ServerConfig().host == "127.0.0.1"


MULTIPLIERS = [
    (CHAT, {"n": 10**6}, "n"),
    (CHAT, {"n": 0}, "n"),
    (CHAT, {"n": -1}, "n"),
    (COMPLETIONS, {"best_of": 10**6}, "best_of"),
    (COMPLETIONS, {"prompt": [""] * 10**5}, "prompt"),
    (COMPLETIONS, {"prompt": [[5]] * 10**5}, "prompt"),
    (COMPLETIONS, {"logprobs": 49152}, "logprobs"),
    (COMPLETIONS, {"prompt_logprobs": -1}, "prompt_logprobs"),
    (CHAT, {"logprobs": True, "top_logprobs": 10**9}, "top_logprobs"),
    (CHAT, {"max_tokens": 10**18}, "messages"),
    (COMPLETIONS, {"max_tokens": 10**18}, "prompt"),
    (CHAT, {"min_tokens": 10**18}, "min_tokens"),
]


@pytest.mark.parametrize(("path", "fields", "param"), MULTIPLIERS)
def test_sec_07_multipliers_are_capped(path: str, fields: dict[str, Any], param: str) -> None:
    api = Api()
    started = time.process_time()
    api.refused(api.post(path, ({"messages": HI} if path == CHAT else {"prompt": "1 2"}) | fields), param)
    assert time.process_time() - started < 1
    assert not api.engine.requests


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize", "/detokenize", "/apply-template"])
def test_a_body_over_the_limit_is_refused_before_it_is_held(path: str, declared: bool) -> None:
    """Its size may be declared or found out."""
    api = Api(body_limit=1000)
    sent = 0

    async def body() -> Any:
        nonlocal sent
        for _ in range(100):
            sent += 100
            yield b"x" * 100

    async def run() -> Any:
        async with api.client() as client:
            headers = {"content-length": "10000"} if declared else {}
            return await client.post(path, content=body(), headers=headers)

    answer = asyncio.run(run())
    assert answer.status_code == 413
    assert "1000" in answer.json()["error"]["message"]
    assert sent <= 1200


def test_a_content_length_that_is_no_number_is_refused() -> None:
    assert Api().request("POST", CHAT, content=b"{}", headers={"content-length": "-5"}).status == 400


def test_values_in_messages_are_shortened() -> None:
    api = Api()
    for answer in (api.chat(temperature="x" * 10**6), api.chat(model="x" * 10**6), api.chat(**{"n" * 10**5: 1})):
        assert len(answer.raw) < 1000
        assert sum(len(value) for value in answer.headers.values()) < 1000
    many = {f"field{number}": 1 for number in range(2000)}
    assert len(api.chat(**many).headers["x-mlxserve-ignored"]) < 4000
