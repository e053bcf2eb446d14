"""The flat batch against a plain reading of the plan."""

from __future__ import annotations

from array import array

import pytest

from mlxserve.engine.batch import build_batch, build_sampling
from mlxserve.engine.interfaces import PageCopy, ScoreRow
from mlxserve.engine.scheduler import Chunk, Plan
from mlxserve.engine.sequence import Status
from tests.engine.support import sequence


def prepared(tokens, table, **fields):
    seq = sequence(tokens, **fields)
    seq.block_table = array("i", table)
    return seq


@pytest.mark.parametrize("block_size", [1, 2, 4, 16])
def test_flat_arrays(block_size):
    plan = Plan(copies=[PageCopy(1, 2)])
    for first_block, (length, start, end) in enumerate([(20, 19, 20), (20, 3, 17), (9, 0, 9), (40, 16, 32), (1, 0, 1)]):
        table = [first_block * 50 + (7 * i) % 41 for i in range(-(-length // block_size))]
        plan.chunks.append(Chunk(prepared(length, table), start, end - start))
    batch = build_batch(plan, block_size, deterministic=True)
    tokens, positions, slots, starts = [], [], [], [0]
    for chunk in plan.chunks:
        for position in range(chunk.start, chunk.start + chunk.length):
            tokens.append(chunk.seq.tokens[position])
            positions.append(position)
            slots.append(chunk.seq.block_table[position // block_size] * block_size + position % block_size)
        starts.append(len(tokens))
    assert (list(batch.tokens), list(batch.positions), list(batch.slots)) == (tokens, positions, slots)
    assert list(batch.query_starts) == starts
    assert list(batch.context_lens) == [20, 17, 9, 32, 1]
    assert [t is c.seq.block_table for t, c in zip(batch.block_tables, plan.chunks, strict=True)] == [True] * 5
    assert list(batch.logit_rows) == [end - 1 for end in starts[1:]]
    assert batch.page_copies == [PageCopy(1, 2)]
    assert batch.deterministic
    assert {a.typecode for a in (batch.tokens, batch.positions, batch.slots, batch.logit_rows)} == {"i"}


def test_a_token_that_is_still_sampled_is_late():
    known, late = prepared((5, 6), [0]), prepared((5, 6), [1])
    late.late_row = 3
    batch = build_batch(Plan(chunks=[Chunk(known, 1, 1), Chunk(late, 2, 1)]), 16, deterministic=False)
    assert list(batch.tokens) == [6, 0]
    assert batch.late_tokens == [(1, 3)]


def test_only_a_chunk_that_samples_wants_logits():
    a, b = prepared(8, [0]), prepared(8, [1])
    plan = Plan(chunks=[Chunk(a, 0, 4, samples=False), Chunk(b, 4, 4)])
    assert list(build_batch(plan, 16, deterministic=False).logit_rows) == [7]
    sampling = build_sampling(plan)
    assert [(row.row, row.position) for row in sampling.inputs.rows] == [(0, 7)]


def test_forks_sample_from_the_same_logits_and_the_finished_do_not():
    first, parent, child, gone = (prepared(8, [i]) for i in range(4))
    for seq in (first, parent, child, gone):
        seq.target = 9
    gone.status = Status.FINISHED
    plan = Plan(chunks=[Chunk(gone, 7, 1), Chunk(first, 7, 1), Chunk(parent, 0, 8, forks=(gone, child))])
    sampling = build_sampling(plan)
    assert sampling.sequences == [first, parent, child]
    assert [(row.row, row.position) for row in sampling.inputs.rows] == [(1, 8), (2, 8), (2, 8)]
    assert [s.late_row for s in (first, parent, child, gone)] == [0, 1, 2, -1]


@pytest.mark.parametrize("chunk", [3, 4, 9])
def test_prompt_scores(chunk):
    """Each prompt token but the first is scored once, by the row before it, whatever the chunks."""
    seq = prepared(9, [0], prompt_logprobs=2)
    scored = []
    for start in range(0, 9, chunk):
        length = min(chunk, 9 - start)
        plan = Plan(chunks=[Chunk(seq, start, length, samples=start + length == 9)])
        batch = build_batch(plan, 16, deterministic=False)
        sampling = build_sampling(plan)
        for score in sampling.inputs.scores:
            assert isinstance(score, ScoreRow)
            position = batch.positions[batch.logit_rows[score.row]] + 1
            assert (score.token_id, score.top) == (seq.tokens[position], 2)
            scored.append(position)
        rows = [r.row for r in sampling.inputs.rows]
        assert rows == ([len(batch.logit_rows) - 1] if start + length == 9 else [])
    assert scored == list(range(1, 9))
    again = Plan(chunks=[Chunk(seq, 0, 9)])  # recomputed after a preemption
    assert list(build_batch(again, 16, deterministic=False).logit_rows) == [8]
    assert build_sampling(again).inputs.scores == []
