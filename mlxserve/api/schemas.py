"""The bodies of requests, as types: what is decoded, and what ``/openapi.json`` is made from.

Every optional field may be null, which means absent. Knows nothing of defaults, models or the engine.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

TokenId = Annotated[int, Meta(ge=0)]
RequestId = Annotated[str, Meta(extra_json_schema={"pattern": "^[A-Za-z0-9_.:-]{1,128}$"})]
Messages = Annotated[
    list[dict[str, Any]],
    Meta(min_length=1, extra_json_schema={"items": {"$ref": "#/components/schemas/Message"}}),
]


class Body(msgspec.Struct, kw_only=True, gc=False):
    """Base of every request body; unknown fields are found by ``decode``."""


class StreamOptions(Body, kw_only=True):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Part(Body, kw_only=True):
    """One piece of a message's content."""

    type: Literal["text", "refusal"]
    text: str | None = None
    refusal: str | None = None


class Message(Body, kw_only=True):
    """One turn, for the description only: ``text.messages`` checks them, and the fields that are not listed here reach
    the chat template as they are."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[dict[str, Any]] | None = None
    tool_call_id: str | None = None


class Sampling(Body, kw_only=True):
    """What chat and completions have in common."""

    model: str | None = None
    max_tokens: Annotated[int, Meta(ge=0)] | None = None
    min_tokens: Annotated[int, Meta(ge=0)] | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1, description="0 and -1: no limit")] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[TokenId] | None = None
    ignore_eos: bool | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2, description="counts generated tokens")] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2, description="counts generated tokens")] | None = None
    repetition_penalty: Annotated[float, Meta(gt=0, le=10, description="sees the prompt and the output")] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    timeout: Annotated[float, Meta(gt=0, le=86_400, description="seconds")] | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1, description="smaller is sooner")] | None = None
    cache_salt: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    cache_report: bool | None = None
    request_id: RequestId | None = None
    best_of: Annotated[int, Meta(ge=1)] | None = None
    # What does not change the output.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    store: bool | None = None
    service_tier: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_retention: str | None = None
    prediction: dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None


class ChatRequest(Sampling, kw_only=True):
    """POST /v1/chat/completions"""

    messages: Messages
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: str | None = None


class CompletionRequest(Sampling, kw_only=True):
    """POST /v1/completions"""

    prompt: str | list[str | TokenId | list[TokenId]]
    suffix: str | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None


class TokenizeRequest(Body, kw_only=True):
    """POST /tokenize: exactly one of prompt and messages."""

    model: str | None = None
    prompt: str | None = None
    messages: Messages | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None


class DetokenizeRequest(Body, kw_only=True):
    """POST /detokenize"""

    tokens: list[TokenId]
    model: str | None = None


class TemplateRequest(Body, kw_only=True):
    """POST /apply-template"""

    messages: Messages
    model: str | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
