"""The sampling fields of a request -> SamplingParams, with the model's own defaults and the caps on multipliers.

Knows nothing of prompts or of HTTP.
"""

from __future__ import annotations

from typing import cast

from mlxserve.api.schemas import ChatRequest, Sampling
from mlxserve.api.settings import Caps
from mlxserve.errors import BadRequest, ContextLengthExceeded
from mlxserve.types import ModelInfo, SamplingParams

_DEFAULTED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


def cap(name: str, value: int, limit: int, what: str = "") -> None:
    """Raises BadRequest when a field multiplies more than it may."""
    if value > limit:
        raise BadRequest(f"{name} has {value}{what}, but at most {limit} are allowed", param=name)


def sampling_params(
    body: Sampling,
    info: ModelInfo,
    caps: Caps,
    *,
    max_tokens: int | None,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """Raises BadRequest naming the field that is out of range.

    An absent field has the model's own default (``info.default_sampling``), else the default of SamplingParams.
    """
    given = {name: getattr(body, name) for name in _DEFAULTED}
    chosen = info.default_sampling | {name: value for name, value in given.items() if value is not None}
    if "top_k" in chosen:
        chosen["top_k"] = min(int(chosen["top_k"]), info.vocab_size)
    params = SamplingParams(
        **cast(dict[str, int], chosen),
        max_tokens=max_tokens,
        min_tokens=body.min_tokens or 0,
        seed=body.seed,
        n=body.n or 1,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        logit_bias=_logit_bias(body, caps),
        stop_token_ids=_stop_token_ids(body, caps),
        ignore_eos=body.ignore_eos or False,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )
    cap("n", params.n, caps.n)
    cap("top_logprobs" if isinstance(body, ChatRequest) else "logprobs", logprobs or 0, caps.logprobs)
    if body.best_of is not None and body.best_of != params.n:
        raise BadRequest(f"best_of is {body.best_of}, but must equal n, which is {params.n}", param="best_of")
    params.check(info.vocab_size)
    return params


def _logit_bias(body: Sampling, caps: Caps) -> tuple[tuple[int, float], ...]:
    bias = body.logit_bias or {}
    cap("logit_bias", len(bias), caps.logit_bias, " entries")
    for token in bias:
        if not (token.isascii() and token.isdigit() and len(token) <= 18):
            raise BadRequest(f"logit_bias has the key {token[:60]!r}, but its keys are token ids", param="logit_bias")
    return tuple((int(token), value) for token, value in bias.items())


def _stop_token_ids(body: Sampling, caps: Caps) -> tuple[int, ...]:
    ids = body.stop_token_ids or []
    cap("stop_token_ids", len(ids), caps.stop_token_ids, " entries")
    return tuple(ids)


def stop_strings(body: Sampling, caps: Caps) -> tuple[str, ...]:
    """Raises BadRequest for an empty string, too many or too long ones; ``[]`` means none."""
    if body.stop is None:
        return ()
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop)
    cap("stop", len(stop), caps.stop, " strings")
    for string in stop:
        if not string:
            raise BadRequest("stop holds an empty string, which would stop everything", param="stop")
        cap("stop", len(string), caps.stop_length, " characters in one string")
    return stop


def check_length(
    prompt_tokens: int, params: SamplingParams, info: ModelInfo, param: str, *, or_more: bool = False
) -> None:
    """Raises ContextLengthExceeded unless the prompt and the tokens asked for fit the model and the KV pool.

    A prompt leaves room for one token even where no number was asked for. ``param``: the prompt's field. ``or_more``:
    the prompt may have more tokens than that.
    """
    pool = info.num_blocks * info.block_size
    limit, name = min((info.max_model_len, "the model's context length"), (pool, "the KV pool"))
    asked = ""
    if params.max_tokens is not None:
        asked = f" and max_tokens is {params.max_tokens}"
    elif prompt_tokens < limit < prompt_tokens + params.min_tokens:
        asked, param = f" and min_tokens is {params.min_tokens}", "min_tokens"
    least = params.min_tokens or 1
    if prompt_tokens + (least if params.max_tokens is None else params.max_tokens) > limit:
        has = f"at least {prompt_tokens}" if or_more else str(prompt_tokens)
        raise ContextLengthExceeded(f"The prompt has {has} tokens{asked}, but {name} is {limit} tokens", param=param)
