"""Sixty conversations for the chat templates, in OpenAI's form, with what goes with each."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

Message = dict[str, Any]


@dataclass(frozen=True)
class Conversation:
    """``options``: tools, flags and variables, as ``apply_chat_template`` takes them."""

    messages: tuple[Message, ...]
    options: dict[str, Any] = field(default_factory=dict)


def say(*turns: tuple[str, str]) -> tuple[Message, ...]:
    return tuple({"role": role, "content": content} for role, content in turns)


def talk(*texts: str) -> tuple[Message, ...]:
    """User and assistant in turn."""
    return say(*(("user" if index % 2 == 0 else "assistant", text) for index, text in enumerate(texts)))


def tool(name: str, description: str, **properties: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": properties, "required": sorted(properties)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": parameters}}


def calls(*made: tuple[str, dict[str, Any]], content: str | None = None) -> Message:
    """An assistant's message as the API returns it: arguments are JSON in a string."""
    entries = [
        {"id": f"call{i:05d}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for i, (name, arguments) in enumerate(made)
    ]
    return {"role": "assistant", "content": content, "tool_calls": entries}


def result(content: str, call: int = 0) -> Message:
    return {"role": "tool", "tool_call_id": f"call{call:05d}", "content": content}


WEATHER = tool("get_weather", "Tells the weather: 温度 <b>&'é🦙\"", city={"type": "string"})
ADD = tool("add", "a + b\n(two numbers)", a={"type": "number"}, b={"type": "number"})
OSLO = calls(("get_weather", {"city": "Oslo"}))
ASKED = say(("user", "Weather in Oslo?"))
SYSTEM = say(("system", "You are terse."))

PLAIN = (
    "hi",
    "",
    " ",
    "\n\nspace around  \n",
    "你好，世界",
    "🦙🦙 🙂 naïve café — “quotes”",
    "def f(x):\n\treturn {'a': [x]}  # {{ not a template }} {% nor this %}",
    "<b>bold</b> & <tag/> &lt;",
    "a" * 300,
    "\t1 2 3\r\n4",
    "less < more > equal",
    "zero\u200bwidth \u00a0nbsp \u2028line",
)

CONVERSATIONS: tuple[Conversation, ...] = (
    *(Conversation(talk(text)) for text in PLAIN),
    *(Conversation(SYSTEM + talk(text)) for text in PLAIN[:4]),
    *(Conversation(talk("One?", text, "Two?")) for text in PLAIN[:2]),
    Conversation(talk("a", "b", "c", "d", "e", "f", "g")),
    Conversation(SYSTEM + talk("a", "b", "c")),
    Conversation(say(("system", ""), ("user", "empty system"))),
    Conversation(say(("system", "  padded \n"), ("user", "x"))),
    Conversation(say(("system", "one"), ("system", "two"), ("user", "x"))),
    Conversation(say(("user", "x"), ("system", "late"), ("user", "y"))),
    Conversation(say(("user", "x"), ("user", "y"))),
    Conversation(say(("assistant", "I begin."), ("user", "y"))),
    Conversation(talk("x", "y")),
    Conversation(talk("x"), {"add_generation_prompt": False}),
    Conversation(talk("x", "y"), {"add_generation_prompt": False}),
    Conversation(SYSTEM + talk("x", "y"), {"add_generation_prompt": False}),
    Conversation(talk("x", "Once upon"), {"continue_final_message": True}),
    Conversation(talk("x", "trailing space "), {"continue_final_message": True}),
    Conversation(talk("x", "y", "z", "line\n"), {"continue_final_message": True}),
    Conversation(SYSTEM + talk("x", "你好"), {"continue_final_message": True}),
    Conversation(talk("x"), {"tools": [WEATHER]}),
    Conversation(talk("x"), {"tools": [WEATHER, ADD]}),
    Conversation(SYSTEM + talk("x", "y", "z"), {"tools": [ADD]}),
    Conversation(talk("x"), {"tools": []}),
    Conversation((*ASKED, OSLO, result("3 °C")), {"tools": [WEATHER]}),
    Conversation(
        (*ASKED, OSLO, result('{"t": 3}'), *say(("assistant", "Cold."), ("user", "And?"))), {"tools": [WEATHER]}
    ),
    Conversation((*SYSTEM, *ASKED, OSLO, result("3")), {"tools": [WEATHER]}),
    Conversation((*ASKED, calls(("get_weather", {"city": "Tromsø", "n": [1, None, True]})), result("-3"))),
    Conversation((*ASKED, calls(("get_weather", {}), content="Let me look."), result("?"))),
    Conversation((*ASKED, calls(("add", {"a": 1}), ("add", {"b": 2})), result("1"), result("2", 1)), {"tools": [ADD]}),
    Conversation((*ASKED, OSLO), {"tools": [WEATHER]}),
    Conversation((*talk("Why?"), {"role": "assistant", "content": "So.", "reasoning_content": "\nBecause.\n"})),
    Conversation((*talk("Why?"), {"role": "assistant", "content": "So.", "reasoning_content": "B"}, *talk("And?"))),
    Conversation(talk("Why?", "<think>\nhm\n</think>\n\nSo.", "And?")),
    Conversation(talk("Why?", "<think>\nhm\n</think>\n\nSo."), {"add_generation_prompt": False}),
    Conversation(talk("x"), {"enable_thinking": False}),
    Conversation(SYSTEM + talk("x", "y", "z"), {"enable_thinking": True}),
    Conversation(say(("system", "Do. /no_think"), ("user", "x"), ("assistant", "y"), ("user", "z"))),
    Conversation(say(("system", "Only this. /system_override"), ("user", "x"))),
    Conversation(talk("x"), {"thinking": True}),
    Conversation(talk("x"), {"controls": {"length": "short", "ü": 1}}),
    Conversation(talk("x"), {"documents": [{"title": "t", "text": "Bergen is wet."}, {"title": "u", "text": "ø"}]}),
    Conversation(talk("x"), {"documents": [{"title": "t", "text": "A."}], "tools": [ADD]}),
    Conversation(talk("x"), {"date_string": "1 May 2025"}),
    Conversation((*talk("x", "y"), {"role": "user", "content": "z", "name": "Ann"})),
    Conversation((*talk("x"), {"role": "assistant", "content": "y", "refusal": None, "audio": None}, *talk("z"))),
)
