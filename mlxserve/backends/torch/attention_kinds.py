"""The torch backend's implementations of attention over pages, by name.

``batched`` gathers every sequence's pages into one padded array, the quickest here; ``paged`` goes over the pages in
blocks with a running maximum and sum, as a kernel does; ``reference`` is the definition, in float64.
"""

from __future__ import annotations

import torch

from mlxserve.backends.torch.attention import write_pages
from mlxserve.backends.torch.batch import TorchBatch
from mlxserve.backends.torch.ops import TorchOps
from mlxserve.backends.torch.tiles import Tile, TiledBatch, tiled_attention
from mlxserve.models.ops import AttentionLayer
from mlxserve.models.spec import AttentionSpec

Tensor = torch.Tensor


class PagedOps(TorchOps):
    def attention(self, q: Tensor, k: Tensor, v: Tensor, layer: AttentionLayer[Tensor], batch: TorchBatch) -> Tensor:
        assert isinstance(batch, TiledBatch)
        k_pool, v_pool = batch.k_pools[layer.index], batch.v_pools[layer.index]
        write_pages(k_pool, batch.writes, k)
        write_pages(v_pool, batch.writes, v)
        return torch.cat([self.attend_tile(q[t.start : t.end], k_pool, v_pool, layer.spec, t) for t in batch.tiles])

    def attend_tile(self, q: Tensor, k_pool: Tensor, v_pool: Tensor, spec: AttentionSpec, tile: Tile) -> Tensor:
        """[n, heads, D] -> [n, heads * D]"""
        return tiled_attention(q, k_pool, v_pool, spec, tile)


class ReferenceOps(PagedOps):
    def attend_tile(self, q: Tensor, k_pool: Tensor, v_pool: Tensor, spec: AttentionSpec, tile: Tile) -> Tensor:
        k, v = (pool.index_select(0, tile.blocks).transpose(1, 2).flatten(0, 1).double() for pool in (k_pool, v_pool))
        k, v = (x.repeat_interleave(spec.heads // spec.kv_heads, 1) for x in (k, v))
        scores = torch.einsum("qhd,khd->hqk", q.double(), k) * spec.scale
        if spec.soft_cap is not None:
            scores = spec.soft_cap * torch.tanh(scores / spec.soft_cap)
        at, positions = torch.arange(k.shape[0]), tile.positions[: q.shape[0], None]
        hidden = at > positions
        if spec.window is not None:
            hidden |= at <= positions - spec.window
        weights = torch.softmax(scores.masked_fill(hidden, -torch.inf), -1)
        return torch.einsum("hqk,khd->qhd", weights, v).reshape(q.shape[0], -1).to(q.dtype)


KINDS: dict[str, type[TorchOps]] = {"batched": TorchOps, "paged": PagedOps, "reference": ReferenceOps}
