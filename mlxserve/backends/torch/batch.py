"""One step's metadata as torch tensors, and the KV pool that it points into."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from mlxserve.backends.base import KVPool
from mlxserve.backends.batch import AttentionPlan, Bools, HostBatch, Ints
from mlxserve.models.ops import DeviceBatch
from mlxserve.models.spec import AttentionSpec, Rope


@dataclass(frozen=True, slots=True)
class Rotation:
    """cos and sin of every token's angles, times the RoPE's factor, in float32 [T, 1, dims]; sin is negative in the
    first half: rotated = x * cos + roll(x, dims / 2) * sin."""

    cos: torch.Tensor
    sin: torch.Tensor


@dataclass(frozen=True, slots=True)
class Decode:
    """D sequences of one query each."""

    rows: torch.Tensor | None  # [D] flat indices; None: they are all of the batch, in order
    pages: torch.Tensor  # [D * kv_heads * M] rows of the pool seen as [num_blocks * kv_heads, block_size * D]
    mask: torch.Tensor  # [D, 1, 1, L] 0 or -inf


@dataclass(frozen=True, slots=True)
class Prefill:
    """One sequence of n queries, flat start : end."""

    start: int
    end: int
    pages: torch.Tensor  # [kv_heads * M]
    mask: torch.Tensor  # [n, L] 0 or -inf


@dataclass(frozen=True, slots=True)
class Plan:
    decode: Decode | None
    prefills: tuple[Prefill, ...]


@dataclass(slots=True)
class TorchBatch(DeviceBatch[torch.Tensor]):
    """Lists are indexed by layer."""

    k_pools: list[torch.Tensor]  # each [num_blocks, kv_heads, block_size, D]
    v_pools: list[torch.Tensor]
    writes: torch.Tensor  # [T * kv_heads] rows of a pool seen as [num_blocks * kv_heads * block_size, D]
    rotations: list[Rotation | None]
    plans: list[Plan]


class TorchPool(KVPool[torch.Tensor, TorchBatch]):
    """The pages come from zeroed memory that the system provides when it is first touched."""

    def __init__(self, layers: Sequence[AttentionSpec], num_blocks: int, block_size: int, dtype: torch.dtype) -> None:
        self.layers = layers
        self.kv_heads = self.layers[0].kv_heads
        assert all(a.kv_heads == self.kv_heads for a in self.layers)
        self.dtype = dtype
        shapes = [(num_blocks, a.kv_heads, block_size, a.head_dim) for a in self.layers]
        self.k_pools = [lazy_zeros(shape, dtype) for shape in shapes]
        self.v_pools = [lazy_zeros(shape, dtype) for shape in shapes]
        self.frequencies = {
            rope: torch.tensor(rope.inv_freq, dtype=torch.float32) for rope in {a.rope for a in self.layers} if rope
        }

    def batch(self, host: HostBatch, late_tokens: torch.Tensor | None) -> TorchBatch:
        prepare_pages(host, (*self.k_pools, *self.v_pools))
        tokens = token_ids(host, late_tokens)
        positions = torch.from_numpy(host.positions).float()
        rotations = {rope: rotation(positions, rope, f) for rope, f in self.frequencies.items()}
        plans = {w: self._plan(host.attention_plan(w), len(tokens)) for w in {a.window for a in self.layers}}
        slots = self._pages(host.blocks) * host.block_size + torch.from_numpy(host.offsets)[:, None]
        return TorchBatch(
            tokens=tokens,
            logit_rows=torch.from_numpy(host.logit_rows),
            k_pools=self.k_pools,
            v_pools=self.v_pools,
            writes=slots.reshape(-1),
            rotations=[None if a.rope is None else rotations[a.rope] for a in self.layers],
            plans=[plans[a.window] for a in self.layers],
        )

    def _pages(self, blocks: Ints) -> torch.Tensor:
        """[N] block numbers -> [N, kv_heads] rows of the pool seen as [num_blocks * kv_heads, ...]."""
        return torch.from_numpy(blocks)[:, None] * self.kv_heads + torch.arange(self.kv_heads)

    def _plan(self, plan: AttentionPlan, tokens: int) -> Plan:
        decode = None
        if plan.decode is not None:
            d = plan.decode
            pages = self._pages(d.tables.reshape(-1)).view(*d.tables.shape, -1).transpose(1, 2)
            rows = None if len(d.rows) == tokens else torch.from_numpy(d.rows)
            decode = Decode(rows, pages.reshape(-1), self._mask(d.mask)[:, None, None])
        prefills = (
            Prefill(p.start, p.end, self._pages(p.table).t().reshape(-1), self._mask(p.mask)) for p in plan.prefills
        )
        return Plan(decode, tuple(prefills))

    def _mask(self, visible: Bools) -> torch.Tensor:
        return torch.zeros(visible.shape, dtype=self.dtype).masked_fill_(torch.from_numpy(~visible), -math.inf)


def prepare_pages(host: HostBatch, pools: Sequence[torch.Tensor]) -> None:
    """Copies the pages that the step asks to copy and clears those that it begins, in pools of [num_blocks, ...]."""
    copy_pages(host, pools)
    if (fresh := host.fresh_blocks).size:
        for pool in pools:
            pool.index_fill_(0, torch.from_numpy(fresh), 0)


def copy_pages(host: HostBatch, pools: Sequence[torch.Tensor]) -> None:
    if host.copy_targets.size:
        sources, targets = torch.from_numpy(host.copy_sources), torch.from_numpy(host.copy_targets)
        for pool in pools:
            pool[targets] = pool[sources]


def token_ids(host: HostBatch, late_tokens: torch.Tensor | None) -> torch.Tensor:
    """[T] with the tokens that the previous step sampled."""
    tokens = torch.from_numpy(host.tokens)
    if host.late_at.size:
        assert late_tokens is not None
        tokens[torch.from_numpy(host.late_at)] = late_tokens[torch.from_numpy(host.late_rows)]
    return tokens


def rotation(positions: torch.Tensor, rope: Rope, inv_freq: torch.Tensor) -> Rotation:
    angles = positions[:, None] * inv_freq
    cos, sin = angles.cos() * rope.factor, angles.sin() * rope.factor
    return Rotation(torch.cat((cos, cos), -1)[:, None], torch.cat((-sin, sin), -1)[:, None])


def lazy_zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """numpy asks the system for zeroed pages; torch.zeros would write them all."""
    size = math.prod(shape) * dtype.itemsize
    return torch.from_numpy(np.zeros(size, np.uint8)).view(dtype).view(shape)
