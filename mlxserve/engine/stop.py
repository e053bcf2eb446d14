"""When a sequence ends: end-of-sequence and stop tokens, and its length. Speaks token ids only.

Stop strings are matched where text is, which then aborts the sequence.
"""

from __future__ import annotations

from collections.abc import Collection

from mlxserve.engine.sequence import Sequence
from mlxserve.errors import BadRequest, ContextLengthExceeded
from mlxserve.types import FinishReason, Request, SamplingParams


def stop_ids(params: SamplingParams, eos_token_ids: Collection[int]) -> frozenset[int]:
    """Tokens that end a sequence; until ``min_tokens`` they cannot be sampled."""
    ids = frozenset(params.stop_token_ids)
    return ids if params.ignore_eos else ids.union(eos_token_ids)


def finish_reason(seq: Sequence, token: int) -> FinishReason | None:
    """Whether ``token``, which the sequence now ends with, finishes it."""
    if token in seq.stop_ids:
        return "stop"
    return "length" if len(seq.tokens) >= seq.limit else None


def length_limit(request: Request, max_model_len: int, pool_tokens: int) -> int:
    """Tokens that prompt and output may reach together. Raises BadRequest when the request can never run to its end."""
    length = len(request.prompt)
    if not length:
        raise BadRequest("The prompt is empty, but must have at least 1 token", param="prompt")
    longest = min(max_model_len, pool_tokens)
    what = f"the model's length of {max_model_len}" if longest == max_model_len else f"the KV pool of {pool_tokens}"
    max_tokens = request.params.max_tokens
    if max_tokens is None:
        if length >= longest:
            raise ContextLengthExceeded(
                f"The prompt has {length} tokens, which leaves no room for an answer in {what} tokens", param="prompt"
            )
        return longest
    if length + max_tokens > longest:
        raise ContextLengthExceeded(
            f"The prompt of {length} tokens and max_tokens of {max_tokens} are {length + max_tokens} tokens, "
            f"but must fit in {what} tokens",
            param="prompt" if length > longest else "max_tokens",
        )
    return length + max_tokens
