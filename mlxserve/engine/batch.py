"""A Plan in the flat form that the model runner reads.

Knows token ids, positions and block tables; decides nothing.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass

from mlxserve.engine.interfaces import ForwardBatch, SampleInputs, SampleRow, ScoreRow
from mlxserve.engine.scheduler import Chunk, Plan
from mlxserve.engine.sequence import RequestState, Sequence, Status


def build_batch(plan: Plan, block_size: int, deterministic: bool) -> ForwardBatch:
    """The batch of one step. Reads the block tables, which must have room for every chunk."""
    shift = block_size.bit_length() - 1
    mask = block_size - 1
    tokens, positions, slots = array("i"), array("i"), array("i")
    query_starts, context_lens, logit_rows = array("i", (0,)), array("i"), array("i")
    tables: list[array[int]] = []
    late: list[tuple[int, int]] = []
    for chunk in plan.chunks:
        seq = chunk.seq
        start = chunk.start
        table = seq.block_table
        first = len(tokens)
        if chunk.length == 1:
            if seq.late_row >= 0:
                late.append((first, seq.late_row))
                tokens.append(0)
            else:
                tokens.append(seq.tokens[start])
            positions.append(start)
            slots.append(table[start >> shift] << shift | start & mask)
            end = start + 1
        else:
            end = start + chunk.length
            tokens.extend(seq.tokens[start:end])
            positions.extend(range(start, end))
            _extend_slots(slots, table, start, end, block_size)
        query_starts.append(len(tokens))
        context_lens.append(end)
        tables.append(table)
        if seq.params.prompt_logprobs is not None:
            scored = _score_range(chunk)
            logit_rows.extend(range(first + scored.start - 1 - start, first + scored.stop - 1 - start))
        if chunk.samples:
            logit_rows.append(len(tokens) - 1)
    return ForwardBatch(
        tokens=tokens,
        positions=positions,
        slots=slots,
        query_starts=query_starts,
        context_lens=context_lens,
        block_tables=tables,
        late_tokens=late,
        page_copies=plan.copies,
        logit_rows=logit_rows,
        deterministic=deterministic,
    )


def _extend_slots(slots: array[int], table: array[int], start: int, end: int, block_size: int) -> None:
    position = start
    while position < end:
        block, offset = divmod(position, block_size)
        count = min(block_size - offset, end - position)
        first = table[block] * block_size + offset
        slots.extend(range(first, first + count))
        position += count


def _score_range(chunk: Chunk) -> range:
    """Prompt positions whose tokens this chunk's logits score and that no earlier chunk scored."""
    first = max(chunk.start + 1, chunk.seq.state.scored)
    return range(first, max(first, min(chunk.start + chunk.length + 1, chunk.seq.num_prompt)))


@dataclass(slots=True)
class Sampling:
    """What one step samples and scores, and for whom."""

    inputs: SampleInputs
    sequences: list[Sequence]  # of inputs.rows
    scored: list[RequestState]  # of inputs.scores


def build_sampling(plan: Plan) -> Sampling:
    """The rows of the plan's sequences that have not finished meanwhile; notes on each where its token will be."""
    rows: list[SampleRow] = []
    scores: list[ScoreRow] = []
    sequences: list[Sequence] = []
    scored: list[RequestState] = []
    row = 0  # of logit_rows
    for chunk in plan.chunks:
        seq = chunk.seq
        if seq.params.prompt_logprobs is not None:
            for position in _score_range(chunk):
                scores.append(ScoreRow(row, seq.tokens[position], seq.params.prompt_logprobs))
                scored.append(seq.state)
                seq.state.scored = position + 1
                row += 1
        if chunk.samples:
            for choice in (seq, *chunk.forks) if chunk.forks else (seq,):
                if choice.status is not Status.FINISHED:
                    choice.late_row = len(rows)
                    sample = choice.row
                    sample.row = row
                    sample.position = choice.target - 1
                    rows.append(sample)
                    sequences.append(choice)
            row += 1
    return Sampling(SampleInputs(rows, scores), sequences, scored)
