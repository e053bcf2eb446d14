"""A ForwardBatch as numpy arrays of the runner's own, and which pages and keys each query sees.

This is the whole of a step's metadata: built once a step on the engine's thread, while the device still works on the
step before. Knows no array library of a device.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlxserve.engine.interfaces import ForwardBatch

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """Attention of D sequences with one query each, padded to the same number M of blocks, L = M * block_size keys."""

    rows: Ints  # [D] flat index of each query
    tables: Ints  # [D, M]; padding names a block of the sequence's own
    mask: Bools  # [D, L] keys that the query sees


@dataclass(frozen=True, slots=True)
class PrefillPlan:
    """Attention of one sequence with n > 1 queries over L = M * block_size keys."""

    start: int  # the queries are flat start : end
    end: int
    table: Ints  # [M]
    mask: Bools  # [n, L]


@dataclass(frozen=True, slots=True)
class AttentionPlan:
    """Every sequence of a batch is in exactly one of the two."""

    decode: DecodePlan | None
    prefills: tuple[PrefillPlan, ...]


@dataclass(frozen=True, slots=True)
class HostBatch:
    """Copies of what ``ForwardBatch`` describes: T tokens, S sequences, R wanted rows of logits."""

    block_size: int
    tokens: Ints  # [T]
    positions: Ints  # [T]
    blocks: Ints  # [T] where each token's K and V are written: the block ...
    offsets: Ints  # [T] ... and the place in it
    query_starts: Ints  # [S + 1]
    context_lens: Ints  # [S]
    block_tables: tuple[Ints, ...]  # [S] of as many blocks as the context needs
    late_at: Ints  # [L] flat indices of the tokens that the previous step samples ...
    late_rows: Ints  # [L] ... and the rows of its SampleInputs that sample them
    copy_sources: Ints
    copy_targets: Ints
    logit_rows: Ints  # [R]
    deterministic: bool

    @property
    def fresh_blocks(self) -> Ints:
        """Blocks whose first place this step writes, but not the last one.

        Masked keys still take part in the arithmetic, and not-a-number times zero is not zero: what a failed sequence
        left in a block must be cleared before another one reads the part that it has not written yet.
        """
        begun, filled = self.blocks[self.offsets == 0], self.blocks[self.offsets == self.block_size - 1]
        return np.setdiff1d(begun, filled)

    @property
    def highest_block(self) -> int:
        """The highest block number that this step writes or reads."""
        return max(int(t.max()) for t in (self.blocks, self.copy_targets, *self.block_tables) if t.size)

    def attention_plan(self, window: int | None) -> AttentionPlan:
        """For layers whose queries see ``window`` keys, their own included; None: all before them."""
        lens = np.diff(self.query_starts)
        decode = np.flatnonzero(lens == 1)
        prefills = tuple(self._prefill(int(s), window) for s in np.flatnonzero(lens > 1))
        return AttentionPlan(self._decode(decode, window) if decode.size else None, prefills)

    def _decode(self, sequences: Ints, window: int | None) -> DecodePlan:
        contexts = self.context_lens[sequences]
        first = _first_block(contexts - 1, window, self.block_size)
        tables = [self.block_tables[s][f:] for s, f in zip(sequences, first, strict=True)]
        width = max(t.size for t in tables)
        padded = np.empty((len(tables), width), np.int64)
        for row, table in zip(padded, tables, strict=True):
            row[: table.size] = table
            row[table.size :] = table[0]
        keys = first[:, None] * self.block_size + np.arange(width * self.block_size)
        return DecodePlan(self.query_starts[sequences], padded, _visible(keys, contexts[:, None] - 1, window))

    def _prefill(self, sequence: int, window: int | None) -> PrefillPlan:
        start, end = (int(i) for i in self.query_starts[sequence : sequence + 2])
        queries = np.arange(start - end, 0) + self.context_lens[sequence]
        first = int(_first_block(queries[0], window, self.block_size))
        table = self.block_tables[sequence][first:]
        keys = first * self.block_size + np.arange(table.size * self.block_size)
        return PrefillPlan(start, end, table, _visible(keys[None], queries[:, None], window))


def host_batch(batch: ForwardBatch, block_size: int) -> HostBatch:
    """Copies all of ``batch``."""
    slots = _ints(batch.slots)
    contexts = _ints(batch.context_lens)
    needed = -(-contexts // block_size)
    return HostBatch(
        block_size=block_size,
        tokens=_ints(batch.tokens),
        positions=_ints(batch.positions),
        blocks=slots // block_size,
        offsets=slots % block_size,
        query_starts=_ints(batch.query_starts),
        context_lens=contexts,
        block_tables=tuple(_ints(t[:n]) for t, n in zip(batch.block_tables, needed, strict=True)),
        late_at=_ints([at for at, _ in batch.late_tokens]),
        late_rows=_ints([row for _, row in batch.late_tokens]),
        copy_sources=_ints([c.source for c in batch.page_copies]),
        copy_targets=_ints([c.target for c in batch.page_copies]),
        logit_rows=_ints(batch.logit_rows),
        deterministic=batch.deterministic,
    )


def _ints(values: object) -> Ints:
    return np.array(values, dtype=np.int64)


def _first_block(first_query: Ints, window: int | None, block_size: int) -> Ints:
    """The block of the oldest key that a query at this position sees."""
    oldest = first_query * 0 if window is None else np.maximum(first_query - (window - 1), 0)
    return oldest // block_size


def _visible(keys: Ints, queries: Ints, window: int | None) -> Bools:
    seen = keys <= queries
    return seen if window is None else seen & (keys > queries - window)
