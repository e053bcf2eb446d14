"""Tokens become text without loss, and log-probabilities name each token's own bytes."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.fakes import logprob_of
from tests.api.harness import CHAT, COMPLETIONS, HI, Api
from tests.api.tiny_text import ids

BOTH = pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
REPLACEMENT = [239, 191, 189]


@BOTH
@pytest.mark.parametrize("per_delta", [1, 3, 5])
def test_det_01_characters_of_several_tokens_are_whole_in_every_frame(path: str, per_delta: int) -> None:
    api = Api("🦙" * 4 + "é你", per_delta=per_delta)
    stream = api.stream(path, max_tokens=40)
    assert stream.text() == "🦙" * 4 + "é你"
    assert "\ufffd" not in stream.raw.decode()
    assert api.post(path, {"messages": HI, "prompt": "a", "max_tokens": 40}).text() == stream.text()


@BOTH
@pytest.mark.parametrize("said", [" 7 8", "  fox", " ", "\n a"])
def test_det_03_leading_space_is_kept(path: str, said: str) -> None:
    assert Api(said).stream(path).text() == said
    assert Api(said).post(path, {"messages": HI, "prompt": "a"}).text() == said


def test_det_04_a_prompt_that_ends_inside_a_character_is_not_emitted_again() -> None:
    api = Api("🦙".encode()[2:] + b"!")
    prompt = list(ids(b"Hello world " + "🦙".encode()[:2]))
    answer, stream = api.complete(prompt, max_tokens=6), api.stream(COMPLETIONS, prompt=prompt, max_tokens=6)
    assert answer.text() == stream.text()
    assert "Hello" not in answer.text()
    assert answer.text().endswith("!")
    assert answer.json["usage"]["prompt_tokens"] == len(prompt)


@BOTH
def test_a_character_cut_by_the_limit_is_one_replacement_character(path: str) -> None:
    api = Api("a🦙", eos=False)
    for max_tokens in (2, 3, 4):
        stream = api.stream(path, max_tokens=max_tokens)
        assert (
            stream.text()
            == "a\ufffd"
            == api.post(path, {"messages": HI, "prompt": "a", "max_tokens": max_tokens}).text()
        )


@pytest.mark.parametrize("max_tokens", [5, 8, 40])
def test_det_06_bytes_are_the_tokens_own(max_tokens: int) -> None:
    api = Api("🦙🙂 你好", eos=False)
    choice = api.chat(max_tokens=max_tokens, logprobs=True, top_logprobs=3).json["choices"][0]
    content = choice["logprobs"]["content"]
    joined = bytes(byte for entry in content for byte in entry["bytes"])
    assert joined.decode("utf-8", "replace").startswith(choice["message"]["content"].rstrip("\ufffd"))
    if max_tokens == 40:
        assert joined == "🦙🙂 你好".encode()
    for entry in content:
        assert len(entry["top_logprobs"]) == 3
        assert len({shown["token"] for shown in entry["top_logprobs"]}) == 3
        for shown in (entry, *entry["top_logprobs"]):
            assert shown["bytes"] != REPLACEMENT
            assert shown["token"]


def chat_logprobs(**fields: Any) -> Any:
    return Api("abc", eos=False).chat(**{"max_tokens": 3, "logprobs": True} | fields).json["choices"][0]["logprobs"]


@pytest.mark.parametrize("top", [{}, {"top_logprobs": 0}, {"top_logprobs": None}])
def test_prm_11_logprobs_without_alternatives(top: dict[str, Any]) -> None:
    content = chat_logprobs(**top)["content"]
    assert [entry["token"] for entry in content] == ["a", "b", "c"]
    assert [entry["bytes"] for entry in content] == [[97], [98], [99]]
    assert [entry["logprob"] for entry in content] == [logprob_of(token) for token in ids("abc")]
    assert all(entry["top_logprobs"] == [] for entry in content)


def test_prm_11_what_is_refused() -> None:
    api = Api()
    api.refused(api.chat(top_logprobs=3), "top_logprobs")
    api.refused(api.chat(logprobs=False, top_logprobs=3), "top_logprobs")
    api.refused(api.chat(logprobs=True, top_logprobs=21), "top_logprobs")
    api.refused(api.chat(logprobs=1), "logprobs")
    assert api.chat(logprobs=False).json["choices"][0]["logprobs"] is None
    assert api.chat(top_logprobs=0).status == 200


def test_one_entry_a_completion_token_also_for_the_one_that_ends_it() -> None:
    answer = Api("ab").chat(logprobs=True)
    content = answer.json["choices"][0]["logprobs"]["content"]
    assert len(content) == answer.json["usage"]["completion_tokens"] == 3
    assert content[-1]["token"] == "<|im_end|>"
    answer = Api("abcdef", per_delta=9).chat(logprobs=True, stop="cd")
    content = answer.json["choices"][0]["logprobs"]["content"]
    assert len(content) == answer.json["usage"]["completion_tokens"] == 4


def test_prm_12_completions_logprobs() -> None:
    api = Api("abcd", eos=False)
    for top, alternatives in ((0, 1), (2, 2), (5, 5)):
        choice = api.complete(max_tokens=4, logprobs=top).json["choices"][0]
        logprobs = choice["logprobs"]
        assert "".join(logprobs["tokens"]) == choice["text"] == "abcd"
        assert logprobs["token_logprobs"] == [logprob_of(token) for token in ids("abcd")]
        assert all(len(each) == alternatives for each in logprobs["top_logprobs"])
        assert logprobs["text_offset"] == [0, 1, 2, 3]
    assert api.complete().json["choices"][0]["logprobs"] is None
    for wrong in (True, -1, 21, 10**6):
        api.refused(api.complete(logprobs=wrong), "logprobs")


@pytest.mark.parametrize("max_tokens", [0, 1, 3])
@pytest.mark.parametrize("prompt", ["The capital", "é🦙x", list(ids("ab"))])
def test_prm_14_echo_with_prompt_logprobs(max_tokens: int, prompt: Any) -> None:
    text = prompt if isinstance(prompt, str) else "ab"
    tokens = ids(text)
    api = Api("xyz", eos=False)
    answer = api.complete(prompt, echo=True, logprobs=1, max_tokens=max_tokens)
    choice = answer.json["choices"][0]
    assert choice["text"] == text + "xyz"[:max_tokens]
    logprobs = choice["logprobs"]
    assert len(logprobs["tokens"]) == len(tokens) + max_tokens == answer.json["usage"]["total_tokens"]
    assert logprobs["token_logprobs"][0] is None
    assert logprobs["top_logprobs"][0] is None
    assert logprobs["token_logprobs"][1:] == [
        logprob_of(token) for token in (*tokens, *ids("xyz"))[1 : len(tokens) + max_tokens]
    ]
    offsets = logprobs["text_offset"]
    assert offsets[0] == 0
    assert offsets == sorted(offsets)
    assert choice["text"][offsets[-1]] == choice["text"][-1]
    assert api.engine.requests[0].params.prompt_logprobs == 1
    stream = api.stream(COMPLETIONS, prompt=prompt, echo=True, logprobs=1, max_tokens=max_tokens)
    assert stream.text() == choice["text"]


def test_echo_without_logprobs_and_for_every_choice() -> None:
    api = Api("xyz", eos=False)
    answer = api.complete(["ab", "cd"], echo=True, n=2, max_tokens=2)
    assert [answer.text(index) for index in range(4)] == ["abxy", "abxy", "cdxy", "cdxy"]
    assert api.engine.requests[0].params.prompt_logprobs is None
    assert api.complete(echo=False).text() == "xyz"


def test_a_special_token_spelled_in_an_echoed_prompt_keeps_the_offsets() -> None:
    choice = Api("xy", eos=False).complete("a<|im_end|>b", echo=True, logprobs=0, max_tokens=2).json["choices"][0]
    assert choice["text"] == "a<|im_end|>bxy"
    assert choice["logprobs"]["tokens"] == ["a", "<|im_end|>", "b", "x", "y"]
    assert choice["logprobs"]["text_offset"] == [0, 1, 11, 12, 13]


def test_many_log_probabilities_are_the_same_as_few() -> None:
    """Long lists are written in another thread."""
    api = Api("a" * 200, eos=False)
    many = api.complete("b" * 200, echo=True, logprobs=2, max_tokens=100).json["choices"][0]["logprobs"]
    assert len(many["tokens"]) == 300
    stream = api.stream(COMPLETIONS, prompt="b" * 200, echo=True, logprobs=2, max_tokens=100)
    assert [token for choice in stream.choices() for token in choice["logprobs"]["tokens"]] == many["tokens"]


def test_tokenize_and_detokenize() -> None:
    api = Api()
    answer = api.post("/tokenize", prompt="é", return_token_strs=True)
    assert answer.json["tokens"] == list(ids("é"))
    assert answer.json["count"] == 2
    assert answer.json["max_model_len"] == 512
    assert len(answer.json["token_strs"]) == 2
    chat = api.post("/tokenize", messages=HI)
    assert chat.json["count"] == api.chat().json["usage"]["prompt_tokens"]
    rendered = api.post("/apply-template", messages=HI).json["prompt"]
    assert rendered == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert api.post("/tokenize", prompt=rendered).json["tokens"] == chat.json["tokens"]
    assert api.post("/detokenize", tokens=list(ids("é🦙"))).json == {"prompt": "é🦙"}
    assert api.post("/detokenize", tokens=[]).json == {"prompt": ""}
    for wrong in ([300], [-1], ["a"], [1.5], None):
        assert api.post("/detokenize", tokens=wrong).status == 400
    assert api.post("/tokenize", {}).status == 400
    assert api.post("/tokenize", prompt="a", messages=HI).status == 400
    for path in ("/tokenize", "/detokenize", "/apply-template"):
        assert api.post(path, model="other", messages=HI, tokens=[5]).status == 404
    assert len(api.engine.requests) == 1
