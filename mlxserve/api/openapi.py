"""The OpenAPI 3.1 description, made from the types that are decoded and encoded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from mlxserve.api import answers, schemas

_REF = "#/components/schemas/{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of one path."""

    method: str
    path: str
    summary: str
    request: type[schemas.Body] | None = None
    answer: type[answers.Answer] | None = None  # None: any JSON object
    chunk: type[answers.Answer] | None = None  # of the event stream, where there is one
    content_type: str = "application/json"
    errors: tuple[int, ...] = ()


_POST = (400, 404, 413, 500, 503)

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        method="post",
        path="/v1/chat/completions",
        summary="Answer a chat",
        request=schemas.ChatRequest,
        answer=answers.ChatAnswer,
        chunk=answers.ChatChunk,
        errors=(*_POST, 408),
    ),
    Operation(
        method="post",
        path="/v1/completions",
        summary="Continue a text",
        request=schemas.CompletionRequest,
        answer=answers.CompletionAnswer,
        chunk=answers.CompletionChunk,
        errors=(*_POST, 408),
    ),
    Operation(
        method="post",
        path="/tokenize",
        summary="The token ids of a text or a chat",
        request=schemas.TokenizeRequest,
        answer=answers.Tokens,
        errors=_POST,
    ),
    Operation(
        method="post",
        path="/detokenize",
        summary="The text of token ids",
        request=schemas.DetokenizeRequest,
        answer=answers.PromptText,
        errors=_POST,
    ),
    Operation(
        method="post",
        path="/apply-template",
        summary="A chat's prompt as text",
        request=schemas.TemplateRequest,
        answer=answers.PromptText,
        errors=_POST,
    ),
    Operation(
        method="post",
        path="/v1/requests/{id}/cancel",
        summary="End a request under way, by the id of its answer",
        answer=answers.Cancelled,
        errors=(404,),
    ),
    Operation(method="get", path="/v1/models", summary="The served names", answer=answers.ModelList),
    Operation(method="get", path="/v1/models/{model}", summary="One name", answer=answers.ModelCard, errors=(404,)),
    Operation(method="get", path="/v1/capabilities", summary="What the loaded model and this build support"),
    Operation(method="get", path="/health", summary="Whether the engine lives", answer=answers.Health),
    Operation(method="get", path="/stats", summary="Counters and timings, flat"),
    Operation(method="get", path="/metrics", summary="The same for Prometheus", content_type="text/plain"),
)


def openapi(version: str, names: Sequence[str], *, keys: bool) -> dict[str, Any]:
    """The description. ``names``: of the served models; ``keys``: whether the server asks for an API key."""
    kinds: list[type] = [kind for op in OPERATIONS for kind in (op.request, op.answer, op.chunk) if kind is not None]
    _, components = msgspec.json.schema_components(
        [*kinds, schemas.Message, answers.ErrorAnswer, answers.LoadingHealth], ref_template=_REF
    )
    for kind in {op.request for op in OPERATIONS if op.request is not None}:
        components[kind.__name__]["properties"]["model"] = {"enum": [*names, None], "default": None}
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, keys)
    described: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "mlxserve", "version": version},
        "paths": paths,
        "components": {"schemas": components},
    }
    if keys:
        described["components"]["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return described


def _operation(operation: Operation, keys: bool) -> dict[str, Any]:
    errors = {*operation.errors, *((401,) if keys and operation.path != "/health" else ())}
    described: dict[str, Any] = {
        "summary": operation.summary,
        "operationId": f"{operation.method}_{operation.path.strip('/').replace('/', '_')}",
        "responses": {
            "200": {"description": "Success", "content": _content(operation)},
            **{str(status): _error() for status in sorted(errors)},
        },
    }
    if operation.path == "/health":
        down: dict[str, Any] = {"anyOf": [_ref(answers.Health), _ref(answers.LoadingHealth)]}
        content = {"application/json": {"schema": down}}
        described["responses"]["503"] = {"description": "The engine is down, or its model loads", "content": content}
    if operation.request is not None:
        content = {"application/json": {"schema": _ref(operation.request)}}
        described["requestBody"] = {"required": True, "content": content}
    if "{" in operation.path:
        name = operation.path.partition("{")[2].partition("}")[0]
        described["parameters"] = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}}]
    if keys and operation.path != "/health":
        described["security"] = [{"key": []}]
    return described


def _content(operation: Operation) -> dict[str, Any]:
    if operation.content_type != "application/json":
        return {operation.content_type: {"schema": {"type": "string"}}}
    schema = {"type": "object"} if operation.answer is None else _ref(operation.answer)
    content: dict[str, Any] = {"application/json": {"schema": schema}}
    if operation.chunk is not None:
        content["text/event-stream"] = {"schema": _event(operation.chunk)}
    return content


def _event(chunk: type[answers.Answer]) -> dict[str, Any]:
    """One event of a stream; its data is JSON in a string, but for the last one's."""
    payload = {"anyOf": [_ref(chunk), _ref(answers.ErrorAnswer)]}
    data = {
        "type": "string",
        "description": f"a {chunk.__name__}, or the error that ends the stream; [DONE] at its regular end",
        "if": {"const": "[DONE]"},
        "else": {"contentMediaType": "application/json", "contentSchema": payload},
    }
    return {"type": "object", "description": "each event", "properties": {"data": data}, "required": ["data"]}


def _error() -> dict[str, Any]:
    return {"description": "An error", "content": {"application/json": {"schema": _ref(answers.ErrorAnswer)}}}


def _ref(kind: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": _REF.format(name=kind.__name__)}
