"""The state of one choice of a request, and what the choices of a request share.

Pure bookkeeping: it knows nothing of budgets, free blocks or devices. The scheduler, the KV manager and the core each
change the fields that their comment names.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable
from enum import Enum

from mlxserve.engine.interfaces import SampleRow
from mlxserve.types import CacheReport, Request, TokenLogprob


class Status(Enum):
    """Where a sequence is. It only ever finishes once."""

    WAITING = "waiting"  # in the queue, or held back until its sibling's prompt has been computed
    RUNNING = "running"  # holds blocks
    FINISHED = "finished"


class RequestState:
    """What the choices of one request share."""

    __slots__ = (
        "__weakref__",
        "arrival_s",
        "cache_report",
        "cached_tokens",
        "choices",
        "failed",
        "first_token_s",
        "gave_up",
        "held",
        "live",
        "prompt_scores",
        "request",
        "scored",
        "scores_sent",
    )

    def __init__(self, request: Request, arrival_s: float) -> None:
        self.request = request
        self.arrival_s = arrival_s
        self.choices: list[Sequence] = []
        self.held: list[Sequence] = []  # wait for the first choice's prompt, then fork from it
        self.live = 0  # choices that have not finished
        self.failed = False  # a choice ended with "error" or "timeout"
        self.gave_up = False  # a choice was aborted
        self.cached_tokens: int | None = None  # None until first admitted; recomputation never changes it
        self.cache_report: CacheReport | None = None
        self.first_token_s: float | None = None
        self.prompt_scores: list[TokenLogprob | None] = [None]
        self.scored = 1  # prompt positions whose score is known or under way; the first has none
        self.scores_sent = False


class Sequence:
    """One choice: its tokens, how far it has been scheduled and computed, and its block table.

    Positions: ``computed <= scheduled <= target`` and ``len(tokens) <= target``. ``target`` counts the tokens that are
    known and the one that a step under way samples. A decode is due when ``scheduled == target - 1``.
    """

    __slots__ = (
        "block_table",
        "capacity",
        "computed",
        "counts",
        "hashes",
        "index",
        "late_row",
        "limit",
        "num_prompt",
        "number",
        "params",
        "prefilling",
        "publish_at",
        "published",
        "request_id",
        "row",
        "scheduled",
        "state",
        "status",
        "stop_ids",
        "target",
        "tokens",
    )

    def __init__(
        self, state: RequestState, index: int, *, number: int, limit: int, stop_ids: frozenset[int], seed: int
    ) -> None:
        request = state.request
        params = request.params
        self.state = state
        self.request_id = request.request_id
        self.index = index
        self.number = number  # order of arrival
        self.params = params
        self.tokens = array("i", request.prompt)
        self.num_prompt = len(request.prompt)
        self.limit = limit  # tokens that prompt and output may reach together
        self.stop_ids = stop_ids
        self.status = Status.WAITING
        # The scheduler's.
        self.scheduled = 0  # tokens whose KV has been scheduled
        self.target = self.num_prompt
        self.prefilling = False
        # The core's.
        self.computed = 0  # tokens whose KV a finished step has written
        self.late_row = -1  # row of the step under way that samples the next token
        penalised = params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1
        self.counts: dict[int, int] | None = {} if penalised else None
        self.row = SampleRow(
            row=0,
            params=params,
            seed=seed,
            position=0,
            choice=index,
            banned=tuple(sorted(stop_ids)) if params.min_tokens else (),
            output_counts={} if self.counts is None else self.counts,
            prompt_ids=frozenset(request.prompt) if params.repetition_penalty != 1 else (),
        )
        # The KV manager's.
        self.block_table = array("i")
        self.capacity = 0  # tokens that the block table has room for
        self.hashes: list[bytes] = []  # of the full blocks, as far as anyone asked
        self.published = 0  # blocks that were offered to the prefix cache
        self.publish_at = 0  # ``computed`` from which there is something to publish

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    def append(self, token: int) -> None:
        """Adds a sampled token."""
        self.tokens.append(token)
        if self.counts is not None:
            self.counts[token] = self.counts.get(token, 0) + 1
        if self.row.banned and self.num_output >= self.params.min_tokens:
            self.row.banned = ()


def make_choices(state: RequestState, *, first_number: int, limit: int, stop_ids: frozenset[int]) -> list[Sequence]:
    """The choices of a request. They share a given seed; without one each draws 64 bits from the OS."""
    params = state.request.params
    seeds: Iterable[int]
    if params.seed is not None:
        seeds = [params.seed & 0xFFFF_FFFF_FFFF_FFFF] * params.n
    else:
        seeds = [int.from_bytes(os.urandom(8), "little") for _ in range(params.n)]
    return [
        Sequence(state, index, number=first_number + index, limit=limit, stop_ids=stop_ids, seed=seed)
        for index, seed in enumerate(seeds)
    ]
