"""Every kernel's meaning in plain MLX: what runs without a GPU, and what the kernels are tested against."""

from __future__ import annotations

import math

import mlx.core as mx

from mlxserve.backends.mlx.kernels import Act, Heads, PackedWeight, RmsNorm, Rotary


def qmv(
    x: mx.array,
    w: PackedWeight,
    *,
    norm: RmsNorm | None = None,
    act: Act | None = None,
    bias: mx.array | None = None,
    residual: mx.array | None = None,
    alpha: float = 1.0,
) -> mx.array:
    if norm is not None:
        x = mx.fast.rms_norm(x, norm.weight, norm.eps)
    y = mx.quantized_matmul(x, w.packed, w.scales, w.biases, True, w.group_size, w.bits)
    if bias is not None:
        y = y + bias
    if act is not None:
        gate, up = mx.split(y, 2, axis=-1)
        if act == "silu":
            gate = gate * mx.sigmoid(gate)
        else:
            gate = 0.5 * gate * (1 + mx.tanh(math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3)))
        y = gate * up
    return y if residual is None else residual + alpha * y


def rotate(x: mx.array, positions: mx.array, rotary: Rotary) -> mx.array:
    """x [T, heads, D]: channel i < dims / 2 turns with channel i + dims / 2."""
    if rotary.inverse_frequencies is None:
        return x
    half = rotary.dims // 2
    angles = positions[: x.shape[0], None, None].astype(mx.float32) * rotary.inverse_frequencies
    cosine, sine = mx.cos(angles) * rotary.factor, mx.sin(angles) * rotary.factor
    a, b = x[..., :half].astype(mx.float32), x[..., half : 2 * half].astype(mx.float32)
    turned = mx.concatenate([a * cosine - b * sine, a * sine + b * cosine], axis=-1).astype(x.dtype)
    return mx.concatenate([turned, x[..., 2 * half :]], axis=-1)


def qk_norm_rope(
    qkv: mx.array, positions: mx.array, rotary: Rotary, heads: Heads, norms: tuple[RmsNorm, RmsNorm] | None
) -> tuple[mx.array, mx.array, mx.array]:
    parts = qkv.reshape(qkv.shape[0], -1, heads.dim)
    q, k, v = mx.split(parts, [heads.query, heads.query + heads.kv], axis=1)
    if norms is not None:
        q, k = (mx.fast.rms_norm(x, n.weight, n.eps) for x, n in zip((q, k), norms, strict=True))
    return rotate(q, positions, rotary), rotate(k, positions, rotary), v


def write_pages(pages: mx.array, rows: mx.array, slots: mx.array) -> mx.array:
    """pages [blocks, kv_heads, block_size, D] with rows [T, kv_heads, D] at slots [T]. In place when nothing else holds
    the pages."""
    block_size = pages.shape[2]
    slots = slots[: rows.shape[0]]
    pages[slots // block_size, :, slots % block_size] = rows
    return pages


def attention(
    q: mx.array,
    key_pages: mx.array,
    value_pages: mx.array,
    block_table: mx.array,
    length: int,
    *,
    scale: float,
    window: int | None = None,
    soft_cap: float | None = None,
    sinks: mx.array | None = None,
) -> mx.array:
    """One sequence's last q.shape[0] queries [n, heads, D] over a context of ``length`` tokens; float32 softmax."""
    _, kv_heads, block_size, dim = key_pages.shape
    n, heads, _ = q.shape
    if length == 0:
        return mx.zeros_like(q)
    table = block_table[: -(-length // block_size)]

    def gather(pages: mx.array) -> mx.array:  # [kv_heads, 1, length, D]
        return pages[table].transpose(1, 0, 2, 3).reshape(kv_heads, 1, -1, dim)[:, :, :length].astype(mx.float32)

    grouped = q.astype(mx.float32).reshape(n, kv_heads, heads // kv_heads, dim).transpose(1, 2, 0, 3)
    scores = grouped @ gather(key_pages).swapaxes(-1, -2) * scale
    if soft_cap:
        scores = soft_cap * mx.tanh(scores / soft_cap)
    at = mx.arange(length - n, length)[:, None]
    seen = mx.arange(length) <= at
    if window is not None:
        seen &= mx.arange(length) > at - window
    scores = mx.where(seen, scores, -mx.inf)
    if sinks is not None:
        extra = sinks[:heads].astype(mx.float32).reshape(kv_heads, -1, 1, 1)
        scores = mx.concatenate([scores, mx.broadcast_to(extra, (*scores.shape[:-1], 1))], axis=-1)
    weights = mx.softmax(scores, axis=-1)[..., :length]
    return (weights @ gather(value_pages)).transpose(2, 0, 1, 3).reshape(n, heads, dim).astype(q.dtype)
