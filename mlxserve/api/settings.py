"""What the HTTP app may be told, and the caps on what one request may multiply.

Knows nothing of requests, models or sockets.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """Largest values of the fields that multiply work or memory; shown by ``/v1/capabilities``."""

    n: int = 128
    prompts: int = 512  # prompts in one completions request
    choices: int = 512  # prompts times n
    logprobs: int = 20  # alternatives a token
    stop: int = 16  # stop strings
    stop_length: int = 1024  # characters of one stop string
    stop_token_ids: int = 256
    logit_bias: int = 1024
    ignored_fields: int = 32  # unknown fields named in the response header


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """How the app answers. Durations are in seconds, sizes in bytes."""

    served_names: tuple[str, ...]  # the first one is the answer to a request that names no model
    strict: bool = False  # unknown fields are refused instead of reported
    caps: Caps = field(default_factory=Caps)
    body_limit: int = 8 << 20
    keep_alive_s: float = 15.0  # silence after which a stream carries a comment
    open_after_s: float = 0.5  # a stream that has no token by then sends its headers
    coalesce_after: int = 8  # more deltas than this waiting for one reader become one frame
    api_keys: tuple[str, ...] = ()  # none: no key is asked for
    workers: int = 2  # threads that template and tokenise

    def __post_init__(self) -> None:
        assert self.served_names, "an app serves at least one name"
        assert self.body_limit > 0
        assert self.workers > 0
