"""Runs mlx-lm's models whose caches pages cannot hold (recurrent states, hybrids): sequence by sequence, each with
mlx-lm's own cache objects.

Knows a sequence by its first block. That names it for as long as it holds blocks, since blocks of such a model are
never shared; one that was preempted begins again at position 0. Knows nothing of what is in a cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm.models.cache import make_prompt_cache

from mlxserve.backends.mlx.batch import MlxBatch


@dataclass(slots=True)
class _State:
    caches: Sequence[Any]  # mlx-lm's, a layer each
    tokens: int = 0  # that they have seen


class SequenceBridge:
    """A decoder whose forward pass is mlx-lm's, a call a sequence.

    What an ended sequence leaves is dropped when its first block is used again. Freed blocks are taken last in first
    out and a sequence frees its first one last, so few are left over.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._states: dict[int, _State] = {}

    def __call__(self, batch: MlxBatch) -> mx.array:
        """[T] tokens -> [R, vocabulary] logits."""
        host = batch.host
        assert not host.copy_targets.size, "a recurrent state cannot be forked by pages"
        for inner in {int(block) for table in host.block_tables for block in table[1:]} & self._states.keys():
            del self._states[inner]
        done = []
        for s, table in enumerate(host.block_tables):
            start, end = (int(i) for i in host.query_starts[s : s + 2])
            state = self._state(int(table[0]), int(host.positions[start]))
            logits = self._model(batch.tokens[start:end][None], cache=state.caches)[0]
            state.tokens += end - start
            wanted = host.logit_rows[(host.logit_rows >= start) & (host.logit_rows < end)] - start
            done.append(logits[mx.array(wanted.astype(np.int32))])
            # A chunk without wanted logits would otherwise be left for the last one to compute.
            kept = dict(tree_flatten([cache.state for cache in state.caches]))
            mx.async_eval([array for array in kept.values() if array is not None])
        return mx.concatenate(done)

    def _state(self, block: int, position: int) -> _State:
        """The sequence's, a new one at its first token."""
        if position == 0:
            self._states[block] = _State(make_prompt_cache(self._model))
        state = self._states[block]
        assert state.tokens == position, f"the state has seen {state.tokens} tokens, but {position} come before"
        return state
