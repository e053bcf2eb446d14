"""The bodies of answers, as types: what is encoded, and what ``/openapi.json`` is made from.

The frames of a stream are made by hand in ``frames`` for speed; tests hold them against the types here.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from mlxserve.types import CacheReport, FinishReason


class Answer(msgspec.Struct, kw_only=True, gc=False):
    """Base of every answer's body."""


class ErrorInfo(Answer, kw_only=True):
    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(Answer, kw_only=True):
    """Every answer that is not a success."""

    error: ErrorInfo


class PromptDetails(Answer, kw_only=True):
    cached_tokens: int


class UsageInfo(Answer, kw_only=True):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails


class TopLogprob(Answer, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]


class ChatLogprob(Answer, kw_only=True):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprob]


class ChatLogprobs(Answer, kw_only=True):
    content: list[ChatLogprob]
    refusal: None = None


class CompletionLogprobs(Answer, kw_only=True):
    """Parallel lists; the first token of an echoed prompt has no log-probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class ChatAnswerMessage(Answer, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(Answer, kw_only=True):
    index: int
    message: ChatAnswerMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatAnswer(Answer, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageInfo
    cache_report: list[CacheReport] | UnsetType = UNSET


class CompletionChoice(Answer, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason


class CompletionAnswer(Answer, kw_only=True):
    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageInfo
    cache_report: list[CacheReport] | UnsetType = UNSET


class ChatDelta(Answer, kw_only=True):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(Answer, kw_only=True):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason | None


class ChatChunk(Answer, kw_only=True):
    """One frame of a streamed chat."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChatChunkChoice]
    usage: UsageInfo | UnsetType | None = UNSET
    cache_report: list[CacheReport] | UnsetType = UNSET


class CompletionChunkChoice(Answer, kw_only=True):
    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: FinishReason | None


class CompletionChunk(Answer, kw_only=True):
    """One frame of a streamed completion."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChunkChoice]
    usage: UsageInfo | UnsetType | None = UNSET
    cache_report: list[CacheReport] | UnsetType = UNSET


class ModelCard(Answer, kw_only=True):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str
    max_model_len: int


class ModelList(Answer, kw_only=True):
    object: Literal["list"] = "list"
    data: list[ModelCard]


class Tokens(Answer, kw_only=True):
    tokens: list[int]
    count: int
    max_model_len: int
    token_strs: list[str] | UnsetType = UNSET


class PromptText(Answer, kw_only=True):
    """The text of a prompt: detokenised, or rendered by the chat template."""

    prompt: str


class Cancelled(Answer, kw_only=True):
    id: str
    object: Literal["request.cancelled"] = "request.cancelled"
    cancelled: Literal[True] = True


class Health(Answer, kw_only=True):
    status: Literal["ok", "unavailable"]
    reason: str | None
    model: str
    quant: str
    block_size: int
    kv_blocks_total: int
    max_batch: int
    last_step_age_s: float


class LoadingHealth(Answer, kw_only=True):
    """While the model loads; ``progress`` is the share of ``what`` that is loaded, 0 to 1."""

    status: Literal["loading"] = "loading"
    reason: str = "The model is being loaded"
    progress: float
    what: Literal["weights"] = "weights"
