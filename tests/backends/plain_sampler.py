"""The sampler written down plainly, one row at a time, in float64."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mlxserve.backends.philox import gumbel, key_words
from mlxserve.engine.interfaces import SampleRow

Row = NDArray[np.float64]


def adjusted(logits: NDArray[np.float32], row: SampleRow) -> Row:
    x, p = logits.astype(np.float64), row.params
    for token in {*row.prompt_ids, *row.output_counts}:
        x[token] = x[token] / p.repetition_penalty if x[token] > 0 else x[token] * p.repetition_penalty
    for token, count in row.output_counts.items():
        x[token] -= p.frequency_penalty * count + p.presence_penalty
    for token, bias in p.logit_bias:
        x[token] += bias
    for token in row.banned:
        x[token] = -np.inf
    if row.mask is not None:
        for token in range(len(x)):
            byte = token // 8
            if byte >= len(row.mask) or not row.mask[byte] >> token % 8 & 1:
                x[token] = -np.inf
    return x


def kept(x: Row, row: SampleRow) -> list[int]:
    """Tokens that top-k, top-p and min-p leave, of adjusted logits over the temperature."""
    p = row.params
    order = sorted((t for t in range(len(x)) if x[t] > -np.inf), key=lambda t: -x[t])
    if 0 < p.top_k < len(order):
        order = [t for t in order if x[t] >= x[order[p.top_k - 1]]]
    weights = np.exp(x[order] - x[order[0]])
    probabilities = weights / weights.sum()
    if p.top_p < 1:
        before, last = 0.0, 0
        for i, probability in enumerate(probabilities):
            if i and before >= p.top_p:
                break
            last, before = i, before + probability
        order = [t for t in order if x[t] >= x[order[last]]]
    return [t for t in order if np.exp(x[t] - x[order[0]]) >= p.min_p]


def sample(logits: NDArray[np.float32], row: SampleRow) -> tuple[int, float]:
    """The token, and by how much it beats the second best after the noise."""
    x = adjusted(logits, row)
    if row.params.temperature == 0:
        scores = x
    else:
        x = x / row.params.temperature
        scores = np.full(len(x), -np.inf)
        tokens = np.array(kept(x, row))
        scores[tokens] = x[tokens] + gumbel(tokens, row.position, row.choice, *key_words(row.seed))
    token = int(scores.argmax())
    second = np.delete(scores, token).max()
    return token, float(scores[token] - second)
