"""Every kernel once against its plain reference: what ``mlxserve doctor`` runs on a GPU.

Small shapes, every kernel's usual variant. The grids that prove the kernels are in ``tests/kernels``. As a program it
prints what it found as JSON, so that a driver which kills the process is a finding too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import mlx.core as mx
import numpy as np

from mlxserve.backends.mlx import references
from mlxserve.backends.mlx.backend import on_gpu
from mlxserve.backends.mlx.kernels import Heads, Kernels, PackedWeight, RmsNorm, Rotary
from mlxserve.backends.mlx.page_plan import make_plan, padded

DTYPE = mx.float16
TOLERANCE = 4e-3  # of the largest value: float16 rounding of inputs and output
HEADS = Heads(query=4, kv=2, dim=64)
BLOCK = 16
STRESS_BLOCKS, STRESS_STEPS = 4096, 50


@dataclass(frozen=True, slots=True)
class Result:
    """``error``: the largest difference, relative to the largest value; ``failure``: what was raised instead."""

    kernel: str
    error: float
    failure: str | None = None

    @property
    def ok(self) -> bool:
        return self.failure is None and self.error <= TOLERANCE


def self_test(kernels: Kernels) -> Iterator[Result]:
    """One result a kernel; a kernel that cannot be built or run is a failure, not an exception."""
    checks: tuple[tuple[str, Callable[[Kernels], float]], ...] = (
        ("qmv_int4", _qmv),
        ("paged_attention_decode", _attention),
        ("paged_attention_reduce", _split_attention),
        ("qk_norm_rope", _rope),
        ("kv_write", _write),
        ("kv_write, repeated", _stress),
    )
    for name, check in checks:
        try:
            yield Result(name, check(kernels))
        except Exception as error:  # whatever Metal's compiler or driver raises is the finding
            yield Result(name, float("inf"), f"{type(error).__name__}: {error}")


def _random(seed: int, *shape: int) -> mx.array:
    return mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32)).astype(DTYPE)


def _difference(got: mx.array, wanted: mx.array) -> float:
    a, b = (np.array(x.astype(mx.float32)) for x in (got, wanted))
    error = np.abs(a - b).max() / np.abs(b).max()
    return float(error) if np.isfinite(error) else float("inf")


def _qmv(kernels: Kernels) -> float:
    packed, scales, biases = mx.quantize(_random(1, 128, 256).astype(mx.float32), 64, 4)
    weight = PackedWeight(packed, scales.astype(DTYPE), biases.astype(DTYPE), 4, 64)
    scales32, biases32 = (a.astype(DTYPE).astype(mx.float32) for a in (scales, biases))
    wide = PackedWeight(packed, scales32, biases32, 4, 64)
    norm = RmsNorm(_random(2, 256), 1e-5)
    wide_norm = RmsNorm(norm.weight.astype(mx.float32), 1e-5)
    worst = 0.0
    for rows in (1, 8):
        x = _random(rows, rows, 256)
        wanted = references.qmv(x.astype(mx.float32), wide, norm=wide_norm, act="silu")
        worst = max(worst, _difference(kernels.qmv(x, weight, norm=norm, act="silu"), wanted))
    return worst


def _attention(kernels: Kernels) -> float:
    return _attend(kernels, chunk=4096)


def _split_attention(kernels: Kernels) -> float:
    return _attend(kernels, chunk=64)


def _attend(kernels: Kernels, chunk: int) -> float:
    length = 200
    keys, values = (_random(seed, 16, HEADS.kv, BLOCK, HEADS.dim) for seed in (3, 4))
    table = [(5 * i) % 16 for i in range(-(-length // BLOCK))]
    q = _random(5, 1, HEADS.query, HEADS.dim)
    scale = HEADS.dim**-0.5
    got = kernels.attention(q, keys, values, make_plan([table], [length], [0, 1], chunk), scale=scale)
    q32, keys32, values32 = (x.astype(mx.float32) for x in (q, keys, values))
    return _difference(got, references.attention(q32, keys32, values32, mx.array(table), length, scale=scale))


def _rotation() -> tuple[mx.array, mx.array, Rotary, tuple[RmsNorm, RmsNorm]]:
    qkv = _random(6, 5, (HEADS.query + 2 * HEADS.kv) * HEADS.dim)
    frequencies = mx.array((10000.0 ** (-np.arange(0, HEADS.dim, 2) / HEADS.dim)).astype(np.float32))
    norms = (RmsNorm(_random(7, HEADS.dim), 1e-6), RmsNorm(_random(8, HEADS.dim), 1e-6))
    return qkv, padded([3, 70, 500, 9, 0]), Rotary(frequencies), norms


def _rotated() -> tuple[mx.array, mx.array, mx.array]:
    """What the rotation should give."""
    qkv, positions, rotary, norms = _rotation()
    q_norm, k_norm = (RmsNorm(n.weight.astype(mx.float32), n.eps) for n in norms)
    return references.qk_norm_rope(qkv.astype(mx.float32), positions, rotary, HEADS, (q_norm, k_norm))


def _rope(kernels: Kernels) -> float:
    qkv, positions, rotary, norms = _rotation()
    got = kernels.qk_norm_rope(qkv, positions, rotary, HEADS, norms)
    return max(_difference(g, w) for g, w in zip(got, _rotated(), strict=True))


def _write(kernels: Kernels) -> float:
    qkv, positions, rotary, norms = _rotation()
    slots = padded([17, 2, 40, 63, 8])
    pages = [_random(seed, 4, HEADS.kv, BLOCK, HEADS.dim) for seed in (9, 10)]
    wanted = [
        references.write_pages(page.astype(mx.float32), rows, slots)
        for page, rows in zip(pages, _rotated()[1:], strict=True)
    ]
    mx.eval(pages, wanted)
    _, written = kernels.kv_write(qkv, positions, rotary, HEADS, norms, slots, pages[0], pages[1], mx.zeros((8,)))
    mx.eval(written)
    return max(_difference(page, w) for page, w in zip(pages, wanted, strict=True))


def _stress(kernels: Kernels) -> float:
    """Step after step: K and V written in place, read back by the attention that is ordered behind the write, with no
    copy of the pages. The error of the worst step; infinite when memory grew by a quarter of one side's pages."""
    qkv, positions, rotary, norms = _rotation()
    _, k_rows, v_rows = _rotated()
    keys, values = (mx.zeros((STRESS_BLOCKS, HEADS.kv, BLOCK, HEADS.dim), DTYPE) for _ in range(2))
    mx.eval(keys, values, k_rows, v_rows)
    tokens, scale = len(qkv), HEADS.dim**-0.5
    reader = mx.zeros((8,), DTYPE)
    worst, allowed = 0.0, mx.get_active_memory() + keys.nbytes // 4
    for step in range(STRESS_STEPS):
        at = [(7 * step + 3 * t) % STRESS_BLOCKS for t in range(tokens)]  # one token of context, a block each
        slots = padded([block * BLOCK for block in at])
        # Another step's values in the same places must be seen to go.
        row = mx.array([(t + step) % tokens for t in range(tokens)])
        plan = make_plan([[block] for block in at], [1] * tokens, range(tokens + 1), 4096)
        moved = padded(np.array(positions)[np.array(row)])
        q, written = kernels.kv_write(qkv[row], moved, rotary, HEADS, norms, slots, keys, values, reader)
        reader = kernels.attention(q, keys, values, plan, scale=scale, after=written)
        # The only token is the query's own, so attention gives its V, for each of the KV head's query heads.
        wanted = mx.repeat(v_rows[row], HEADS.query // HEADS.kv, axis=1)
        worst = max(worst, _difference(reader, wanted), _difference(keys[mx.array(at), :, 0], k_rows[row]))
    return worst if mx.get_active_memory() < allowed else float("inf")


def report() -> dict[str, object]:
    """The device, and a result a kernel where there is a GPU."""
    if not on_gpu():
        return {"gpu": None, "working_set": None, "results": []}
    device = mx.device_info()
    results = [{**asdict(result), "ok": result.ok} for result in self_test(Kernels())]
    return {
        "gpu": str(device["device_name"]),
        "working_set": int(device["max_recommended_working_set_size"]),
        "results": results,
    }


if __name__ == "__main__":
    print(json.dumps(report()))
