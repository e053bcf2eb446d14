"""Hand-made frames decode to exactly what the types in ``answers`` say, and nothing else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from mlxserve.api.answers import Answer, ChatAnswer, ChatChunk, CompletionAnswer, CompletionChunk, ErrorAnswer
from mlxserve.api.events import Event, coalesce
from mlxserve.api.frames import error_event, json_text
from mlxserve.errors import GenerationFailed
from mlxserve.types import TokenLogprob, Usage
from tests.api.harness import CHAT, COMPLETIONS, HI, Api

FIELDS: list[dict[str, Any]] = [
    {},
    {"n": 2, "stop": "th"},
    {"stream_options": {"include_usage": True}},
    {"stream_options": {}, "cache_report": True},
    {"max_tokens": 3, "cache_report": True},
    {"logprobs": 2},
]


def allowed(kind: type[Answer], value: Any) -> None:
    """Raises unless the value has this type and no field that the type lacks."""
    shown = msgspec.to_builtins(msgspec.convert(value, kind))
    assert shown == value


@pytest.mark.parametrize("fields", FIELDS)
@pytest.mark.parametrize(
    ("path", "chunk", "whole"), [(CHAT, ChatChunk, ChatAnswer), (COMPLETIONS, CompletionChunk, CompletionAnswer)]
)
def test_frames_and_bodies_are_of_their_types(
    path: str, chunk: type[Answer], whole: type[Answer], fields: dict[str, Any]
) -> None:
    if path == CHAT and "logprobs" in fields:
        fields = {"logprobs": True, "top_logprobs": 2}
    api = Api("Hé 🦙 there")
    for frame in api.stream(path, **fields).frames:
        allowed(chunk, frame)
    fields = {name: value for name, value in fields.items() if name != "stream_options"}
    allowed(whole, api.post(path, {"messages": HI, "prompt": "a", **fields}).json)


def test_an_error_event_holds_the_error_object() -> None:
    name, data = error_event(GenerationFailed("broken")).decode().rstrip("\n").split("\n")
    assert name == "event: error"
    allowed(ErrorAnswer, msgspec.json.decode(data.removeprefix("data: ")))


@pytest.mark.parametrize("text", ["", "plain", 'q"\\\n\x00', "é\u2028\u2029\x85🦙", "\ufffd"])
def test_json_text_is_json_on_one_line(text: str) -> None:
    encoded = json_text(text)
    assert msgspec.json.decode(encoded) == text
    assert len(encoded.decode().splitlines()) == 1


def test_coalescing_joins_each_choice_and_keeps_an_echo_apart() -> None:
    usage = Usage(1, 3, 0)
    waiting = [
        Event(0, "echo", (1,), (None,), is_prompt=True),
        Event(1, "echo", (1,), (None,), is_prompt=True),
        Event(0, "a", (2,), (TokenLogprob(2, -1.0),)),
        Event(1, "x", (3,), (TokenLogprob(3, -2.0),)),
        Event(0, "b", (4, 5), (TokenLogprob(4, -1.0), TokenLogprob(5, -1.0)), "stop", usage),
    ]
    joined = coalesce(waiting)
    assert [(event.index, event.text, event.is_prompt) for event in joined] == [
        (0, "echo", True),
        (1, "echo", True),
        (0, "ab", False),
        (1, "x", False),
    ]
    assert joined[2].token_ids == (2, 4, 5)
    assert [entry and entry.token_id for entry in joined[2].logprobs or ()] == [2, 4, 5]
    assert joined[2].finish_reason == "stop"
    assert joined[2].usage == usage
    assert joined[3] is waiting[3]
