"""A step's metadata: which pages and keys each query sees."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mlxserve.backends.batch import host_batch
from mlxserve.engine.interfaces import ForwardBatch, PageCopy


def make(chunks: list[tuple[int, int]], block_size: int) -> ForwardBatch:
    """chunks: (tokens cached before, new tokens); sequence s has the blocks 100 s, 100 s + 1, ..."""
    b = ForwardBatch(*(array("q") for _ in range(3)), array("q", [0]), array("q"), [], [], [], array("q"))
    for s, (start, n) in enumerate(chunks):
        b.positions.extend(range(start, start + n))
        b.tokens.extend(range(n))
        b.slots.extend((100 * s + p // block_size) * block_size + p % block_size for p in range(start, start + n))
        b.query_starts.append(len(b.tokens))
        b.context_lens.append(start + n)
        b.block_tables.append(array("i", range(100 * s, 100 * s + 60)))  # longer than needed
    return b


@given(
    chunks=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), min_size=1, max_size=6),
    block_size=st.sampled_from([1, 4, 16]),
    window=st.none() | st.integers(1, 20),
)
def test_each_query_sees_its_window_and_nothing_else(
    chunks: list[tuple[int, int]], block_size: int, window: int | None
) -> None:
    """NUM-06: itself and the window - 1 keys before it, for decodes and chunks alike."""
    host = host_batch(make(chunks, block_size), block_size)
    plan = host.attention_plan(window)
    seen: dict[int, set[int]] = {}  # flat index -> slots it reads

    def note(flat: int, table: np.ndarray, mask: np.ndarray) -> None:
        slots = (table[:, None] * block_size + np.arange(block_size)).reshape(-1)
        assert flat not in seen
        seen[flat] = set(slots[mask].tolist())
        assert len(seen[flat]) == mask.sum()

    if plan.decode is not None:
        for flat, table, mask in zip(plan.decode.rows, plan.decode.tables, plan.decode.mask, strict=True):
            note(int(flat), table, mask)
    for p in plan.prefills:
        for i, mask in enumerate(p.mask):
            note(p.start + i, p.table, mask)
    flat = 0
    for s, (start, n) in enumerate(chunks):
        for position in range(start, start + n):
            oldest = 0 if window is None else max(0, position - window + 1)
            want = {(100 * s + k // block_size) * block_size + k % block_size for k in range(oldest, position + 1)}
            assert seen[flat] == want
            flat += 1
    assert len(seen) == flat


def test_a_window_reads_no_page_before_it() -> None:
    plan = host_batch(make([(39, 1), (30, 4)], 4), 4).attention_plan(5)
    assert plan.decode is not None
    assert plan.decode.tables.tolist() == [[8, 9]]  # keys 35 to 39
    assert plan.prefills[0].table.tolist() == [106, 107, 108]  # keys 26 to 33


def test_nothing_is_shared_with_the_engine() -> None:
    batch = make([(3, 2)], 4)
    batch.page_copies.append(PageCopy(7, 9))
    batch.late_tokens.append((1, 0))
    batch.logit_rows.append(1)
    host = host_batch(batch, 4)
    for a in (batch.tokens, batch.positions, batch.slots, batch.context_lens, batch.block_tables[0], batch.logit_rows):
        a[0] = 77
    assert host.tokens.tolist() == [0, 1]
    assert host.positions.tolist() == [3, 4]
    assert (host.blocks.tolist(), host.offsets.tolist()) == ([0, 1], [3, 0])
    assert [t.tolist() for t in host.block_tables] == [[0, 1]]
    assert (host.copy_sources.tolist(), host.copy_targets.tolist()) == ([7], [9])
    assert (host.late_at.tolist(), host.late_rows.tolist()) == ([1], [0])
    assert host.logit_rows.tolist() == [1]
    assert host.highest_block == 9


@pytest.mark.parametrize("n", [1, 3])
def test_an_empty_list_is_an_empty_array(n: int) -> None:
    host = host_batch(make([(0, n)], 16), 16)
    assert host.late_at.shape == host.copy_targets.shape == host.logit_rows.shape == (0,)


@pytest.mark.parametrize(
    ("start", "n", "fresh"), [(0, 1, [0]), (1, 1, []), (4, 1, [1]), (0, 4, []), (0, 6, [1]), (2, 7, [2]), (3, 5, [])]
)
def test_fresh_blocks(start: int, n: int, fresh: list[int]) -> None:
    assert host_batch(make([(start, n)], 4), 4).fresh_blocks.tolist() == fresh
