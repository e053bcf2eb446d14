"""The sampler in torch. See ``backends/sampling.py`` for the order of its steps and what ties mean."""

from __future__ import annotations

import math

import numpy as np
import torch

from mlxserve.backends.base import Samples
from mlxserve.backends.philox import gumbel
from mlxserve.backends.sampling import Noise, SamplePlan, Scores, sampled
from mlxserve.engine.interfaces import Sampled

Tensor = torch.Tensor

# Tokens that are sorted before it is known how many top-p needs; a whole vocabulary takes 40 times as long.
SORTED_FIRST = 256


class TorchSamples(Samples[Tensor]):
    """Torch computes at once."""

    def __init__(self, tokens: Tensor, result: Sampled) -> None:
        self.tokens = tokens
        self.result: Sampled = result

    def finish(self) -> Sampled:
        return self.result


def sample(logits: Tensor, plan: SamplePlan) -> TorchSamples:
    """logits [rows, vocabulary]"""
    raw = logits if np.array_equal(plan.rows, np.arange(len(logits))) else logits[torch.from_numpy(plan.rows)]
    raw = raw.float()
    raw_highest = raw.amax(-1)
    x = raw if plan.plain else _adjust(raw.clone(), plan)
    highest = raw_highest if plan.plain else x.amax(-1)
    if plan.noise is not None:
        x = x.clone() if plan.plain else x
        rows = torch.from_numpy(plan.noise.rows)
        x[rows] = _perturb(x[rows], plan.noise)
    tokens, margins = _best(x)
    result = sampled(
        plan,
        tokens.numpy(),
        highest.numpy(),
        raw_highest.numpy(),
        margins.numpy(),
        _scores(logits, plan, tokens),
    )
    return TorchSamples(tokens, result)


def _adjust(x: Tensor, plan: SamplePlan) -> Tensor:
    """Penalties, biases and masks, in place."""
    if (s := plan.repetition) is not None:
        at = torch.from_numpy(s.rows), torch.from_numpy(s.tokens)
        values, penalty = x[at], torch.from_numpy(s.values)
        x[at] = torch.where(values > 0, values / penalty, values * penalty)
    if (s := plan.additions) is not None:
        x[torch.from_numpy(s.rows), torch.from_numpy(s.tokens)] += torch.from_numpy(s.values)
    if (s := plan.banned) is not None:
        x[torch.from_numpy(s.rows), torch.from_numpy(s.tokens)] = -math.inf
    if plan.allowed is not None:
        x.masked_fill_(torch.from_numpy(~plan.allowed), -math.inf)
    return x


def _perturb(x: Tensor, noise: Noise) -> Tensor:
    """[N, V] adjusted logits -> scaled logits plus noise for the tokens that the filters keep, -inf elsewhere."""
    x = (x - x.amax(-1, keepdim=True)) / torch.from_numpy(noise.temperature)[:, None]
    kept = x >= _threshold(x, noise)
    x = x.masked_fill_(~kept, -math.inf)
    # A row that keeps most of a vocabulary is cheapest whole and by itself; rows that keep few are cheapest together.
    wide = (noise.top_k >= x.shape[1]) & (noise.top_p >= 1)
    everything = np.arange(x.shape[1])
    for i in np.flatnonzero(wide):
        x[i] += torch.from_numpy(gumbel(everything, *(int(a[i]) for a in noise.counter)))
    if not wide.all():
        kept[torch.from_numpy(wide)] = False
        row, token = kept.numpy().nonzero()
        x[torch.from_numpy(row), torch.from_numpy(token)] += torch.from_numpy(
            gumbel(token, *(a[row] for a in noise.counter)).astype(np.float32)
        )
    return x


def _threshold(x: Tensor, noise: Noise) -> Tensor:
    """[N, 1] the lowest scaled logit that top-k, top-p and min-p keep. The highest is 0."""
    # A masked token, at -inf, is below every threshold.
    lowest = torch.from_numpy(noise.min_p).log().clamp_(min=torch.finfo(torch.float32).min)[:, None]
    top_k, top_p = torch.from_numpy(noise.top_k)[:, None], torch.from_numpy(noise.top_p)[:, None]
    vocab = x.shape[1]
    ranked, nucleus = bool((top_k < vocab).any()), bool((top_p < 1).any())
    if not ranked and not nucleus:
        return lowest
    needed = int(top_k[top_k < vocab].max()) if ranked else 1
    best = x.topk(SORTED_FIRST if needed <= SORTED_FIRST < vocab else vocab).values
    if ranked:
        kth = best.gather(1, top_k.clamp(max=best.shape[1]) - 1)
        lowest = torch.maximum(lowest, kth.masked_fill_(top_k == vocab, -math.inf))
        x = x.masked_fill(x < kth, -math.inf)
        best = best.masked_fill(best < kth, -math.inf)
    return torch.maximum(lowest, _nucleus(x, best, top_p)) if nucleus else lowest


def _nucleus(x: Tensor, best: Tensor, top_p: Tensor) -> Tensor:
    """[N, 1] the logit of the last token of the smallest set of the most probable ones whose probability reaches
    ``top_p``. ``best``: the highest of x, in order; where they are too few, more are sorted."""
    probabilities = (best - x.logsumexp(-1, keepdim=True)).double().exp_()
    reached = probabilities.cumsum(-1) - probabilities  # before each token
    count = (reached < top_p).sum(-1, keepdim=True).clamp_(min=1)
    last = best.gather(1, count - 1).masked_fill_(top_p >= 1, -math.inf)
    short = (reached[:, -1] < top_p[:, 0]) & (top_p[:, 0] < 1)
    if best.shape[1] < x.shape[1] and bool(short.any()):
        x = x[short]
        more = x.topk(min(16 * best.shape[1], x.shape[1])).values
        last[short] = _nucleus(x, more, top_p[short])
    return last


def _best(x: Tensor) -> tuple[Tensor, Tensor]:
    """[R, V] -> the first maximum of each row, and by how much it exceeds the second best."""
    top = x.topk(2).values
    margins = (top[:, 0] - top[:, 1]).nan_to_num_(nan=math.inf, posinf=math.inf)
    return x.argmax(-1), margins


def _scores(logits: Tensor, plan: SamplePlan, tokens: Tensor) -> Scores | None:
    rows = plan.score_rows
    if not rows.size:
        return None
    known = torch.tensor([s.token_id for s in plan.scores], dtype=torch.int64)
    chosen = torch.cat((tokens[torch.from_numpy(plan.reported)], known))
    logprobs = logits[torch.from_numpy(rows)].float().log_softmax(-1)
    top = logprobs.topk(plan.most_alternatives)
    return Scores(logprobs.gather(1, chosen[:, None])[:, 0].numpy(), top.indices.numpy(), top.values.numpy())
