"""Prompts of sixty conversations in eight template styles, token for token as transformers makes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jinja2
import pytest

from mlxserve.errors import BadRequest
from mlxserve.text.control import ControlTexts, Placeholders, Segment
from mlxserve.text.processor import TextProcessor
from mlxserve.text.segments import SegmentEncoder
from tests.text import styles
from tests.text.conversations import CONVERSATIONS, Conversation, Message

CASES = [(style, number) for style in styles.STYLES for number in range(len(CONVERSATIONS))]


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("styles")


def with_mappings(message: Message, content: str | None) -> Message:
    """Tool arguments as the mapping that templates expect; ``content`` where it is null."""
    message = json.loads(json.dumps(message))
    for call in message.get("tool_calls", ()):
        call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return message if message["content"] is not None else {**message, "content": content}


def oracle_prompt(oracle: Any, conversation: Conversation, content: str | None = None) -> list[int] | Exception:
    options = {"add_generation_prompt": not conversation.options.get("continue_final_message")} | conversation.options
    if not options.get("tools"):
        options["tools"] = None
    messages = [with_mappings(message, content) for message in conversation.messages]
    try:
        ids: list[int] = oracle.apply_chat_template(messages, tokenize=True, return_dict=False, **options)
        return ids
    except (jinja2.TemplateError, TypeError) as error:
        return error


def own_prompt(text: TextProcessor, conversation: Conversation) -> list[int] | BadRequest:
    known = ("tools", "add_generation_prompt", "continue_final_message")
    options = {name: value for name, value in conversation.options.items() if name in known}
    variables = {name: value for name, value in conversation.options.items() if name not in known}
    try:
        return text.chat_prompt(list(conversation.messages), kwargs=variables, **options)
    except BadRequest as error:
        return error


def test_there_are_sixty_conversations_in_eight_styles() -> None:
    assert (len(CONVERSATIONS), len(styles.STYLES)) == (60, 8)


@pytest.mark.parametrize("style", styles.STYLES)
def test_same_tokens_as_transformers(style: str, models: Path) -> None:
    """TPL-06, TPL-07, TPL-11, TPL-14: every helper, tools, calls and replayed fields; the same refusals, too."""
    oracle, text = styles.oracle(style, models), styles.processor(style, models)
    same = refused = 0
    for number, conversation in enumerate(CONVERSATIONS):
        want, got = oracle_prompt(oracle, conversation), own_prompt(text, conversation)
        if isinstance(want, TypeError | jinja2.UndefinedError):  # content that is absent: as if it were ""
            want = oracle_prompt(oracle, conversation, content="")
        if isinstance(want, Exception):
            assert isinstance(got, BadRequest), (number, want, got)
            assert str(want) in got.message
            refused += 1
        else:
            assert got == want, (number, oracle.decode(want))
            same += 1
    assert same >= 30, "most conversations are rendered"
    assert same + refused == len(CONVERSATIONS)


@pytest.mark.parametrize("style", styles.STYLES)
def test_the_literal_path_encodes_ordinary_text_alike(style: str, models: Path) -> None:
    """TPL-10: what guards against forged control tokens changes nothing else, wherever it cuts."""
    text = styles.processor(style, models)
    controls = ControlTexts(token.content for token in text.tokenizer.added_tokens.values())
    encoder = SegmentEncoder(text.tokenizer, controls)
    checked = 0
    for conversation in CONVERSATIONS:
        *before, last = conversation.messages
        try:
            rendered = text.render_chat([*before, last])
        except BadRequest:
            continue
        want = text.tokenizer.encode(rendered, add_special_tokens=False)
        assert encoder.encode([Segment(rendered, literal=False)]) == want
        content = last.get("content")
        # Templates trim text, but not what stands for it.
        if content and content.strip() == content and content in rendered and not controls.pattern.search(content):
            places = Placeholders()
            hidden = places.protect(content, ControlTexts([content]))
            segments = places.segments(text.render_chat([*before, {**last, "content": hidden}]))
            assert encoder.encode(segments) == want
            checked += Segment(content, literal=True) in segments
    assert checked > 20


def test_no_token_is_added_twice(models: Path) -> None:
    """The template writes BOS and the tokenizer would add it: the prompt has one."""
    for style in ("llama3", "mistral", "gemma"):
        text = styles.processor(style, models)
        bos = text.tokenizer.backend.token_to_id(text.tokenizer.bos_token)
        messages = [{"role": "user", "content": "hi"}]
        prompt = text.chat_prompt(messages)
        assert prompt.count(bos) == 1
        assert text.completion_prompt(text.render_chat(messages)) == prompt
        assert text.completion_prompt("hi") == [bos, *text.tokenizer.encode("hi", add_special_tokens=False)]
        assert text.tokenizer.encode("hi") == styles.oracle(style, models).encode("hi")
