"""The simulator runs kernels that nobody here wrote: MLX's, from its wheel's headers, against float32 references.

The reference is float32 arithmetic on dequantised values, not MLX's CPU quantized_matmul (in bfloat16 that is off by
up to 3e-2).
"""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from bench import mlx_kernels
from kernels.sim import Simulator

SIM = Simulator()
TOLERANCE = {mx.float32: 2e-6, mx.float16: 2e-3, mx.bfloat16: 1.2e-2}
DTYPES = pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32], ids=str)


def random(*shape: int, dtype: mx.Dtype = mx.float32, seed: int = 0) -> mx.array:
    return mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32)).astype(dtype)


def f32(x: mx.array) -> mx.array:
    return x.astype(mx.float32)


def quantized(n: int, k: int, group: int, bits: int, dtype: mx.Dtype) -> tuple[mx.array, mx.array, mx.array]:
    packed, scales, biases = mx.quantize(random(n, k), group, bits)
    return packed, scales.astype(dtype), biases.astype(dtype)


def off(got: mx.array, wanted: mx.array) -> float:
    """Largest difference, relative to the largest value."""
    return float(mx.abs(f32(got) - wanted).max() / mx.abs(wanted).max())


def plain_attention(q: mx.array, k: mx.array, v: mx.array, scale: float, causal: bool) -> mx.array:
    """q [H, L, D], k and v [Hkv, N, D], float32."""
    group = q.shape[0] // k.shape[0]
    k, v = mx.repeat(f32(k), group, 0), mx.repeat(f32(v), group, 0)
    scores = f32(q) @ k.swapaxes(-1, -2) * scale
    if causal:
        length, n = scores.shape[-2:]
        scores = mx.where(mx.arange(n) <= mx.arange(n - length, n)[:, None], scores, -mx.inf)
    return mx.softmax(scores, axis=-1) @ v


@pytest.mark.quick
@DTYPES
def test_sdpa_vector(dtype: mx.Dtype) -> None:
    q, k, v = (random(*s, dtype=dtype, seed=i) for i, s in enumerate([(1, 4, 64), (1, 2, 77, 64), (1, 2, 77, 64)]))
    out, report = mlx_kernels.sdpa_vector(SIM, q, k, v, 0.125)
    wanted = plain_attention(q[0][:, None], k[0], v[0], 0.125, False)[:, 0]
    assert off(out[0], wanted) < TOLERANCE[dtype]
    assert report.buffers["k"].read == 2 * report.buffers["k"].unique_read  # once a query head


@DTYPES
@pytest.mark.parametrize(("group", "bits"), [(64, 4), (32, 4), (64, 8)])
def test_qmv(dtype: mx.Dtype, group: int, bits: int) -> None:
    packed, scales, biases = (
        a.astype(dtype) if i else a for i, a in enumerate(mx.quantize(random(16, 512), group, bits))
    )
    x = random(2, 512, dtype=dtype, seed=1)
    wanted = f32(x) @ mx.dequantize(packed, f32(scales), f32(biases), group, bits).T
    out, _ = mlx_kernels.qmv(SIM, x, packed, scales, biases, group, bits)
    assert off(out, wanted) < TOLERANCE[dtype]


@DTYPES
def test_qmv_of_uneven_width(dtype: mx.Dtype) -> None:
    packed, scales, biases = quantized(12, 320, 64, 4, dtype)
    x = random(1, 320, dtype=dtype, seed=1)
    wanted = f32(x) @ mx.dequantize(packed, f32(scales), f32(biases), 64, 4).T
    out, _ = mlx_kernels.qmv(SIM, x, packed, scales, biases, 64, 4)
    assert off(out, wanted) < TOLERANCE[dtype]


@DTYPES
def test_qmm(dtype: mx.Dtype) -> None:
    packed, scales, biases = quantized(64, 256, 64, 4, dtype)
    x = random(40, 256, dtype=dtype, seed=1)
    wanted = f32(x) @ mx.dequantize(packed, f32(scales), f32(biases), 64, 4).T
    out, report = mlx_kernels.qmm_t(SIM, x, packed, scales, biases, 64, 4)
    assert off(out, wanted) < TOLERANCE[dtype] * 2  # it rounds dequantised weights to the dtype
    assert report.matrix_operations == 2 * 64 // 8 * 256 // 8 * 4  # tiles of 32 rows, padded


@pytest.mark.quick
@DTYPES
def test_softmax(dtype: mx.Dtype) -> None:
    x = random(3, 300, dtype=dtype)
    out, _ = mlx_kernels.softmax(SIM, x)
    assert off(out, mx.softmax(f32(x), axis=-1)) < TOLERANCE[dtype]


@DTYPES
@pytest.mark.parametrize("causal", [True, False])
def test_steel_attention(dtype: mx.Dtype, causal: bool) -> None:
    """A ragged length: 45 queries over 70 keys."""
    q, k, v = (random(*s, dtype=dtype, seed=i) for i, s in enumerate([(4, 45, 64), (2, 70, 64), (2, 70, 64)]))
    out, _ = mlx_kernels.steel_attention(SIM, q, k, v, 0.125, causal)
    assert off(out, plain_attention(q, k, v, 0.125, causal)) < TOLERANCE[dtype]
