"""The sampler in MLX, lazy to the end. See ``backends/sampling.py`` for the order of its steps and what ties mean."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from mlxserve.backends.base import Samples
from mlxserve.backends.philox import WORD, philox
from mlxserve.backends.sampling import Noise, SamplePlan, Scores, Sparse, sampled
from mlxserve.engine.interfaces import Sampled


class MlxSamples(Samples[mx.array]):
    """Arrays under way. A step that samples nothing is waited for all the same: its pages must be written."""

    def __init__(self, logits: mx.array, plan: SamplePlan) -> None:
        self._plan = plan
        self._arrays = _sample(logits, plan) if plan.rows.size else _nothing()
        self._scores = _scores(logits, plan, self._arrays[0]) if plan.score_rows.size else ()
        self.tokens = self._arrays[0]
        mx.async_eval(logits, *self._arrays, *self._scores)

    def finish(self) -> Sampled:
        mx.synchronize()
        tokens, highest, raw_highest, margins = (np.array(a) for a in self._arrays)
        scores = Scores(*(np.array(a) for a in self._scores)) if self._scores else None
        return sampled(self._plan, tokens, highest, raw_highest, margins, scores)


def _sample(logits: mx.array, plan: SamplePlan) -> tuple[mx.array, mx.array, mx.array, mx.array]:
    """logits [rows, V] -> tokens, highest adjusted logit, highest raw logit, margin over the second best; [R] each."""
    raw = logits[_ints(plan.rows)].astype(mx.float32)
    x = raw if plan.plain else _adjust(raw, plan)
    highest, raw_highest = x.max(-1), raw.max(-1)
    if plan.noise is not None:
        rows = _ints(plan.noise.rows)
        x[rows] = _perturb(x[rows], plan.noise)
    tokens = mx.argmax(x, axis=-1)
    others = mx.where(mx.arange(x.shape[1]) == tokens[:, None], -math.inf, x)
    return tokens, highest, raw_highest, x.max(-1) - others.max(-1)


def _nothing() -> tuple[mx.array, mx.array, mx.array, mx.array]:
    empty = mx.zeros((0,))
    return empty.astype(mx.int32), empty, empty, empty


def _adjust(x: mx.array, plan: SamplePlan) -> mx.array:
    """Penalties, biases and masks."""
    x = mx.array(x)
    if (s := plan.repetition) is not None:
        values, penalty = x[_at(s)], mx.array(s.values)
        x[_at(s)] = mx.where(values > 0, values / penalty, values * penalty)
    if (s := plan.additions) is not None:
        x[_at(s)] = x[_at(s)] + mx.array(s.values)
    if (s := plan.banned) is not None:
        x[_at(s)] = -math.inf
    return x if plan.allowed is None else mx.where(mx.array(plan.allowed), x, -math.inf)


def _perturb(x: mx.array, noise: Noise) -> mx.array:
    """[N, V] adjusted logits -> scaled logits plus noise for the tokens that the filters keep, -inf elsewhere."""
    x = (x - x.max(-1, keepdims=True)) / mx.array(noise.temperature)[:, None]
    counter = tuple(mx.array(a.astype(np.uint64))[:, None] for a in noise.counter)
    return mx.where(x >= _threshold(x, noise), x + _noise()(counter, x.shape[1]), -math.inf)


def _threshold(x: mx.array, noise: Noise) -> mx.array:
    """[N, 1] the lowest scaled logit that top-k, top-p and min-p keep. The highest is 0."""
    with np.errstate(divide="ignore"):
        # A masked token, at -inf, is below every threshold.
        lowest = mx.array(np.maximum(np.log(noise.min_p), np.finfo(np.float32).min))[:, None]
    vocab = x.shape[1]
    if (noise.top_k >= vocab).all() and (noise.top_p >= 1).all():
        return lowest
    best = -mx.sort(-x, axis=-1)
    top_k = _ints(noise.top_k)[:, None]
    kth = mx.where(top_k < vocab, mx.take_along_axis(best, top_k - 1, axis=-1), -math.inf)
    best = mx.where(best < kth, -math.inf, best)
    probabilities = mx.softmax(best, axis=-1, precise=True)
    top_p = mx.array(noise.top_p.astype(np.float32))[:, None]
    before = mx.cumsum(probabilities, axis=-1, inclusive=False)
    count = mx.maximum((before < top_p).sum(-1, keepdims=True), 1)
    nucleus = mx.where(top_p < 1, mx.take_along_axis(best, count - 1, axis=-1), -math.inf)
    return mx.maximum(lowest, mx.maximum(kth, nucleus))


def warm_up(vocab: int) -> None:
    """Compiles the noise of one row and of several."""
    for rows in (1, 2):
        mx.eval(_noise()([mx.zeros((rows, 1), mx.uint64)] * 4, vocab))


@functools.cache
def _noise() -> Callable[[Sequence[mx.array], int], mx.array]:
    """``gumbel``, its many operators joined into few launches where MLX has a GPU. The CPU device would be faster for
    it too, but asks the machine's compiler, for seconds (``bench.mlx_compile``)."""
    return mx.compile(gumbel, shapeless=True) if mx.default_device() == mx.Device(mx.gpu) else gumbel


def gumbel(counter: Sequence[mx.array], vocab: int) -> mx.array:
    """[N, V] -log(-log(u)), u = (x0 + 0.5) / 2^32; ``counter``: position, choice, the key's two words, [N, 1] each.
    Above one half -log(u) is found from 1 - u, which float32 holds more exactly than u: u itself would round to 1."""
    tokens = mx.arange(vocab, dtype=mx.uint64)[None]
    position, choice, key0, key1 = counter
    x0 = philox((tokens, position, choice, mx.zeros_like(tokens)), (key0, key1))[0]
    u, rest = ((n.astype(mx.float32) + 0.5) * 2.0**-32 for n in (x0, WORD - x0))
    return -mx.log(mx.where(x0 < 2**31, -mx.log(u), -mx.log1p(-rest)))


def _scores(logits: mx.array, plan: SamplePlan, tokens: mx.array) -> tuple[mx.array, mx.array, mx.array]:
    """Log-probabilities [N], and the best alternatives' ids and log-probabilities [N, K]."""
    known = mx.array([s.token_id for s in plan.scores], mx.uint32)
    chosen = mx.concatenate([tokens.astype(mx.uint32)[_ints(plan.reported)], known])
    x = logits[_ints(plan.score_rows)].astype(mx.float32)
    x = x - mx.logsumexp(x, axis=-1, keepdims=True)
    count = plan.most_alternatives
    best = mx.argpartition(-x, kth=max(count - 1, 0), axis=-1)[:, :count]
    return mx.take_along_axis(x, chosen[:, None], axis=-1)[:, 0], best, mx.take_along_axis(x, best, axis=-1)


def _at(s: Sparse) -> tuple[mx.array, mx.array]:
    return _ints(s.rows), _ints(s.tokens)


def _ints(values: NDArray[Any]) -> mx.array:
    return mx.array(values.astype(np.int32))
