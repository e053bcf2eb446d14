"""Metal's standard library on a CPU, against numpy."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from kernels.sim import Report, Simulator
from kernels.sim.arrays import to_numpy

pytestmark = pytest.mark.quick

SIM = Simulator(vary=False)
LANE = np.arange(32)
X = np.random.default_rng(0).standard_normal(32).astype(np.float32)


def each_lane(expression: str, dtype: mx.Dtype = mx.float32, before: str = "") -> np.ndarray:
    """The expression's value in each lane l of one simdgroup; a is X."""
    body = f"uint l = thread_index_in_simdgroup; {before} o[l] = {expression};"
    kernel = SIM.metal_kernel("op", ["a"], ["o"], body)
    (out,) = kernel(
        inputs=[mx.array(X)],
        grid=(32, 1, 1),
        threadgroup=(32, 1, 1),
        output_shapes=[(32,)],
        output_dtypes=[dtype],
    )
    return np.array(out)


def as_bits(a: mx.array) -> np.ndarray:
    return to_numpy(a.view(mx.uint16))


def round_to(dtype: mx.Dtype, x: np.ndarray) -> mx.array:
    return mx.array(x.astype(np.float32)).astype(dtype)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16], ids=str)
def test_sixteen_bit_arithmetic_rounds_after_every_operation(dtype: mx.Dtype) -> None:
    """Bit for bit on random bit patterns, not-a-number apart."""
    rng = np.random.default_rng(1)
    a, b = (mx.array(rng.integers(0, 65536, 16384).astype(np.uint16)).view(dtype) for _ in range(2))
    kernel = SIM.metal_kernel(
        "arithmetic",
        ["a", "b"],
        ["s", "m", "d", "c"],
        "uint i = thread_position_in_grid.x; s[i] = a[i] + b[i]; m[i] = a[i] * b[i]; d[i] = a[i] / b[i];"
        "c[i] = a[i] * b[i] + a[i];",
    )
    got = kernel(
        inputs=[a, b],
        grid=(16384, 1, 1),
        threadgroup=(256, 1, 1),
        output_shapes=[(16384,)] * 4,
        output_dtypes=[dtype] * 4,
    )
    x, y = (np.array(v.astype(mx.float32)) for v in (a, b))
    with np.errstate(all="ignore"):
        product = np.array(round_to(dtype, x * y).astype(mx.float32))
        wanted = [round_to(dtype, v) for v in (x + y, x * y, x / y, product + x)]
    for g, w in zip(got, wanted, strict=True):
        both_nan = np.array(mx.isnan(g)) & np.array(mx.isnan(w))
        assert ((as_bits(g) == as_bits(w)) | both_nan).all()


EXACT = {
    "simd_shuffle_xor(a[l], 5)": X[LANE ^ 5],
    "simd_shuffle(a[l], ushort(31 - l))": X[::-1],
    "simd_shuffle_rotate_down(a[l], 3)": np.roll(X, -3),
    "simd_shuffle_rotate_up(a[l], 3)": np.roll(X, 3),
    "simd_broadcast(a[l], 7)": np.full(32, X[7]),
    "simd_broadcast_first(a[l])": np.full(32, X[0]),
    "simd_shuffle_and_fill_up(a[l], -1.0f, 2)": np.r_[[-1, -1], X[:30]].astype(np.float32),
    "simd_max(a[l])": np.full(32, X.max()),
    "simd_min(a[l])": np.full(32, X.min()),
    "float(simd_sum(int(l)))": np.full(32, 496),
    "float(simd_sum(half(l)))": np.full(32, 496),
    "float(simd_max(l * 7u))": np.full(32, 217),
    "simd_any(l == 3) + 2 * simd_all(l < 32) + 4 * simd_all(l < 31)": np.full(32, 3),
    "simd_prefix_exclusive_sum(float(l))": np.cumsum(LANE) - LANE,
    "float(ulong(simd_ballot(l < 4)))": np.full(32, 15),
    "float(as_type<uchar4>(0x04030201u).z)": np.full(32, 3),
    "float(popcount(l)) + float(clz(1u)) + float(extract_bits(0xabcdu, 4, 8))": [
        bin(i).count("1") + 31 + 0xBC for i in LANE
    ],
}  # fmt: skip


def test_simd_operations() -> None:
    names = list(EXACT)
    body = "uint l = thread_index_in_simdgroup;\n" + "\n".join(f"o[{i * 32} + l] = {e};" for i, e in enumerate(names))
    kernel = SIM.metal_kernel("operations", ["a"], ["o"], body)
    (out,) = kernel(
        inputs=[mx.array(X)],
        grid=(32, 1, 1),
        threadgroup=(32, 1, 1),
        output_shapes=[(len(names), 32)],
        output_dtypes=[mx.float32],
    )
    for name, got in zip(names, np.array(out), strict=True):
        assert (got == np.asarray(EXACT[name], np.float32)).all(), name
    np.testing.assert_allclose(each_lane("simd_sum(a[l])"), X.sum(), rtol=1e-5)
    np.testing.assert_allclose(each_lane("quad_sum(a[l])"), np.repeat(X.reshape(8, 4).sum(1), 4), atol=1e-6)
    down = each_lane("simd_shuffle_down(a[l], 3)")
    assert (down[:29] == X[3:]).all()


