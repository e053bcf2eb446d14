"""One step's attention metadata on the device, and how contexts are split over threadgroups. Built once a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
from numpy.typing import ArrayLike

STEP = 16  # tokens; a split begins at a multiple of it
FIXED_CHUNK = 512  # tokens a split where results must not depend on the batch


def padded(values: ArrayLike) -> mx.array:
    """int32, flat, of at least 8 elements: a shorter input would be passed in another address space."""
    flat = np.asarray(values, np.int32).reshape(-1)
    return mx.array(np.pad(flat, (0, max(0, 8 - flat.size))))


@dataclass(frozen=True, slots=True)
class PagePlan:
    """S sequences of 1 to ``max_queries`` query rows. Work item: ``chunk`` tokens of one sequence's context."""

    sequences: int
    max_queries: int
    max_blocks: int
    block_tables: mx.array  # [S * max_blocks] int32, padded
    context_lens: mx.array  # [max(S, 8)]
    query_starts: mx.array  # [max(S + 1, 8)]
    chunk: int
    split: bool  # some sequence has more than one item
    items: int
    work: mx.array  # [max(2 W, 8)] (sequence, first token)
    partial_starts: mx.array  # [max(S + 1, 8)] sequence s has the items partial_starts[s] : partial_starts[s + 1]


def choose_chunk(context_lens: Sequence[int], groups: int, wanted: int) -> int:
    """Tokens a split: the most that still makes ``wanted`` threadgroups, from 256 up. ``groups``: threadgroups an item
    (KV heads, by row groups)."""
    longest = max(context_lens, default=0)
    chunk = max(256, -(-longest // STEP) * STEP)
    while chunk > 256 and groups * sum(-(-max(n, 1) // chunk) for n in context_lens) < wanted:
        chunk = max(256, -(-chunk // 2 // STEP) * STEP)
    return chunk


def make_plan(
    block_tables: Sequence[Sequence[int]], context_lens: Sequence[int], query_starts: Sequence[int], chunk: int
) -> PagePlan:
    """``block_tables``: physical blocks, at least as many as the context needs; padding is never read."""
    assert chunk % STEP == 0
    sequences = len(context_lens)
    max_blocks = max(1, max((len(t) for t in block_tables), default=1))
    tables = np.zeros((sequences, max_blocks), np.int32)
    for row, table in zip(tables, block_tables, strict=True):
        row[: len(table)] = table
    splits = [max(1, -(-n // chunk)) for n in context_lens]
    work = [(s, i * chunk) for s, n in enumerate(splits) for i in range(n)]
    return PagePlan(
        sequences=sequences,
        max_queries=int(max(np.diff(query_starts), default=1)),
        max_blocks=max_blocks,
        block_tables=padded(tables),
        context_lens=padded(context_lens),
        query_starts=padded(query_starts),
        chunk=chunk,
        split=len(work) > sequences,
        items=len(work),
        work=padded(work),
        partial_starts=padded([0, *np.cumsum(splits)]),
    )
