"""One step's metadata as MLX arrays, and the KV pool that it points into."""

from __future__ import annotations

from dataclasses import dataclass, field

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from mlxserve.backends.base import KVPool
from mlxserve.backends.batch import HostBatch
from mlxserve.backends.mlx.kernel_step import KernelStep
from mlxserve.models.ops import DeviceBatch
from mlxserve.models.spec import ModelSpec

# The pool starts with this many blocks and doubles as higher ones are used.
FIRST_BLOCKS = 64


@dataclass(frozen=True, slots=True)
class Decode:
    """D sequences of one query each."""

    rows: mx.array | None  # [D] flat indices; None: they are all of the batch, in order
    tables: mx.array  # [D, M]
    mask: mx.array  # [D, 1, 1, L] bool


@dataclass(frozen=True, slots=True)
class Prefill:
    """One sequence of n queries, flat start : end."""

    start: int
    end: int
    table: mx.array  # [1, M]
    mask: mx.array  # [n, L] bool


@dataclass(frozen=True, slots=True)
class Plan:
    decode: Decode | None
    prefills: tuple[Prefill, ...]


class MlxPool(KVPool[mx.array, "MlxBatch"]):
    """K and V of each layer, [blocks, kv_heads, block_size, D].

    Writing rebinds a layer's array. MLX writes in place when nothing else holds the array and no unfinished computation
    reads it; else it copies the pool, so nobody may keep one of these arrays or write while a step computes.
    """

    def __init__(self, spec: ModelSpec, num_blocks: int, block_size: int, dtype: mx.Dtype) -> None:
        self.layers = [layer.attention for layer in spec.layers]
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.dtype = dtype
        self.blocks = 0
        self.k: list[mx.array] = []
        self.v: list[mx.array] = []
        self._grow(min(FIRST_BLOCKS, num_blocks))

    def batch(self, host: HostBatch, late_tokens: mx.array | None) -> MlxBatch:
        if host.highest_block >= self.blocks:
            self._grow(min(self.num_blocks, max(2 * self.blocks, host.highest_block + 1)))
        if host.copy_targets.size:
            sources, targets = _ints(host.copy_sources), _ints(host.copy_targets)
            for pool in (*self.k, *self.v):
                pool[targets] = pool[sources]
        self.clear(host)
        tokens = _ints(host.tokens)
        if host.late_at.size:
            assert late_tokens is not None
            tokens[_ints(host.late_at)] = late_tokens[_ints(host.late_rows)]
        return MlxBatch(
            tokens=tokens,
            logit_rows=_ints(host.logit_rows),
            host=host,
            pool=self,
            positions=_ints(host.positions),
            blocks=_ints(host.blocks),
            offsets=_ints(host.offsets),
            kernels=self.kernel_step(host),
        )

    def clear(self, host: HostBatch) -> None:
        """Zeroes what the step's attention would read without its having been written."""
        if (fresh := host.fresh_blocks).size:
            for pool in (*self.k, *self.v):
                pool[_ints(fresh)] = 0

    def kernel_step(self, host: HostBatch) -> KernelStep | None:
        """The step's metadata for the Metal kernels; None where the step, or this pool, does without them."""
        return None

    def write(
        self, layer: int, k: mx.array, v: mx.array, blocks: mx.array, offsets: mx.array
    ) -> tuple[mx.array, mx.array]:
        """k and v [T, kv_heads, D] to the slots blocks[t], offsets[t]; the layer's pages after that."""
        self.k[layer][blocks, :, offsets] = k
        self.v[layer][blocks, :, offsets] = v
        return self.k[layer], self.v[layer]

    def width(self, layer: int) -> int:
        return self.layers[layer].head_dim

    def _grow(self, blocks: int) -> None:
        """Layer by layer, so that at most one layer's pages are there twice."""
        for i, a in enumerate(self.layers):
            for pools in (self.k, self.v):
                more = mx.zeros((blocks - self.blocks, a.kv_heads, self.block_size, a.head_dim), self.dtype)
                if self.blocks:
                    pools[i] = mx.concatenate([pools[i], more])
                else:
                    pools.append(more)
                mx.eval(pools[i])
        self.blocks = blocks


@dataclass(slots=True)
class MlxBatch(DeviceBatch[mx.array]):
    host: HostBatch
    pool: MlxPool
    positions: mx.array  # [T]
    blocks: mx.array  # [T]
    offsets: mx.array  # [T]
    kernels: KernelStep | None
    plans: dict[int | None, Plan] = field(default_factory=dict)  # by window, each made for the first layer that asks

    def plan(self, layer: int) -> Plan:
        window = self.pool.layers[layer].window
        if window not in self.plans:
            self.plans[window] = _plan(self.host, window)
        return self.plans[window]


def _plan(host: HostBatch, window: int | None) -> Plan:
    plan = host.attention_plan(window)
    decode = None
    if (d := plan.decode) is not None:
        rows = None if len(d.rows) == len(host.tokens) else _ints(d.rows)
        decode = Decode(rows, _ints(d.tables), mx.array(d.mask)[:, None, None])
    prefills = (Prefill(p.start, p.end, _ints(p.table)[None], mx.array(p.mask)) for p in plan.prefills)
    return Plan(decode, tuple(prefills))


def _ints(values: NDArray[np.int64]) -> mx.array:
    return mx.array(values.astype(np.int32))