def test_vectors_and_swizzles() -> None:
    before = (
        "float4 v = float4(a[l], a[l] + 1, 2 * a[l], 3); v.xz = v.zx; half2 h = half2(float2(1.5, 2.5));"
        "v.w += float(h.y); packed_float3 p = v.xyz;"
    )
    got = each_lane("dot(v.wzyx, float4(1, 2, 3, 4)) + v.xy[1] + p[0] + (v.xy * 2.0f).x", before=before)
    x, y, z, w = 2 * X, X + 1, X, np.full(32, 5.5, np.float32)
    np.testing.assert_allclose(got, w + 2 * z + 3 * y + 4 * x + y + x + 2 * x, rtol=1e-5, atol=1e-5)


def test_simdgroup_matrix() -> None:
    rng = np.random.default_rng(2)
    a, b = (rng.standard_normal((8, 8)).astype(np.float32) for _ in range(2))
    body = """
      simdgroup_float8x8 A, B, Bt, C = make_filled_simdgroup_matrix<float, 8, 8>(1.0f);
      simdgroup_load(A, a, 8); simdgroup_load(B, b, 8); simdgroup_load(Bt, b, 8, ulong2(0, 0), true);
      simdgroup_multiply_accumulate(C, A, B, C); simdgroup_store(C, o, 8);
      simdgroup_multiply(C, A, Bt); simdgroup_store(C, p, 8); (void)thread_index_in_simdgroup;
    """
    reports: list[Report] = []
    kernel = Simulator(vary=False, on_report=reports.append).metal_kernel("matrix", ["a", "b"], ["o", "p"], body)
    got, transposed = kernel(
        inputs=[mx.array(a), mx.array(b)],
        grid=(32, 1, 1),
        threadgroup=(32, 1, 1),
        output_shapes=[(8, 8)] * 2,
        output_dtypes=[mx.float32] * 2,
    )
    np.testing.assert_allclose(np.array(got), a @ b + 1, atol=1e-5)
    np.testing.assert_allclose(np.array(transposed), a @ b.T, atol=1e-5)
    assert reports[0].matrix_operations == 2


def test_positions_in_an_uneven_grid() -> None:
    body = """
      uint3 p = thread_position_in_grid, t = threadgroup_position_in_grid, q = thread_position_in_threadgroup;
      uint3 n = threads_per_threadgroup, g = threads_per_grid;
      bool ok = all(t * uint3(8, 4, 2) + q == p) && thread_index_in_simdgroup == thread_index_in_threadgroup % 32
        && thread_index_in_threadgroup == (q.z * n.y + q.y) * n.x + q.x;
      o[(p.z * g.y + p.y) * g.x + p.x] = ok;
    """
    kernel = SIM.metal_kernel("positions", ["a"], ["o"], body)
    (out,) = kernel(
        inputs=[mx.array(X)],
        grid=(19, 7, 3),
        threadgroup=(8, 4, 2),
        output_shapes=[(3, 7, 19)],
        output_dtypes=[mx.float32],
    )
    assert (np.array(out) == 1).all()


def test_strided_inputs_scalars_and_initial_values() -> None:
    v = mx.array(np.random.default_rng(3).standard_normal((6, 8)).astype(np.float32))[1::2, ::3].T
    body = "uint i = thread_position_in_grid.x; if (i > 0) o[i] = a[elem_to_loc(i, a_shape, a_strides, a_ndim)] * s;"
    kernel = SIM.metal_kernel("strided", ["a", "s"], ["o"], body, ensure_row_contiguous=False)
    (out,) = kernel(
        inputs=[v, 2.0],
        grid=(v.size, 1, 1),
        threadgroup=(32, 1, 1),
        output_shapes=[v.shape],
        output_dtypes=[mx.float32],
        init_value=7,
    )
    wanted = np.array(v) * 2
    wanted[0, 0] = 7
    assert (np.array(out) == wanted).all()


def test_threadgroup_memory_after_a_line_marker_and_in_each_template_instantiation() -> None:
    """Pinned: a declaration that the rewriter misses becomes private to each lane, and answers are wrong in silence."""
    header = """
      template <int N> float turn(float x, uint l) {
      #line 100 "elsewhere"
        threadgroup float s[32];
        s[l] = x + N;
        threadgroup_barrier(mem_flags::mem_threadgroup);
        return s[31 - l];
      }
    """
    kernel = SIM.metal_kernel(
        "lines", ["a"], ["o"], "uint l = thread_index_in_simdgroup; o[l] = turn<1>(a[l], l) + turn<2>(a[l], l);", header
    )
    (out,) = kernel(
        inputs=[mx.array(X)],
        grid=(32, 1, 1),
        threadgroup=(32, 1, 1),
        output_shapes=[(32,)],
        output_dtypes=[mx.float32],
    )
    np.testing.assert_allclose(np.array(out), 2 * X[::-1] + 3, rtol=1e-6)


def test_counters() -> None:
    """64 lanes each read 4 bytes twice; two simdgroups touch two lines of 128 bytes each."""
    reports: list[Report] = []
    body = """
      uint i = thread_position_in_grid.x; float x = a[i];
      threadgroup_barrier(mem_flags::mem_device); o[i] = x + a[i ^ 1] + simd_sum(x);
    """
    kernel = Simulator(vary=False, on_report=reports.append).metal_kernel("count", ["a"], ["o"], body)
    kernel(
        inputs=[mx.zeros((64,))],
        grid=(64, 1, 1),
        threadgroup=(64, 1, 1),
        output_shapes=[(64,)],
        output_dtypes=[mx.float32],
    )
    a = reports[0].buffers["a"]
    assert (a.read, a.unique_read, a.reread, a.lines32, a.lines128) == (512, 256, 256, 8, 2)
    assert (reports[0].simd_operations, reports[0].simd_steps, reports[0].threadgroup_barriers) == (2, 10, 1)
    assert '"read": 512' in reports[0].to_json()
