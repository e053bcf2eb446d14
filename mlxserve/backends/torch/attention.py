"""Paged attention in torch: write the new K and V, gather each sequence's pages, attend.

All sequences with one query are one padded call; a sequence with more is a call of its own. Query heads that share a
K head are laid side by side as its queries, so K and V are never repeated.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from mlxserve.backends.torch.batch import Decode, Plan, Prefill
from mlxserve.models.spec import AttentionSpec


def write_pages(pool: torch.Tensor, writes: torch.Tensor, values: torch.Tensor) -> None:
    """values [T, kv_heads, D] to the rows ``writes`` [T * kv_heads] of the pool seen as [..., D]."""
    width = pool.shape[-1]
    pool.view(-1, width).index_copy_(0, writes, values.reshape(-1, width))


def attend(
    q: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor, spec: AttentionSpec, plan: Plan
) -> torch.Tensor:
    """[T, heads, D] -> [T, heads * D]"""
    if plan.decode is not None and plan.decode.rows is None:
        return _decode(q, k_pool, v_pool, spec, plan.decode)
    out = q.new_empty(q.shape[0], spec.q_width)
    if plan.decode is not None:
        out[plan.decode.rows] = _decode(q[plan.decode.rows], k_pool, v_pool, spec, plan.decode)
    for p in plan.prefills:
        out[p.start : p.end] = _prefill(q[p.start : p.end], k_pool, v_pool, spec, p)
    return out


def _decode(
    q: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor, spec: AttentionSpec, plan: Decode
) -> torch.Tensor:
    rows = q.shape[0]
    grouped = q.reshape(rows, spec.kv_heads, -1, spec.head_dim)
    k, v = (_gather(pool, plan.pages).view(rows, spec.kv_heads, -1, spec.head_dim) for pool in (k_pool, v_pool))
    return _sdpa(grouped, k, v, plan.mask, spec).reshape(rows, spec.q_width)


def _prefill(
    q: torch.Tensor, k_pool: torch.Tensor, v_pool: torch.Tensor, spec: AttentionSpec, plan: Prefill
) -> torch.Tensor:
    k, v = (_gather(pool, plan.pages).view(1, spec.kv_heads, -1, spec.head_dim) for pool in (k_pool, v_pool))
    out = _sdpa(q.transpose(0, 1)[None], k, v, plan.mask, spec)
    return out[0].transpose(0, 1).reshape(-1, spec.q_width)


def _gather(pool: torch.Tensor, pages: torch.Tensor) -> torch.Tensor:
    blocks, kv_heads, block_size, width = pool.shape
    return pool.view(blocks * kv_heads, block_size * width).index_select(0, pages)


def _sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor, spec: AttentionSpec) -> torch.Tensor:
    """q [B, heads or kv_heads, n, D], k and v [B, kv_heads, L, D], mask broadcast to [B, heads, n, L]."""
    if spec.soft_cap is None:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=spec.scale, enable_gqa=True)
    if q.shape[1] != k.shape[1]:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = spec.soft_cap * torch.tanh(q @ k.mT * (spec.scale / spec.soft_cap)) + mask
    return torch.softmax(scores, -1, dtype=torch.float32).to(v.dtype) @ v
