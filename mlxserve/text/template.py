"""Renders a model's chat template: Jinja in the immutable sandbox, with what ``transformers`` gives templates.

Knows nothing of tokens, and takes no template from a request.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.exceptions
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
import jinja2.sandbox
import jinja2.utils

from mlxserve.errors import BadRequest, CheckpointError
from mlxserve.text.messages import Message, in_parts, rendering_forms

MAX_RENDERED = 2**24  # characters
MAX_SECONDS = 10.0

# What a request's chat_template_kwargs may not name: these decide what is rendered, not how.
RESERVED = frozenset(
    "messages tools chat_template tokenize add_generation_prompt continue_final_message raise_exception strftime_now "
    "conversation return_dict return_tensors padding truncation max_length tokenizer_kwargs".split()
)

_PROBE = "7 probe 7"


class ChatTemplate:
    """The templates of one model, compiled. Thread-safe."""

    def __init__(self, source: str | Mapping[str, str], special_tokens: Mapping[str, str] | None = None) -> None:
        """``source``: one template, or several by name, of which "default" and "tool_use" are used.

        Raises CheckpointError if one is not valid Jinja.
        """
        self.sources = {"default": source} if isinstance(source, str) else dict(source)
        self._special_tokens = dict(special_tokens or {})
        environment = _environment()
        self._templates = {name: _compiled(environment, name, text) for name, text in self.sources.items()}
        self.literals = frozenset[str]().union(*(_literals(environment, text) for text in self.sources.values()))
        self._in_parts = not self._shows_text()

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        kwargs: Mapping[str, Any] | None = None,
    ) -> str:
        """``messages`` as ``normalise_messages`` returns them. ``kwargs``: more variables, from the request.

        Raises BadRequest when the template refuses the messages (with its own words) or cannot take them.
        """
        self.check_kwargs(kwargs or {})
        variables = {
            "documents": None,
            **self._special_tokens,
            **(kwargs or {}),
            "tools": list(tools) if tools else None,
            "add_generation_prompt": add_generation_prompt,
        }
        failure: Exception | None = None
        for form in rendering_forms(messages):
            try:
                return self._rendered({**variables, "messages": in_parts(form) if self._in_parts else form})
            except (TypeError, jinja2.UndefinedError) as error:
                failure = failure or error  # of the usual form
        raise BadRequest(f"the chat template cannot render these messages: {failure}", param="messages")

    def check_kwargs(self, kwargs: Mapping[str, Any]) -> None:
        """Raises BadRequest if a request's variables would change what only the request's own fields decide."""
        for name in kwargs:
            if name in RESERVED or name in self._special_tokens:
                raise BadRequest(f"chat_template_kwargs may not set {name!r}", param="chat_template_kwargs")

    def _rendered(self, variables: dict[str, Any]) -> str:
        try:
            return _bounded(self._select(variables["tools"]), variables)
        except (TypeError, jinja2.UndefinedError, BadRequest):
            raise
        except _Refusal as error:
            raise BadRequest(str(error), param="messages") from error
        except Exception as error:  # the template is code of the model's: it may raise anything
            raise BadRequest(f"the chat template failed: {error}", param="messages") from error

    def _select(self, tools: object) -> jinja2.Template:
        name = "tool_use" if tools and "tool_use" in self._templates else "default"
        if name not in self._templates:
            names = ", ".join(self._templates)
            raise BadRequest(f"this model has no default chat template, only {names}", code="no_chat_template")
        return self._templates[name]

    def _shows_text(self) -> bool:
        """Whether content reaches the prompt as a string. If only parts do, every message is given in parts."""
        message = {"role": "user", "content": _PROBE}
        shown = [self._probe([message]), self._probe(in_parts([message]))]
        return shown != [False, True]

    def _probe(self, messages: list[Message]) -> bool:
        variables = {**self._special_tokens, "messages": messages, "tools": None, "add_generation_prompt": True}
        try:
            return _PROBE in self._rendered(variables)
        except (TypeError, jinja2.UndefinedError, BadRequest):
            return False


def _bounded(template: jinja2.Template, variables: dict[str, Any]) -> str:
    """What the template writes, as long as it stays within a length and a time."""
    deadline = time.monotonic() + MAX_SECONDS
    parts, length = [], 0
    for part in template.generate(variables):
        parts.append(part)
        length += len(part)
        if length > MAX_RENDERED:
            raise BadRequest(f"the rendered prompt is longer than {MAX_RENDERED} characters", param="messages")
        if time.monotonic() > deadline:
            raise BadRequest(f"the chat template took longer than {MAX_SECONDS:g} s", param="messages")
    return "".join(parts)


class _Refusal(jinja2.TemplateError):
    """What ``raise_exception`` raises: the template's own verdict."""


class _Generation(jinja2.ext.Extension):
    """``{% generation %}``: marks what the assistant says, for training; here its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        return jinja2.nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


class _Namespace(jinja2.utils.Namespace):
    """``namespace()`` without attributes that could reach into Python."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # no name of ours: a template may pass ``self=``
        attributes = dict(*args[1:], **kwargs)
        for name in attributes:
            _check_attribute(name)
        jinja2.utils.Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute(name)
        super().__setitem__(name, value)


def _check_attribute(name: str) -> None:
    if name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace may not hold {name!r}")


def _environment() -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals = {
        "range": jinja2.sandbox.safe_range,
        "dict": _dict,
        "namespace": _Namespace,
        "cycler": jinja2.utils.Cycler,
        "joiner": jinja2.utils.Joiner,
        "raise_exception": _raise_exception,
        "strftime_now": _strftime_now,
    }
    return environment


def _compiled(environment: jinja2.Environment, name: str, source: str) -> jinja2.Template:
    try:
        return environment.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        raise CheckpointError(f"the chat template {name!r}, line {error.lineno}: {error.message}") from error
    except RecursionError as error:
        raise CheckpointError(f"the chat template {name!r} is nested too deeply") from error


def _literals(environment: jinja2.Environment, source: str) -> set[str]:
    """All text that the template can write by itself: outside its tags, and in its string constants."""
    tree = environment.parse(source)
    texts = {node.data for node in tree.find_all(jinja2.nodes.TemplateData)}
    return texts | {node.value for node in tree.find_all(jinja2.nodes.Const) if isinstance(node.value, str)}


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON: Jinja's own filter escapes what HTML would take for markup."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise _Refusal(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _dict(*args: Any, **kwargs: Any) -> dict[Any, Any]:
    return dict(*args, **kwargs)
