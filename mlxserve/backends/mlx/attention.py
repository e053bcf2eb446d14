"""Paged attention by MLX's own operators: gather each sequence's pages, attend. The reference that kernels are held
against, and what runs where Metal does not."""

from __future__ import annotations

import mlx.core as mx

from mlxserve.backends.mlx.batch import Decode, Plan, Prefill
from mlxserve.models.spec import AttentionSpec


def attend(q: mx.array, k_pages: mx.array, v_pages: mx.array, spec: AttentionSpec, plan: Plan) -> mx.array:
    """q [T, heads, D], pages [blocks, kv_heads, block_size, D] -> [T, heads * D]"""
    if plan.decode is not None and plan.decode.rows is None:
        return _decode(q, k_pages, v_pages, spec, plan.decode)
    filled = [_prefill(q, k_pages, v_pages, spec, p) for p in plan.prefills]
    if plan.decode is None:
        return mx.concatenate(filled)
    out = mx.zeros((q.shape[0], spec.q_width), q.dtype)
    out[plan.decode.rows] = _decode(q, k_pages, v_pages, spec, plan.decode)
    for p, rows in zip(plan.prefills, filled, strict=True):
        out[p.start : p.end] = rows
    return out


def _decode(q: mx.array, k_pages: mx.array, v_pages: mx.array, spec: AttentionSpec, plan: Decode) -> mx.array:
    queries = (q if plan.rows is None else q[plan.rows])[:, :, None]
    out = _sdpa(queries, _gather(k_pages, plan.tables), _gather(v_pages, plan.tables), plan.mask, spec)
    return out.reshape(-1, spec.q_width)


def _prefill(q: mx.array, k_pages: mx.array, v_pages: mx.array, spec: AttentionSpec, plan: Prefill) -> mx.array:
    queries = q[plan.start : plan.end].swapaxes(0, 1)[None]
    out = _sdpa(queries, _gather(k_pages, plan.table), _gather(v_pages, plan.table), plan.mask, spec)
    return out[0].swapaxes(0, 1).reshape(-1, spec.q_width)


def _gather(pages: mx.array, tables: mx.array) -> mx.array:
    """tables [B, M] -> [B, kv_heads, M * block_size, D]"""
    _, kv_heads, _, width = pages.shape
    return pages[tables].swapaxes(1, 2).reshape(len(tables), kv_heads, -1, width)


def _sdpa(q: mx.array, k: mx.array, v: mx.array, mask: mx.array, spec: AttentionSpec) -> mx.array:
    """q [B, heads, n, D], k and v [B, kv_heads, L, D], bool mask broadcast to [B, heads, n, L]."""
    if spec.soft_cap is None:
        return mx.fast.scaled_dot_product_attention(q, k, v, scale=spec.scale, mask=mask)
    group = spec.heads // spec.kv_heads
    k, v = (mx.repeat(x, group, axis=1) for x in (k, v))
    scores = spec.soft_cap * mx.tanh((q * (spec.scale / spec.soft_cap)) @ k.swapaxes(-1, -2))
    scores = mx.where(mask, scores, mx.finfo(scores.dtype).min)
    return mx.softmax(scores, axis=-1, precise=True) @ v
