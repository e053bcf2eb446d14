"""``/docs``: the OpenAPI description as one page of HTML that loads nothing from anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem;color-scheme:light dark}
code{font-family:ui-monospace,monospace}table{border-collapse:collapse;width:100%}
td,th{text-align:left;vertical-align:top;padding:.2rem .8rem .2rem 0;border-bottom:1px solid #8884}
summary{cursor:pointer;padding:.3rem 0}
"""


def docs_page(description: Mapping[str, Any]) -> str:
    """HTML of an OpenAPI description."""
    operations = "".join(
        _operation(method, path, operation)
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
    )
    types = "".join(_type(name, schema) for name, schema in description["components"]["schemas"].items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>mlxserve API</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f'<style>{_STYLE}</style></head><body><h1>mlxserve API</h1><p><a href="openapi.json">openapi.json</a></p>'
        f"<h2>Endpoints</h2>{operations}<h2>Types</h2>{types}</body></html>"
    )


def _operation(method: str, path: str, operation: Mapping[str, Any]) -> str:
    body = operation.get("requestBody")
    asks = f"Body: {_shown(body['content']['application/json']['schema'])}<br>" if body else ""
    answers = "<br>".join(
        f"{status}: "
        + ", ".join(f"{escape(kind)} {_shown(content['schema'])}" for kind, content in answer["content"].items())
        for status, answer in operation["responses"].items()
    )
    head = f"<code>{escape(method.upper())} {escape(path)}</code> {escape(operation['summary'])}"
    return f"<details><summary>{head}</summary><p>{asks}{answers}</p></details>"


def _type(name: str, schema: Mapping[str, Any]) -> str:
    required = set(schema.get("required", ()))
    rows = "".join(
        f"<tr><td><code>{escape(field)}</code>{' (required)' * (field in required)}</td><td>{_shown(of)}</td></tr>"
        for field, of in schema.get("properties", {}).items()
    )
    return f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary><table>{rows}</table></details>'


def _shown(schema: Mapping[str, Any]) -> str:
    """A schema in a few words."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_shown(one) for one in schema["anyOf"] if one.get("type") != "null")
    words = [escape(str(schema.get("type", "any")))]
    if "enum" in schema:
        words = [", ".join(escape(repr(value)) for value in schema["enum"])]
    if isinstance(schema.get("items"), Mapping):
        words.append("of " + _shown(schema["items"]))
    limits = ("minimum", "exclusiveMinimum", "maximum", "minLength", "maxLength", "minItems", "pattern")
    words += [f"{limit} {escape(str(schema[limit]))}" for limit in limits if limit in schema]
    if "description" in schema:
        words.append(f"({escape(schema['description'])})")
    return " ".join(words)
