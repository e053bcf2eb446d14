"""Runs a model on a backend by hand, in every way that an engine may cut its sequences into steps."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np
import torch
from numpy.typing import NDArray

from mlxserve.backends import get_backend
from mlxserve.backends.base import Backend
from mlxserve.backends.batch import HostBatch, host_batch
from mlxserve.backends.torch.batch import TorchPool
from mlxserve.backends.torch.native.pool import NativePool
from mlxserve.engine.interfaces import ForwardBatch
from mlxserve.loader import Weights, load_model

Logits = NDArray[np.float32]
Step = list[tuple[int, int]]  # (sequence, number of its next tokens)

BACKENDS = ("torch", "mlx")
MODES = ("prefill", "decode", "chunked", "mixed")


def steps(mode: str, lengths: Sequence[int]) -> list[Step]:
    """How sequences of these lengths are cut."""
    match mode:
        case "prefill":
            return [[(s, n) for s, n in enumerate(lengths)]]
        case "decode":
            return [[(s, 1) for s, n in enumerate(lengths) if i < n] for i in range(max(lengths))]
        case "chunked":
            sizes = (7, 3, 5, 2)
            return [[step] for s, n in enumerate(lengths) for step in _cut(s, n, sizes)]
        case "mixed":  # decodes and chunks side by side, in an order that changes
            cuts = [_cut(s, n, [1, 6, 1, 1, 3, 4, 1, 9][s % 5 :]) for s, n in enumerate(lengths)]
            rounds = [[c[i] for c in cuts if i < len(c)] for i in range(max(map(len, cuts)))]
            return [r if i % 2 else r[::-1] for i, r in enumerate(rounds)]
        case _:
            raise AssertionError(mode)


def _cut(sequence: int, length: int, sizes: Sequence[int]) -> Step:
    out: Step = []
    while length:
        n = min(sizes[len(out) % len(sizes)], length)
        out.append((sequence, n))
        length -= n
    return out


class Model:
    """A model with a pool whose blocks are handed out in a scattered order."""

    def __init__(
        self,
        checkpoint: Weights,
        backend: str | Backend[Any, Any],
        *,
        block_size: int = 4,
        blocks: int = 96,
        max_model_len: int | None = None,
    ) -> None:
        self.backend = get_backend(backend, "float32") if isinstance(backend, str) else backend  # type: ignore[arg-type]
        self.loaded = load_model(checkpoint, self.backend, max_model_len)
        self.block_size = block_size
        self.blocks = blocks

    def logits(self, prompts: Sequence[Sequence[int]], mode: str) -> list[Logits]:
        """[length, vocabulary] of each prompt, computed in the steps of ``mode``."""
        pool = self.backend.new_pool(self.loaded.spec, self.blocks, self.block_size)
        _fill_with_nan(pool)  # what a failed sequence may leave in pages must never be seen
        free = np.random.default_rng(1).permutation(self.blocks).tolist()
        tables = [array("i", [free.pop() for _ in range(-(-len(p) // self.block_size))]) for p in prompts]
        done = [0] * len(prompts)
        rows: list[list[Logits]] = [[] for _ in prompts]
        for step in steps(mode, [len(p) for p in prompts]):
            host = self.host(self.batch(prompts, tables, done, step))
            out = _float32(self.backend.forward(self.loaded.decoder, pool, host, None, False))
            for sequence, n in step:
                rows[sequence].append(out[:n])
                out = out[n:]
                done[sequence] += n
        return [np.concatenate(r) for r in rows]

    def host(self, batch: ForwardBatch) -> HostBatch:
        return host_batch(batch, self.block_size)

    def batch(
        self, prompts: Sequence[Sequence[int]], tables: list[array[int]], done: Sequence[int], step: Step
    ) -> ForwardBatch:
        b = ForwardBatch(*(array("q") for _ in range(3)), array("q", [0]), array("q"), [], [], [], array("q"))
        for sequence, n in step:
            start = done[sequence]
            b.tokens.extend(prompts[sequence][start : start + n])
            b.positions.extend(range(start, start + n))
            b.slots.extend(
                tables[sequence][p // self.block_size] * self.block_size + p % self.block_size
                for p in range(start, start + n)
            )
            b.query_starts.append(len(b.tokens))
            b.context_lens.append(start + n)
            b.block_tables.append(tables[sequence])
        b.logit_rows.extend(range(len(b.tokens)))
        return b


def _float32(logits: torch.Tensor | mx.array) -> Logits:
    """On the host; numpy has no bfloat16."""
    if isinstance(logits, torch.Tensor):
        return logits.float().numpy()
    return np.array(logits.astype(mx.float32))


def _fill_with_nan(pool: Any) -> None:
    for pages in (*pool.k_pools, *pool.v_pools) if isinstance(pool, TorchPool | NativePool) else (*pool.k, *pool.v):
        pages *= float("nan")  # not an assignment, which in MLX would leave one element seen everywhere


def oracle(path: Any, prompts: Sequence[Sequence[int]]) -> list[Logits]:
    """transformers' logits of each prompt alone, in float32."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.inference_mode():
        return [model(torch.tensor([list(p)])).logits[0].numpy() for p in prompts]


def difference(got: Sequence[Logits], want: Sequence[Logits]) -> float:
    """The largest difference, relative to the largest logit; infinite when anything is not a number."""
    assert [g.shape for g in got] == [w.shape for w in want]
    worst = max(float(np.abs(g - w).max() / np.abs(w).max()) for g, w in zip(got, want, strict=True))
    return worst if worst == worst else float("inf")
