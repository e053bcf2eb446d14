"""MLX's own Metal kernels, from the headers in the installed wheel, launched in the simulator as MLX launches them.

Shapes of grids and threadgroups are those of MLX 0.32's host code. Knows nothing of this project's kernels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import numpy as np

from kernels.sim.arrays import Buffer, aligned, dtype_name, numpy_dtype, to_numpy
from kernels.sim.launch import Simulator
from kernels.sim.report import Report

HEADERS = "mlx/backend/metal/kernels"
_METAL = {"float16": "half", "bfloat16": "bfloat", "float32": "float"}


def _buffers(named: Sequence[tuple[str, Any]], outputs: Sequence[str]) -> list[Buffer]:
    """Each value is an array, an int, a float or bytes; outputs are filled by the launch."""
    buffers = []
    for name, value in named:
        if isinstance(value, bytes):
            data = np.frombuffer(value, np.uint8)
        elif isinstance(value, float):
            data = np.array([value], np.float32)
        elif isinstance(value, int):
            data = np.array([value], np.int32)
        else:
            data = aligned(to_numpy(value))
        buffers.append(Buffer(name, data, name in outputs, name in outputs))
    return buffers


def _result(buffers: Sequence[Buffer], name: str, dtype: mx.Dtype) -> mx.array:
    data = next(b.data for b in buffers if b.name == name)
    return mx.array(data).view(dtype) if dtype == mx.bfloat16 else mx.array(data)


def _long(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, np.uint64)


def _empty(shape: Sequence[int], dtype: mx.Dtype) -> np.ndarray[Any, Any]:
    return np.zeros(shape, numpy_dtype(dtype))


UTILS = f'#include "{HEADERS}/utils.h"\n'


def sdpa_vector(sim: Simulator, q: mx.array, k: mx.array, v: mx.array, scale: float) -> tuple[mx.array, Report]:
    """One query: q [B, H, D], k and v [B, Hkv, N, D] -> [B, H, D]."""
    batch, heads, dim = q.shape
    kv_heads, n = k.shape[1:3]
    kernel = sim.function(
        f'{UTILS}#include "{HEADERS}/sdpa_vector.h"\n',
        f"sdpa_vector<{_METAL[dtype_name(q.dtype)]}, {dim}>",
        ["threadgroup_position_in_grid", "threadgroups_per_grid", "simdgroup_index_in_threadgroup",
         "thread_index_in_simdgroup"],
    )  # fmt: skip
    stride = [_long(n * dim), _long(dim)]
    unused = np.zeros(8, np.int32)
    buffers = _buffers(
        [("q", q), ("k", k), ("v", v), ("out", _empty(q.shape, q.dtype)), ("gqa", heads // kv_heads), ("n", n),
         ("ks0", stride[0]), ("ks1", stride[1]), ("vs0", stride[0]), ("vs1", stride[1]), ("scale", scale),
         *((f"unused{i}", unused) for i in range(7))],
        ["out"],
    )  # fmt: skip
    report = kernel(buffers, (batch * heads * 1024, 1, 1), (1024, 1, 1))
    return _result(buffers, "out", q.dtype), report


def _quantized(function: str, sim: Simulator, attributes: Sequence[str]) -> Any:
    includes = "".join(
        f'#include "{HEADERS}/{h}"\n' for h in ("utils.h", "steel/gemm/gemm.h", "quantized_utils.h", "quantized.h")
    )
    return sim.function(includes, function, attributes)


def qmv(
    sim: Simulator, x: mx.array, packed: mx.array, scales: mx.array, biases: mx.array, group: int, bits: int
) -> tuple[mx.array, Report]:
    """x [M, K] -> [M, N], each row on its own; the fast form where MLX takes it."""
    rows, k = x.shape
    n = packed.shape[0]
    fast = n % 8 == 0 and k % 512 == 0
    options = f"{_METAL[dtype_name(x.dtype)]}, {group}, {bits}, false"
    kernel = _quantized(
        f"affine_qmv{'_fast' if fast else ''}<{options}>",
        sim,
        ["threadgroup_position_in_grid", "simdgroup_index_in_threadgroup", "thread_index_in_simdgroup"],
    )
    buffers = _buffers(
        [("packed", packed), ("scales", scales), ("biases", biases), ("x", x), ("y", _empty((rows, n), x.dtype)),
         ("k", k), ("n", n), *((f"s{i}", np.zeros(4, np.int64)) for i in range(8))],
        ["y"],
    )  # fmt: skip
    report = kernel(buffers, (rows * 32, -(-n // 8) * 2, 1), (32, 2, 1))
    return _result(buffers, "y", x.dtype), report


def qmm_t(
    sim: Simulator, x: mx.array, packed: mx.array, scales: mx.array, biases: mx.array, group: int, bits: int
) -> tuple[mx.array, Report]:
    """x [M, K] -> [M, N] in tiles of 32 by 32."""
    rows, k = x.shape
    n = packed.shape[0]
    aligned = "true" if n % 32 == 0 else "false"
    kernel = _quantized(
        f"affine_qmm_t<{_METAL[dtype_name(x.dtype)]}, {group}, {bits}, {aligned}, false>",
        sim,
        ["threadgroup_position_in_grid", "thread_index_in_threadgroup", "simdgroup_index_in_threadgroup",
         "thread_index_in_simdgroup"],
    )  # fmt: skip
    buffers = _buffers(
        [("packed", packed), ("scales", scales), ("biases", biases), ("x", x), ("y", _empty((rows, n), x.dtype)),
         ("k", k), ("n", n), ("m", rows), *((f"s{i}", np.zeros(4, np.int64)) for i in range(8))],
        ["y"],
    )  # fmt: skip
    report = kernel(buffers, (-(-n // 32) * 32, -(-rows // 32) * 2, 2), (32, 2, 2))
    return _result(buffers, "y", x.dtype), report


def softmax(sim: Simulator, x: mx.array) -> tuple[mx.array, Report]:
    """Rows of at most 4096 values, accumulated in float32."""
    rows, n = x.shape
    kernel = sim.function(
        f'{UTILS}#include "{HEADERS}/defines.h"\n#include "{HEADERS}/softmax.h"\n',
        f"softmax_single_row<{_METAL[dtype_name(x.dtype)]}, float>",
        ["threadgroup_position_in_grid", "thread_position_in_threadgroup", "thread_index_in_simdgroup",
         "simdgroup_index_in_threadgroup"],
    )  # fmt: skip
    threads = math.ceil(n / 4 / 32) * 32
    buffers = _buffers([("in", x), ("out", _empty(x.shape, x.dtype)), ("n", n)], ["out"])
    report = kernel(buffers, (rows * threads, 1, 1), (threads, 1, 1))
    return _result(buffers, "out", x.dtype), report


def steel_attention(
    sim: Simulator, q: mx.array, k: mx.array, v: mx.array, scale: float, causal: bool
) -> tuple[mx.array, Report]:
    """Prefill: q [H, L, D], k and v [Hkv, N, D] -> [H, L, D], tiles of 32 queries."""
    heads, length, dim = q.shape
    kv_heads, n, _ = k.shape
    bq, bk = 32, 32 if dim < 128 else 16
    kind = _METAL[dtype_name(q.dtype)]
    kernel = sim.function(
        f'{UTILS}#include "{HEADERS}/steel/attn/attn.h"\n#include "{HEADERS}/steel/attn/kernels/steel_attention.h"\n',
        f"attention<{kind}, {bq}, {bk}, {dim}, {dim}, 4, 1, {kind}, float>",
        ["thread_index_in_simdgroup", "simdgroup_index_in_threadgroup", "threadgroup_position_in_grid",
         "thread_position_in_threadgroup"],
        {"align_Q": length % bq == 0, "align_K": n % bk == 0, "do_causal": causal},
    )  # fmt: skip
    ints = [1, heads, dim, length, n, heads // kv_heads]
    tiles = [-(-length // bq), -(-n // bk), length // bq, n // bk, length % bq, n % bk, n - length]
    strides = [heads * length * dim, length * dim, dim, *[kv_heads * n * dim, n * dim, dim] * 2]
    strides += strides[:3]
    params = (
        np.array(ints, np.int32).tobytes()
        + np.array([scale], np.float32).tobytes()
        + np.array(tiles, np.int32).tobytes()
        + np.array(strides, np.int64).tobytes()
    )
    buffers = _buffers(
        [("q", q), ("k", k), ("v", v), ("out", _empty(q.shape, q.dtype)), ("params", np.frombuffer(params, np.int64)),
         *((f"unused{i}", np.zeros(8, np.int32)) for i in range(4))],
        ["out"],
    )  # fmt: skip
    report = kernel(buffers, (tiles[0] * 32, heads * 4, 1), (32, 4, 1))
    return _result(buffers, "out", q.dtype), report
