"""Chat templates: the sandbox, what templates may use, and every way they fail."""

from __future__ import annotations

import json
import re
import threading
from datetime import datetime
from typing import Any

import pytest

from mlxserve.errors import BadRequest, CheckpointError
from mlxserve.text import template as template_module
from mlxserve.text.messages import normalise_messages
from mlxserve.text.template import RESERVED, ChatTemplate

HI = [{"role": "user", "content": "hi"}]


def render(source: str, messages: list[dict[str, Any]] = HI, **options: Any) -> str:
    template = ChatTemplate(source, {"bos_token": "<s>", "eos_token": "</s>"})
    return template.render(normalise_messages(messages), **options)


def test_tpl_06_the_helpers_that_transformers_provides() -> None:
    source = (
        "{{ bos_token }}{{ strftime_now('%Y') }}{% for m in messages %}{% if m.role=='skip' %}{% continue %}{% endif %}"
        "{{ m.content }}{% if loop.index == 2 %}{% break %}{% endif %}{% endfor %}{{ eos_token }}"
    )
    assert render(source, HI * 3) == f"<s>{datetime.now():%Y}hihi</s>"
    assert render("{% generation %}{{ messages[0].content }}{% endgeneration %}") == "hi"
    assert (
        render("{% set ns = namespace(n=1) %}{% set ns.n = ns.n + 1 %}{{ ns.n }}{{ dict(a=1).a }}{{ range(3)|list }}")
        == "21[0, 1, 2]"
    )
    assert render("  {% if true %}\nx\n  {% endif %}\ny") == "x\ny", "trim_blocks and lstrip_blocks"
    assert render("{{ documents is none }}{{ tools is none }}", tools=[]) == "TrueTrue"


def test_tpl_07_tojson_writes_plain_json() -> None:
    value = {"b": "温度 <b>&'é🦙", "a": [1, None]}
    for arguments, options in (
        ("", {}),
        ("(indent=2, ensure_ascii=False)", {"indent": 2}),
        ("(sort_keys=true)", {"sort_keys": True}),
        ("(separators=(',', ':'))", {"separators": (",", ":")}),
    ):
        want = json.dumps(value, ensure_ascii=False, **options)
        assert render("{{ v | tojson%s }}" % arguments, kwargs={"v": value}) == want  # noqa: UP031
    assert render("{{ v | tojson(ensure_ascii=true) }}", kwargs={"v": "é"}) == '"\\u00e9"'


@pytest.mark.parametrize("role", ["system", "developer"])
def test_tpl_04_a_template_that_refuses_speaks_for_itself(role: str) -> None:
    source = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}ok"
    with pytest.raises(BadRequest) as error:
        render(source, [{"role": role, "content": "Be brief."}, *HI])
    assert error.value.message == "System role not supported"
    assert error.value.type == "invalid_request_error"
    assert render(source) == "ok", "the next request is none the worse"


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content + 5 }}",
        "{{ nothing.at.all }}",
        "{{ 1 // 0 }}",
        "{{ messages[0].content.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% set ns = namespace() %}{% set ns.__class__ = 1 %}",
        "{{ namespace(_x=1) }}",
        "{{ range(10**9) | list }}",
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "{{ messages | tojson(indent='a', separators=5) }}",
        "{{ lipsum() }}",
        "{{ {} | tojson(sort_keys=nothing.x) }}",
        "{% include 'x' %}",
        "{{ strftime_now(5) }}",
    ],
)
def test_a_template_that_fails_is_a_bad_request(source: str) -> None:
    with pytest.raises(BadRequest) as error:
        render(source)
    assert error.value.status == 400
    assert "template" in error.value.message


@pytest.mark.parametrize("source", ["{% if %}", "{{ x", "{% nosuch %}", "{{ x | nosuch }}", "{%" * 3])
def test_a_template_that_is_not_jinja_is_a_checkpoint_error(source: str) -> None:
    with pytest.raises(CheckpointError, match="chat template 'default', line 1"):
        ChatTemplate(source)


def test_a_deeply_nested_template_is_a_checkpoint_error() -> None:
    with pytest.raises(CheckpointError):
        ChatTemplate("{{ " + "(" * 5000 + ")" * 5000 + " }}")


def test_named_templates() -> None:
    both = ChatTemplate({"default": "plain", "tool_use": "tools"})
    assert both.render(HI) == "plain"
    assert both.render(HI, tools=[{"type": "function"}]) == "tools"
    assert ChatTemplate({"default": "plain", "rag": "no"}).render(HI, tools=[{"type": "function"}]) == "plain"
    with pytest.raises(BadRequest, match="rag") as error:
        ChatTemplate({"rag": "x"}).render(HI)
    assert error.value.code == "no_chat_template"


@pytest.mark.parametrize("name", sorted(RESERVED | {"bos_token"}))
def test_sec_03_a_request_cannot_set_what_is_rendered(name: str) -> None:
    with pytest.raises(BadRequest, match=re.escape(repr(name))) as error:
        render("{{ messages[0].content }}", kwargs={name: "x"})
    assert error.value.param == "chat_template_kwargs"


def test_variables_of_a_request_reach_the_template() -> None:
    assert render("{{ enable_thinking }}{{ documents[0] }}", kwargs={"enable_thinking": False, "documents": ["d"]}) == (
        "Falsed"
    )


def test_sec_03_rendering_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """In length and in time, even for a template of the model's own."""
    bomb = "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}"
    monkeypatch.setattr(template_module, "MAX_SECONDS", 0.2)
    with pytest.raises(BadRequest, match=r"longer than 0\.2 s|took longer"):
        render(bomb)
    monkeypatch.setattr(template_module, "MAX_RENDERED", 1000)
    with pytest.raises(BadRequest, match="longer than 1000 characters"):
        render(bomb)


@pytest.mark.parametrize(
    ("source", "want"),
    [
        ("{{ m.tool_calls[0].function.arguments | tojson }}", '{"city": "Oslo"}'),
        ("{{ '' + m.tool_calls[0].function.arguments }}", '{"city": "Oslo"}'),
        ("{{ m.content + '!' }}", "!"),
        ("{{ m.content + (m.tool_calls[0].function.arguments | tojson) }}", '{"city": "Oslo"}'),
        ("{% if m.content is defined %}there{% else %}not there{% endif %}", "not there"),
    ],
)
def test_tpl_11_templates_get_the_form_they_take(source: str, want: str) -> None:
    """Arguments as a mapping and null content left out; if the template can't add those, as strings."""
    function = {"name": "w", "arguments": '{"city":"Oslo"}'}
    called = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": function}],
    }
    assert render("{% set m = messages[1] %}" + source, [*HI, called]) == want


def test_content_in_parts_for_templates_that_know_nothing_else() -> None:
    parts = "{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}"
    assert render(parts) == "hi"
    both = "{% for m in messages %}{% if m.content is string %}S{{ m.content }}{% else %}P{% endif %}{% endfor %}"
    assert render(both) == "Shi"
    assert render("constant") == "constant"


def test_one_template_serves_many_threads() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
    results: dict[int, str] = {}

    def work(number: int) -> None:
        for _ in range(50):
            results[number] = template.render([{"role": "user", "content": str(number)}] * 20)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: str(number) * 20 for number in range(4)}
