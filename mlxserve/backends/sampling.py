"""What to sample, as numpy arrays, and what was sampled, as the engine's records: the host's side of every sampler.

A backend's sampler does the work between the two, in this order: penalties and bias, mask, temperature, top-k, softmax,
top-p, min-p, Gumbel noise counted by (token id, position, choice), argmax. Each filter keeps every token that is at
least as probable as the last one it keeps, so ties stay together and the order of equal logits never matters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mlxserve.backends.philox import key_words
from mlxserve.engine.interfaces import Sampled, SampleInputs, SampleRow, ScoreRow
from mlxserve.types import TokenLogprob

Ints = NDArray[np.int64]
Floats = NDArray[np.float32]

NOT_A_NUMBER = "the model's output is not a number"
NOTHING_ALLOWED = "no token is allowed at this place"


@dataclass(frozen=True, slots=True)
class Sparse:
    """Values for some (row, token) pairs, none twice."""

    rows: Ints
    tokens: Ints
    values: Floats


@dataclass(frozen=True, slots=True)
class Noise:
    """The N rows that are sampled at random."""

    rows: Ints  # [N] among the plan's R rows
    temperature: Floats  # [N]
    top_k: Ints  # [N] the vocabulary's size when off
    top_p: NDArray[np.float64]  # [N] 1 when off
    min_p: Floats  # [N] 0 when off
    key0: Ints  # [N] low word of the seed
    key1: Ints  # [N] high word
    positions: Ints  # [N]
    choices: Ints  # [N]

    @property
    def counter(self) -> tuple[Ints, Ints, Ints, Ints]:
        """What the noise of a token depends on beside its id: position, choice, and the seed's two words."""
        return self.positions, self.choices, self.key0, self.key1


@dataclass(frozen=True, slots=True)
class SamplePlan:
    """R rows to sample and the known tokens to score."""

    vocab: int
    rows: Ints  # [R] index into the rows of logits
    noise: Noise | None  # None: every row is greedy
    repetition: Sparse | None  # positive logits are divided by the value, the others multiplied
    additions: Sparse | None  # biases, less the penalties that count output tokens
    banned: Sparse | None  # its values mean nothing
    allowed: NDArray[np.bool_] | None  # [R, vocab]
    wanted: tuple[int | None, ...]  # [R] alternatives to report; None: no log-probability
    scores: tuple[ScoreRow, ...]

    @property
    def plain(self) -> bool:
        """Whether the logits need no adjustment."""
        return self.repetition is None and self.additions is None and self.banned is None and self.allowed is None

    @property
    def reported(self) -> Ints:
        """Which of the R rows report log-probabilities."""
        return np.flatnonzero([w is not None for w in self.wanted])

    @property
    def score_rows(self) -> Ints:
        """The rows of logits behind ``reported`` and then ``scores``."""
        return np.concatenate([self.rows[self.reported], np.array([s.row for s in self.scores], np.int64)])

    @property
    def most_alternatives(self) -> int:
        return min(max((*(w or 0 for w in self.wanted), *(s.top for s in self.scores)), default=0), self.vocab)


@dataclass(frozen=True, slots=True)
class Scores:
    """Log-probabilities of N rows of raw logits (``SamplePlan.score_rows``) with their best K alternatives."""

    chosen: Floats  # [N]
    top_tokens: Ints  # [N, K]
    top_values: Floats  # [N, K]


def plan_samples(inputs: SampleInputs, vocab: int) -> SamplePlan:
    """Reads all of ``inputs``."""
    rows = inputs.rows
    return SamplePlan(
        vocab=vocab,
        rows=np.array([r.row for r in rows], np.int64),
        noise=_noise(rows, vocab),
        repetition=_sparse(rows, _repetition),
        additions=_sparse(rows, _additions),
        banned=_sparse(rows, lambda r: dict.fromkeys(r.banned, 0.0)),
        allowed=_allowed(rows, vocab),
        wanted=tuple(r.params.logprobs for r in rows),
        scores=tuple(inputs.scores),
    )


