"""OpenAI's chat messages as chat templates expect them: one form whatever the client wrote.

Knows nothing of templates' syntax or of tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from mlxserve.errors import BadRequest

Message = dict[str, Any]

_ROLES = {
    "system": "system",
    "developer": "system",  # what templates know it as
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",  # its old name
}

# Where clients put an assistant's reasoning. Templates read the first; one family reads "thinking".
_REASONING = ("reasoning_content", "thinking", "reasoning")


def normalise_messages(messages: object) -> list[Message]:
    """Plain messages with string content. Fields that are null are left out, unknown ones kept.

    An assistant's content may be absent. Raises BadRequest naming the first field that is wrong.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise BadRequest("messages must be a list of at least one message", param="messages")
    return [_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def rendering_forms(messages: Sequence[Message]) -> Iterator[list[Message]]:
    """The same messages in the forms that templates take, the usual one first.

    Absent content and arguments as a mapping; then content "" for templates that add to it; then arguments as the
    string that the model wrote, for templates that add to those.
    """
    yield list(messages)
    filled = [message if "content" in message else {**message, "content": ""} for message in messages]
    if filled != messages:
        yield filled
    texts = [_with_arguments_as_text(message) for message in filled]
    if texts != filled:
        yield texts


def in_parts(messages: Sequence[Message]) -> list[Message]:
    """For templates that know content only as a list of parts."""
    return [
        {**message, "content": [{"type": "text", "text": message["content"]}]} if message.get("content") else message
        for message in messages
    ]


def _message(value: object, where: str) -> Message:
    if not isinstance(value, Mapping):
        raise BadRequest(f"{where} is not an object", param=where)
    role = value.get("role")
    if not isinstance(role, str) or role not in _ROLES:
        known = ", ".join(_ROLES)
        raise BadRequest(f"{where}.role is {role!r}, but must be one of {known}", param=f"{where}.role")
    message = {key: item for key, item in value.items() if item is not None} | {"role": _ROLES[role]}
    _set_content(message, where)
    _set_tool_calls(message, where)
    reasoning = next((message[name] for name in _REASONING if name in message), None)
    if reasoning is not None:
        if not isinstance(reasoning, str):
            raise BadRequest(f"{where}.reasoning_content must be a string", param=f"{where}.reasoning_content")
        message = {"thinking": reasoning, **message, "reasoning_content": reasoning}
    return message


def _set_content(message: Message, where: str) -> None:
    param = f"{where}.content"
    content = message.get("content")
    if content is None and message["role"] == "assistant":
        content = message.get("refusal")  # as OpenAI answers when it declines: content null
        if content is None:
            return
    if isinstance(content, list):
        content = _joined_parts(content, param)
    if not isinstance(content, str):
        raise BadRequest(f"{param} must be a string or a list of text parts", param=param)
    message["content"] = content


def _joined_parts(parts: list[Any], param: str) -> str:
    """The parts' texts one after another, as templates that loop over parts write them."""
    if not parts:
        raise BadRequest(f"{param} is an empty list", param=param)
    texts = []
    for index, part in enumerate(parts):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind not in ("text", "refusal"):
            raise BadRequest(
                f"{param}[{index}] has type {kind!r}, but this model takes text parts only", param=f"{param}[{index}]"
            )
        if not isinstance(part.get(kind), str):
            raise BadRequest(f"{param}[{index}].{kind} must be a string", param=f"{param}[{index}].{kind}")
        texts.append(part[kind])
    return "".join(texts)


def _set_tool_calls(message: Message, where: str) -> None:
    calls = message.pop("tool_calls", None)
    old = message.pop("function_call", None)  # the form before tool_calls
    if old is not None and not calls:
        calls = [{"type": "function", "function": old}]
    if not calls:
        return
    param = f"{where}.tool_calls"
    if not isinstance(calls, list):
        raise BadRequest(f"{param} must be a list", param=param)
    message["tool_calls"] = [_tool_call(call, f"{param}[{index}]") for index, call in enumerate(calls)]


def _tool_call(call: object, param: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise BadRequest(f"{param} has no function with a name", param=param)
    assert isinstance(call, Mapping)
    arguments = function.get("arguments", {})
    if not isinstance(arguments, str | Mapping):
        raise BadRequest(f"{param}.function.arguments must be a string", param=f"{param}.function.arguments")
    return {**call, "function": {**function, "arguments": _parsed(arguments)}}


def _parsed(arguments: str | Mapping[str, Any]) -> str | dict[str, Any]:
    """A mapping where it is one; what else a model wrote stays as it is."""
    if isinstance(arguments, Mapping):
        return dict(arguments)
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def _with_arguments_as_text(message: Message) -> Message:
    if "tool_calls" not in message:
        return message
    calls = [
        {**call, "function": {**call["function"], "arguments": _as_text(call["function"]["arguments"])}}
        for call in message["tool_calls"]
    ]
    return {**message, "tool_calls": calls}


def _as_text(arguments: str | dict[str, Any]) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
