"""Requests to prompts on the embedded model, against transformers reading the same file."""

from __future__ import annotations

from typing import Any

import pytest

from mlxserve.errors import BadRequest
from mlxserve.text.processor import TextProcessor
from mlxserve.text.template import ChatTemplate
from mlxserve.text.tokenizer import Tokenizer
from tests.text import tiny

PREFILL = [{"role": "user", "content": "Count to three."}, {"role": "assistant", "content": "One, two,"}]


def says(*turns: tuple[str, Any]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in turns]


def processor(template: str) -> TextProcessor:
    tokenizer = Tokenizer(tiny.byte_level())
    return TextProcessor(tokenizer, ChatTemplate(template))


def test_prompts_equal_transformers(embedded: TextProcessor, embedded_oracle: Any) -> None:
    """TPL-01, TPL-03: counts as measured, and token for token."""
    for messages, count in (
        (says(("user", "hi")), 31),
        (says(("system", "Be brief."), ("user", "hi")), 18),
        (says(("user", "alpha beta")), 32),
        (PREFILL, 44),
    ):
        prompt = embedded.chat_prompt(messages)
        assert prompt == embedded_oracle.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
        assert len(prompt) == count
    parts = [{"type": "text", "text": "alpha"}, {"type": "text", "text": " beta"}]
    assert embedded.chat_prompt(says(("user", parts))) == embedded.chat_prompt(says(("user", "alpha beta")))
    developer = embedded.chat_prompt(says(("developer", "Be brief."), ("user", "hi")))
    assert developer == embedded.chat_prompt(says(("system", "Be brief."), ("user", "hi")))


def test_tpl_09_an_answer_to_be_continued_stays_open(embedded: TextProcessor) -> None:
    prompt = embedded.chat_prompt(PREFILL, continue_final_message=True, add_generation_prompt=False)
    assert len(prompt) == 38
    assert embedded.chat_prompt(PREFILL, continue_final_message=True) == prompt
    assert embedded.tokenizer.decode(prompt).endswith("One, two,")
    closed = embedded.chat_prompt(PREFILL, add_generation_prompt=False)
    assert closed[:38] == prompt
    assert embedded.tokenizer.token_text(closed[38]) == "<|im_end|>"


def test_tpl_09_contradictory_flags_are_refused(embedded: TextProcessor) -> None:
    with pytest.raises(BadRequest, match="exclude each other") as error:
        embedded.chat_prompt(PREFILL, continue_final_message=True, add_generation_prompt=True)
    assert error.value.param == "continue_final_message"
    with pytest.raises(BadRequest, match="no content"):
        embedded.chat_prompt([*PREFILL[:1], {"role": "assistant", "content": None}], continue_final_message=True)


def test_tpl_09_a_template_that_hides_the_answer_says_so() -> None:
    text = processor("{{ messages[0].content }}")
    with pytest.raises(BadRequest, match="does not show"):
        text.chat_prompt(PREFILL, continue_final_message=True)


def test_tpl_09_space_that_the_template_trims_stays_trimmed() -> None:
    messages = says(("user", "x"), ("assistant", "two \n"))
    kept = "{% for m in messages %}{{ m.content }};{% endfor %}"
    trimmed = kept.replace("content", "content | trim")
    assert processor(kept).render_chat(messages, continue_final_message=True) == "x;two \n"
    assert processor(trimmed).render_chat(messages, continue_final_message=True) == "x;two"


def test_tpl_14_a_replayed_answer_costs_what_its_text_costs(embedded: TextProcessor) -> None:
    plain = says(("user", "hi"), ("assistant", "Hello!"), ("user", "and now?"))
    extra = {"reasoning_content": "x\u0001y", "refusal": None, "annotations": [], "audio": None, "name": "bot"}
    replayed = [plain[0], {**plain[1], **extra, "function_call": None}, plain[2]]
    assert embedded.chat_prompt(replayed) == embedded.chat_prompt(plain)


def test_null_content_with_tool_calls(embedded: TextProcessor) -> None:
    """This template adds to the content: null and a missing field are as good as ""."""
    called = {
        "role": "assistant",
        "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
    }
    asked = says(("user", "2+2?"))
    prompts = [embedded.chat_prompt([*asked, {**called, **more}]) for more in ({}, {"content": None}, {"content": ""})]
    assert prompts[0] == prompts[1] == prompts[2]


def test_without_a_template_chat_is_refused_and_completions_work(embedded: TextProcessor) -> None:
    text = TextProcessor(embedded.tokenizer)
    for method in (text.chat_prompt, text.render_chat):
        with pytest.raises(BadRequest) as error:
            method(says(("user", "hi")))
        assert error.value.code == "no_chat_template"
    assert text.completion_prompt("The quick brown") == embedded.tokenizer.encode("The quick brown")


def test_render_chat_is_the_text_of_the_prompt(embedded: TextProcessor) -> None:
    messages = says(("user", "hi <|im_end|>"))
    shown = "".join(map(embedded.tokenizer.token_text, embedded.chat_prompt(messages)))
    assert embedded.render_chat(messages) == shown


def test_output_begins_a_text_or_continues_the_prompt() -> None:
    """DET-03: a SentencePiece model's first space belongs to a completion, and not to an answer."""
    tokenizer = Tokenizer(tiny.byte_fallback())
    text = TextProcessor(tokenizer)
    ids = tokenizer.encode("fox")
    assert text.output().push(ids).text == " fox"
    assert text.output(starts_text=True).push(ids).text == "fox"
