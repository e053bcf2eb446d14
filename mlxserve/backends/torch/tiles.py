"""Attention over pages in tiles of one size, without gathering a context.

Every tile of queries goes over key blocks of KEYS tokens from position 0 with a running maximum and sum; a block that a
query does not see changes neither.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
import torch.nn.functional as F

from mlxserve.backends.batch import HostBatch
from mlxserve.backends.torch.batch import TorchBatch, TorchPool
from mlxserve.models.spec import AttentionSpec

Tensor = torch.Tensor

TILE = 16
KEYS = 64
_NEVER = -1e30  # finite, so that the difference of two is not not-a-number


@dataclass(frozen=True, slots=True)
class Tile:
    """At most TILE consecutive queries of one sequence."""

    start: int  # flat
    end: int
    positions: Tensor  # [TILE]; -1 for padding, which sees no key
    blocks: Tensor  # [B] the sequence's blocks up to the last query, in whole groups of KEYS tokens


@dataclass(slots=True)
class TiledBatch(TorchBatch):
    tiles: list[Tile]


class TiledPool(TorchPool):
    def batch(self, host: HostBatch, late_tokens: Tensor | None) -> TiledBatch:
        plain = super().batch(host, late_tokens)
        return TiledBatch(**{f.name: getattr(plain, f.name) for f in fields(plain)}, tiles=_tiles(host))


def padded(x: Tensor) -> Tensor:
    missing = -x.shape[0] % TILE
    return F.pad(x, (0, 0) * (x.dim() - 1) + (0, missing)) if missing else x


def _tiles(host: HostBatch) -> list[Tile]:
    """In the order of the flat batch."""
    per_group = max(1, KEYS // host.block_size)
    tiles = []
    for s, table in enumerate(host.block_tables):
        first, last = (int(i) for i in host.query_starts[s : s + 2])
        for start in range(first, last, TILE):
            end = min(start + TILE, last)
            positions = torch.full((TILE,), -1)
            positions[: end - start] = torch.from_numpy(host.positions[start:end])
            needed = int(host.positions[end - 1]) // host.block_size + 1
            blocks = torch.from_numpy(table[:needed])
            # The rest of the last group repeats a block of the sequence's own: its places are behind every query.
            blocks = F.pad(blocks, (0, -needed % per_group), value=int(table[0]))
            tiles.append(Tile(start, end, positions, blocks))
    return tiles


def tiled_attention(q: Tensor, k_pool: Tensor, v_pool: Tensor, spec: AttentionSpec, tile: Tile) -> Tensor:
    """[n, heads, D] -> [n, heads * D], n <= TILE; the bits of a row depend on its own query, keys and values only."""
    groups = spec.heads // spec.kv_heads
    # [kv_heads, groups * TILE, D]: the query heads of one K head side by side.
    x = padded(q).view(TILE, spec.kv_heads, groups, spec.head_dim).permute(1, 2, 0, 3)
    x = x.reshape(spec.kv_heads, groups * TILE, spec.head_dim).float()
    best = x.new_full((*x.shape[:2], 1), _NEVER)
    total = torch.zeros_like(best)
    out = torch.zeros_like(x)
    block_size = k_pool.shape[2]
    for start, keys, values in _key_blocks(tile.blocks, block_size, (k_pool, v_pool)):
        scores = torch.bmm(x, keys.mT) * spec.scale
        if spec.soft_cap is not None:
            scores = spec.soft_cap * torch.tanh(scores / spec.soft_cap)
        at = torch.arange(start, start + keys.shape[1])
        seen = at <= tile.positions[:, None]
        if spec.window is not None:
            seen &= at > tile.positions[:, None] - spec.window
        seen = seen.repeat(groups, 1)
        scores = scores.masked_fill(~seen, _NEVER)
        highest = torch.maximum(best, scores.amax(-1, keepdim=True))
        weights = torch.exp(scores - highest) * seen
        shrink = torch.exp(best - highest)
        total = total * shrink + weights.sum(-1, keepdim=True)
        out = out * shrink + torch.bmm(weights, values)
        best = highest
    out = (out / total.clamp_(min=1e-30)).view(spec.kv_heads, groups, TILE, spec.head_dim)
    return out.permute(2, 0, 1, 3).reshape(TILE, spec.q_width)[: q.shape[0]].to(q.dtype)


def _key_blocks(blocks: Tensor, block_size: int, pools: Sequence[Tensor]) -> list[tuple[int, Tensor, Tensor]]:
    """Position of the first key, K and V [kv_heads, keys, D], of every group of keys."""
    parts = []
    per_group = max(1, KEYS // block_size)
    for number, group in enumerate(blocks.split(per_group)):
        k, v = (pool.index_select(0, group).transpose(0, 1).flatten(1, 2).float() for pool in pools)
        parts += _cut(number * per_group * block_size, k, v)
    return parts


def _cut(start: int, k: Tensor, v: Tensor) -> list[tuple[int, Tensor, Tensor]]:
    """Blocks larger than KEYS in parts of KEYS."""
    pieces = zip(k.split(KEYS, 1), v.split(KEYS, 1), strict=True)
    return [(start + i * KEYS, part, value) for i, (part, value) in enumerate(pieces)]
