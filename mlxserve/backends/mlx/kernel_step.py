"""One decode step's metadata for the Metal kernels: built once a step, used by every layer."""

from __future__ import annotations

from dataclasses import dataclass, replace

import mlx.core as mx
import numpy as np

from mlxserve.backends.batch import HostBatch
from mlxserve.backends.mlx.kernels import HEAD_DIMS, MAX_QUERIES
from mlxserve.backends.mlx.page_plan import PagePlan, choose_chunk, make_plan, padded
from mlxserve.models.spec import AttentionSpec

Slots = tuple[mx.array, mx.array, mx.array]  # [T, kv_heads] each: block, head and offset, the indices of a scatter


LEAST_FREQUENCIES = 8  # fewer would be passed in another address space
BLOCK_STEP = 8  # tokens that the attention kernel loads at once; a page holds a multiple


@dataclass(frozen=True, slots=True)
class KernelStep:
    """T tokens, 1 to MAX_QUERIES a sequence."""

    pages: PagePlan
    positions: mx.array  # [max(T, 8)] int32
    slots: mx.array  # [max(T, 8)] int32, block * block_size + offset
    scatter: dict[int, Slots]  # by the number of KV heads


def covered(spec: AttentionSpec, block_size: int) -> bool:
    """Whether the kernels can do this attention."""
    rotated = spec.rope is None or len(spec.rope.inv_freq) >= LEAST_FREQUENCIES
    return spec.head_dim in HEAD_DIMS and spec.qk_norm != "width" and rotated and block_size % BLOCK_STEP == 0


def is_decode(host: HostBatch) -> bool:
    """Whether every sequence has few enough tokens for the decode kernels."""
    return bool(np.diff(host.query_starts).max(initial=0) <= MAX_QUERIES)


def make_step(host: HostBatch, kv_heads: set[int], threadgroups: int) -> KernelStep:
    """``threadgroups``: how many an attention launch should at least have; contexts are split until it does."""
    contexts = host.context_lens.tolist()
    # Two lengths of query only, so that there are few variants to compile.
    queries = 1 if len(host.tokens) == len(contexts) else MAX_QUERIES
    chunk = choose_chunk(contexts, min(kv_heads), threadgroups)
    tables = [table.tolist() for table in host.block_tables]
    pages = make_plan(tables, contexts, host.query_starts.tolist(), chunk)
    return KernelStep(
        pages=replace(pages, max_queries=queries),
        positions=padded(host.positions),
        slots=padded(host.blocks * host.block_size + host.offsets),
        scatter={n: _slots(host, n) for n in kv_heads},
    )


def _slots(host: HostBatch, kv_heads: int) -> Slots:
    shape = (len(host.tokens), kv_heads)
    columns = (host.blocks[:, None], np.arange(kv_heads), host.offsets[:, None])
    block, head, offset = (mx.array(np.broadcast_to(c, shape).astype(np.int32)) for c in columns)
    return block, head, offset