def sampled(
    plan: SamplePlan, tokens: Ints, highest: Floats, raw_highest: Floats, margins: Floats, scores: Scores | None
) -> Sampled:
    """The engine's record. ``raw_highest`` [R] is the highest logit of each row, not-a-number if any is; ``highest``
    the same after the mask; both tell rows that could not be sampled."""
    errors = {int(r): NOTHING_ALLOWED for r in np.flatnonzero(highest == -np.inf)}
    errors |= {int(r): NOT_A_NUMBER for r in np.flatnonzero(~(raw_highest < np.inf))}
    logprobs: list[tuple[TokenLogprob, ...] | None] = [None] * len(plan.rows)
    known: list[TokenLogprob] = []
    if scores is not None:
        reported = plan.reported
        ids = [int(t) for t in tokens[reported]] + [s.token_id for s in plan.scores]
        tops = [plan.wanted[r] or 0 for r in reported] + [s.top for s in plan.scores]
        records = [_logprob(scores, i, token, top) for i, (token, top) in enumerate(zip(ids, tops, strict=True))]
        for r, record in zip(reported, records, strict=False):
            logprobs[r] = (record,)
        known = records[len(reported) :]
    return Sampled(
        tokens=[(int(t),) for t in tokens],
        logprobs=logprobs,
        scores=known,
        errors=errors,
        margins=[float(m) for m in margins],
    )


def _logprob(scores: Scores, row: int, token: int, top: int) -> TokenLogprob:
    best = sorted(zip(scores.top_values[row].tolist(), scores.top_tokens[row].tolist(), strict=True), key=_rank)[:top]
    return TokenLogprob(token, float(scores.chosen[row]), tuple((t, v) for v, t in best))


def _rank(pair: tuple[float, int]) -> tuple[float, int]:
    value, token = pair
    return -value, token


def _noise(rows: Sequence[SampleRow], vocab: int) -> Noise | None:
    drawn = [(i, r) for i, r in enumerate(rows) if r.params.temperature > 0]
    if not drawn:
        return None
    params = [r.params for _, r in drawn]
    keys = np.array([key_words(r.seed) for _, r in drawn], np.int64)
    return Noise(
        rows=np.array([i for i, _ in drawn], np.int64),
        temperature=np.array([p.temperature for p in params], np.float32),
        top_k=np.array([p.top_k if 0 < p.top_k < vocab else vocab for p in params], np.int64),
        top_p=np.array([p.top_p for p in params], np.float64),
        min_p=np.array([p.min_p for p in params], np.float32),
        key0=keys[:, 0],
        key1=keys[:, 1],
        positions=np.array([r.position for _, r in drawn], np.int64),
        choices=np.array([r.choice for _, r in drawn], np.int64),
    )


def _sparse(rows: Sequence[SampleRow], values_of: Callable[[SampleRow], Mapping[int, float]]) -> Sparse | None:
    found = [(i, values) for i, r in enumerate(rows) if (values := values_of(r))]
    if not found:
        return None
    return Sparse(
        rows=np.repeat([i for i, _ in found], [len(values) for _, values in found]).astype(np.int64),
        tokens=np.concatenate([np.fromiter(values, np.int64, len(values)) for _, values in found]),
        values=np.concatenate([np.fromiter(values.values(), np.float32, len(values)) for _, values in found]),
    )


def _repetition(row: SampleRow) -> Mapping[int, float]:
    penalty = row.params.repetition_penalty
    if penalty == 1:
        return {}
    return dict.fromkeys([*row.prompt_ids, *row.output_counts], penalty)


def _additions(row: SampleRow) -> Mapping[int, float]:
    p = row.params
    total = dict(p.logit_bias)
    if p.frequency_penalty or p.presence_penalty:
        for token, count in row.output_counts.items():
            total[token] = total.get(token, 0.0) - count * p.frequency_penalty - p.presence_penalty
    return total


def _allowed(rows: Sequence[SampleRow], vocab: int) -> NDArray[np.bool_] | None:
    """Bits beyond a mask's end are not allowed: the model's vocabulary may be padded."""
    if all(r.mask is None for r in rows):
        return None
    allowed = np.ones((len(rows), vocab), np.bool_)
    for out, row in zip(allowed, rows, strict=True):
        if row.mask is not None:
            bits = np.unpackbits(np.frombuffer(row.mask, np.uint8), bitorder="little")[:vocab]
            out[: bits.size] = bits
            out[bits.size :] = False
    return allowed
