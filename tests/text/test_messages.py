"""OpenAI's messages in the one form that templates get, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mlxserve.errors import BadRequest
from mlxserve.text.messages import in_parts, normalise_messages, rendering_forms


def one(**message: Any) -> dict[str, Any]:
    [out] = normalise_messages([message])
    return out


def part(text: str, kind: str = "text") -> dict[str, str]:
    return {"type": kind, kind: text}


def call(arguments: object, **more: Any) -> dict[str, Any]:
    return {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}, **more}


def test_tpl_01_parts_become_their_text() -> None:
    assert one(role="user", content=[part("hi")]) == one(role="user", content="hi")
    assert one(role="user", content=[part("alpha"), part(" beta")])["content"] == "alpha beta"
    assert one(role="assistant", content=[part("No.", "refusal")])["content"] == "No."


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "user", "content": []}, "messages[0].content"),
        (
            {"role": "user", "content": [{"type": "image_url", "image_url": {}}]},
            "messages[0].content[0]",
        ),
        ({"role": "user", "content": [part("a"), {"type": "input_audio"}]}, "messages[0].content[1]"),
        ({"role": "user", "content": [{"type": "text"}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": [{"type": "text", "text": 5}]}, "messages[0].content[0].text"),
        ({"role": "user", "content": ["hi"]}, "messages[0].content[0]"),
        ({"role": "user", "content": None}, "messages[0].content"),
        ({"role": "user"}, "messages[0].content"),
        ({"role": "user", "content": 5}, "messages[0].content"),
        ({"role": "user", "content": {"type": "text", "text": "a"}}, "messages[0].content"),
        ({"role": "tool", "content": None}, "messages[0].content"),
        ({"role": "banana", "content": "hi"}, "messages[0].role"),
        ({"content": "hi"}, "messages[0].role"),
        ({"role": ["user"], "content": "hi"}, "messages[0].role"),
        ("hi", "messages[0]"),
        (None, "messages[0]"),
        ({"role": "assistant", "tool_calls": "x"}, "messages[0].tool_calls"),
        ({"role": "assistant", "tool_calls": [5]}, "messages[0].tool_calls[0]"),
        ({"role": "assistant", "tool_calls": [{"id": "c"}]}, "messages[0].tool_calls[0]"),
        ({"role": "assistant", "tool_calls": [call(5)]}, "messages[0].tool_calls[0].function.arguments"),
        ({"role": "assistant", "content": "a", "reasoning_content": 5}, "messages[0].reasoning_content"),
    ],
)
def test_what_is_wrong_is_named(message: object, param: str) -> None:
    """TPL-01, TPL-03: a 400, never a failure in the template."""
    with pytest.raises(BadRequest) as error:
        normalise_messages([message])
    assert error.value.param == param
    assert error.value.status == 400
    assert param.split(".")[0] in error.value.message


@pytest.mark.parametrize("messages", [[], None, "hi", {}, 5])
def test_there_must_be_messages(messages: object) -> None:
    with pytest.raises(BadRequest, match="at least one") as error:
        normalise_messages(messages)
    assert error.value.param == "messages"


def test_tpl_03_developer_is_system() -> None:
    assert one(role="developer", content="Be brief.") == {"role": "system", "content": "Be brief."}
    assert one(role="function", name="f", content="4") == {"role": "tool", "name": "f", "content": "4"}


def test_tpl_11_arguments_are_a_mapping_where_they_parse() -> None:
    def arguments(value: object) -> Any:
        return one(role="assistant", tool_calls=[call(value)])["tool_calls"][0]["function"]["arguments"]

    assert arguments('{"city":"Oslo"}') == {"city": "Oslo"}
    assert arguments({"city": "Oslo"}) == {"city": "Oslo"}
    for text in ("", "{", "{'city': 'Oslo'}", "[1]", '"x"', "null", "5", "[" * 100_000):
        assert arguments(text) == text
    bare = {"function": {"name": "f"}}
    assert one(role="assistant", tool_calls=[bare])["tool_calls"] == [{"function": {"name": "f", "arguments": {}}}]


def test_tpl_14_replayed_fields_are_tolerated() -> None:
    replayed = {
        "role": "assistant",
        "content": "Hello",
        "reasoning_content": "x\u0001y",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": [],
        "name": "bot",
    }
    message = one(**replayed)
    assert message["content"] == "Hello"
    assert message["reasoning_content"] == message["thinking"] == "x\u0001y"
    assert not {"refusal", "audio", "function_call", "tool_calls"} & message.keys()
    assert "content" not in one(role="assistant", content=None, tool_calls=None)
    assert one(role="assistant", content=None, refusal="I can't.")["content"] == "I can't."
    assert one(role="assistant", content="a", reasoning="r")["reasoning_content"] == "r"


def test_the_old_form_of_a_call() -> None:
    message = one(role="assistant", content=None, function_call={"name": "f", "arguments": '{"a": 1}'})
    assert message["tool_calls"] == [{"type": "function", "function": {"name": "f", "arguments": {"a": 1}}}]


def test_forms_that_templates_take_the_usual_one_first() -> None:
    plain = normalise_messages([{"role": "user", "content": "hi"}])
    assert list(rendering_forms(plain)) == [plain]
    messages = normalise_messages([{"role": "assistant", "content": None, "tool_calls": [call('{"a":"é"}')]}])
    usual, filled, texts = rendering_forms(messages)
    assert usual == messages
    assert "content" not in usual[0]
    assert filled[0]["content"] == ""
    assert filled[0]["tool_calls"] == usual[0]["tool_calls"]
    assert json.loads(texts[0]["tool_calls"][0]["function"]["arguments"]) == {"a": "é"}
    assert "content" not in messages[0], "nothing of the client's is changed"


def test_in_parts() -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant"}]
    assert in_parts(messages) == [{"role": "user", "content": [part("hi")]}, {"role": "assistant"}]
