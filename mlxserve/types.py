"""What crosses the boundary between the API and the engine: plain, serialisable records.

They know nothing of text, arrays or HTTP. All are frozen, so both sides may share them between threads
or send them between processes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from mlxserve.errors import BadRequest

FinishReason = Literal["stop", "length", "abort", "error", "timeout"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are chosen. ``check`` says whether the values are in range."""

    max_tokens: int | None = None  # None: up to the model's length and what the pool can hold
    min_tokens: int = 0  # until then neither EOS nor a stop token can be sampled
    temperature: float = 1.0  # 0 is greedy
    top_p: float = 1.0  # 0 keeps the best token only
    top_k: int = 0  # 0 and -1: no limit
    min_p: float = 0.0  # relative to the most probable token
    seed: int | None = None  # None: each choice draws its own from the OS
    n: int = 1
    presence_penalty: float = 0.0  # counts generated tokens only
    frequency_penalty: float = 0.0  # counts generated tokens only
    repetition_penalty: float = 1.0  # sees the prompt and the output
    logit_bias: tuple[tuple[int, float], ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None  # alternatives reported with each token; 0: the token's own only; None: off
    prompt_logprobs: int | None = None  # the same for the prompt; such a request does not use the prefix cache

    def check(self, vocab_size: int) -> None:
        """Raises BadRequest naming the first field that is out of range, its value and the limit."""
        if self.max_tokens is not None and self.max_tokens < 0:
            raise BadRequest(f"max_tokens is {self.max_tokens}, but must be at least 0", param="max_tokens")
        limit = float("inf") if self.max_tokens is None else self.max_tokens
        if not 0 <= self.min_tokens <= limit:
            raise BadRequest(f"min_tokens is {self.min_tokens}, but must be from 0 to max_tokens", param="min_tokens")
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None and not (low <= value <= high and math.isfinite(value)):
                raise BadRequest(f"{name} is {value}, but must be from {low} to {high}", param=name)
        if not 0 < self.repetition_penalty <= 10:
            raise BadRequest(
                f"repetition_penalty is {self.repetition_penalty}, but must be above 0 and at most 10",
                param="repetition_penalty",
            )
        for token in self.stop_token_ids:
            _check_token("stop_token_ids", token, vocab_size)
        for token, bias in self.logit_bias:
            _check_token("logit_bias", token, vocab_size)
            if not -100 <= bias <= 100:
                raise BadRequest(f"logit_bias of {token} is {bias}, but must be from -100 to 100", param="logit_bias")


def _check_token(param: str, token: int, vocab_size: int) -> None:
    if not 0 <= token < vocab_size:
        raise BadRequest(f"{param} names token {token}, but token ids are from 0 to {vocab_size - 1}", param=param)


# Inclusive ranges.
_RANGES: tuple[tuple[str, float, float], ...] = (
    ("temperature", 0, 2),
    ("top_p", 0, 1),
    ("min_p", 0, 1),
    ("top_k", -1, 2**31 - 1),
    ("seed", -(2**63), 2**64 - 1),
    ("n", 1, 128),
    ("presence_penalty", -2, 2),
    ("frequency_penalty", -2, 2),
    ("logprobs", 0, 20),
    ("prompt_logprobs", 0, 20),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt and what is asked of it. ``request_id`` is unique among the requests in flight."""

    request_id: str
    prompt: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    salt: str = ""  # requests share cached blocks only if their salts are equal
    priority: int = 0  # smaller is sooner, with --schedule-policy priority
    timeout_s: float | None = None  # from arrival; the choices that are not finished then end with "timeout"
    cache_report: bool = False
    arrival_s: float | None = None  # time.monotonic() when the API received it; None: when it reaches the engine


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability (nats, of the raw logits) of one token, and the best alternatives at its place."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # (token id, log-probability), best first


@dataclass(frozen=True, slots=True)
class CacheReport:
    """Why the prefix cache served no more of a prompt than it did."""

    cached_tokens: int
    divergent_position: int | None  # first position that had to be computed; None when all was cached that can be
    reason: Literal["hit", "other_token", "evicted", "salt", "never_seen", "disabled"]


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one choice. Only what was sampled and kept counts as completion."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int  # prompt tokens whose KV came from the prefix cache when the request was first admitted


@dataclass(frozen=True, slots=True, kw_only=True)
class Delta:
    """What one step added to one choice of a request.

    ``finish_reason`` "stop" means that the last of ``token_ids`` is an end-of-sequence or stop token, which counts as
    a completion token but is not text.
    """

    request_id: str
    index: int = 0
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] | None = None  # one a token, when asked for
    prompt_logprobs: tuple[TokenLogprob | None, ...] | None = None  # on the request's first delta; the first is None
    finish_reason: FinishReason | None = None
    usage: Usage | None = None  # with finish_reason
    cache_report: CacheReport | None = None  # with finish_reason, when asked for
    error: str | None = None  # with finish_reason "error" or "timeout"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What the API needs to know of the model that the engine runs."""

    name: str
    quantization: str  # "none", "q4_1", ...
    backend: str
    dtype: str
    vocab_size: int
    max_model_len: int
    block_size: int
    num_blocks: int
    max_num_seqs: int
    eos_token_ids: tuple[int, ...]
    default_sampling: dict[str, float] = field(default_factory=dict)  # the model's own: temperature, top_p, ...
    prefix_cache: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """A snapshot of the engine. Times are in milliseconds; a percentile is None before anything was measured."""

    uptime_s: float
    requests_total: int
    requests_active: int
    requests_running: int
    requests_aborted: int
    requests_completed: int
    queue_depth: int
    errors_total: int
    ttft_ms_p50: float | None
    ttft_ms_p95: float | None
    tpot_ms_p50: float | None
    tpot_ms_p95: float | None
    tokens_per_sec: float  # decoded in the last 10 s
    kv_blocks_total: int
    kv_blocks_used: int  # referenced + cached
    kv_blocks_cached: int  # held by no sequence, still matchable
    kv_blocks_free: int
    prefix_cache_hits: int
    prefix_tokens_saved: int
    prefill_tokens_total: int
    decode_tokens_total: int
    preemptions_total: int
    batch_size_last: int
    batch_size_max: int
    steps_total: int
    last_step_age_s: float  # since the engine last stepped or, when idle, looked for work


SequenceState = Literal["waiting", "prefill", "decode"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceView:
    """One unfinished sequence as an observer sees it. Lengths are in tokens."""

    request_id: str
    index: int  # choice
    state: SequenceState
    prompt_tokens: int
    cached_tokens: int  # of the prompt, served by the prefix cache
    computed_tokens: int  # whose KV is in the pool, cached ones included
    generated_tokens: int
    max_tokens: int | None
    blocks: tuple[int, ...]  # its block table


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What the engine holds between two steps, for people to watch; taken on the engine's thread."""

    stats: Stats
    running: tuple[SequenceView, ...]
    waiting: tuple[SequenceView, ...]  # the queue's first ones; stats.queue_depth counts all
    blocks: bytes  # one byte a block: its refcount (at most 254), 0 when free, 255 when held by nobody but matchable
