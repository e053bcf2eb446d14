// simdgroup_matrix: 8x8 fragments held by the 32 lanes, and atomics.
#pragma once
#include "mtl/simd.h"

namespace metal {
// Lane l holds row (l / 4 & 4) + (l / 2) % 4, columns c and c + 1 with c = (l / 4 & 2) * 2 + (l % 2) * 2. Apple does not
// document this; MLX's steel kernels and llama.cpp rely on it.
template <class T, int R = 8, int C = 8> struct simdgroup_matrix {
  static_assert(R == 8 && C == 8, "only 8x8");
  vec<T, 2> elements;
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T d) : elements(row() == column() ? d : T(0), row() == column() + 1 ? d : T(0)) {}
  vec<T, 2> &thread_elements() { return elements; }
  const vec<T, 2> &thread_elements() const { return elements; }
  static uint row() { return (MTL_LANE / 4 & 4) + (MTL_LANE / 2) % 4; }
  static uint column() { return (MTL_LANE / 4 & 2) * 2 + (MTL_LANE % 2) * 2; }
  static uint lane_of(uint r, uint c) { return ((r & 4) << 2) + ((c & 4) << 1) + ((r & 3) << 1) + ((c >> 1) & 1); }
};
using simdgroup_float8x8 = simdgroup_matrix<float, 8, 8>;
using simdgroup_half8x8 = simdgroup_matrix<half, 8, 8>;
using simdgroup_bfloat8x8 = simdgroup_matrix<bfloat, 8, 8>;
template <class T, int R, int C> METAL_FUNC simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T v) {
  simdgroup_matrix<T, R, C> m;
  m.elements = vec<T, 2>(v, v);
  return m;
}
template <class T> METAL_FUNC ulong mtl_element(uint i, ulong stride, ulong2 origin, bool transpose) {
  ulong r = simdgroup_matrix<T>::row(), c = simdgroup_matrix<T>::column() + i;
  return transpose ? (origin.v[1] + c) * stride + origin.v[0] + r : (origin.v[1] + r) * stride + origin.v[0] + c;
}
template <class T>
METAL_FUNC void simdgroup_load(simdgroup_matrix<T, 8, 8> &m, const T *p, ulong stride = 8, ulong2 origin = ulong2(0ul),
                               bool transpose = false) {
  for (uint i = 0; i < 2; i++) m.elements.v[i] = p[mtl_element<T>(i, stride, origin, transpose)];
}
template <class T>
METAL_FUNC void simdgroup_store(simdgroup_matrix<T, 8, 8> m, T *p, ulong stride = 8, ulong2 origin = ulong2(0ul),
                                bool transpose = false) {
  for (uint i = 0; i < 2; i++) p[mtl_element<T>(i, stride, origin, transpose)] = m.elements.v[i];
}

struct mtl_fragments {
  float a[2], b[2];
};
// Products summed in float32, in order of the contracted index.
template <class A, class B>
MTL_EXCHANGE float2 mtl_multiply(vec<A, 2> a, vec<B, 2> b, float2 c, MTL_SITE) {
  mtl_meeting<mtl_fragments> m(MTL_MATRIX, "simdgroup_multiply_accumulate", 0,
                               mtl_fragments{{(float)a.v[0], (float)a.v[1]}, {(float)b.v[0], (float)b.v[1]}},
                               MTL_PASS_SITE);
  using M = simdgroup_matrix<float, 8, 8>;
  const mtl_fragments *f = (const mtl_fragments *)m.exchange->slot[m.parity];
  uint row = M::row(), column = M::column();
  float s0 = c.v[0], s1 = c.v[1];
  for (uint k = 0; k < 8; k++) {
    float left = f[M::lane_of(row, k)].a[k & 1];
    const mtl_fragments &right = f[M::lane_of(k, column)];
    s0 = __builtin_fmaf(left, right.b[0], s0);
    s1 = __builtin_fmaf(left, right.b[1], s1);
  }
  return float2(s0, s1);
}
template <class D, class A, class B, class C>
METAL_FUNC void simdgroup_multiply_accumulate(simdgroup_matrix<D, 8, 8> &d, simdgroup_matrix<A, 8, 8> a,
                                              simdgroup_matrix<B, 8, 8> b, simdgroup_matrix<C, 8, 8> c, MTL_SITE) {
  float2 r = mtl_multiply<A, B>(a.elements, b.elements, float2((float)c.elements.v[0], (float)c.elements.v[1]),
                                MTL_PASS_SITE);
  d.elements = vec<D, 2>(D(r.v[0]), D(r.v[1]));
}
template <class D, class A, class B>
METAL_FUNC void simdgroup_multiply(simdgroup_matrix<D, 8, 8> &d, simdgroup_matrix<A, 8, 8> a,
                                   simdgroup_matrix<B, 8, 8> b, MTL_SITE) {
  float2 r = mtl_multiply<A, B>(a.elements, b.elements, float2(0.0f, 0.0f), MTL_PASS_SITE);
  d.elements = vec<D, 2>(D(r.v[0]), D(r.v[1]));
}

enum memory_order : int {
  memory_order_relaxed = 0, memory_order_acquire, memory_order_release, memory_order_acq_rel, memory_order_seq_cst
};
enum thread_scope : int {
  thread_scope_thread = 0, thread_scope_simdgroup, thread_scope_threadgroup, thread_scope_device
};
METAL_FUNC void atomic_thread_fence(mem_flags, memory_order, thread_scope = thread_scope_device) {}
template <class T> struct atomic { T value; };
template <class T> struct _atomic_ : atomic<T> {};
using atomic_int = atomic<int>;
using atomic_uint = atomic<uint>;
using atomic_float = atomic<float>;
using atomic_bool = atomic<bool>;
// Lanes are fibres of one thread, so plain operations are atomic; the runtime is told which bytes they touch.
#define MTL_ATOMIC_NOTE mtl_atomic_access(p, sizeof(T));
#define MTL_ATOMIC(name, combine)                                                                     \
  template <class T, class U> MTL_EXCHANGE T atomic_fetch_##name##_explicit(atomic<T> *p, U u, memory_order) { \
    MTL_ATOMIC_NOTE T v = T(u), old = p->value;                                                       \
    p->value = T(combine);                                                                            \
    return old;                                                                                       \
  }
MTL_ATOMIC(add, old + v) MTL_ATOMIC(sub, old - v) MTL_ATOMIC(or, old | v) MTL_ATOMIC(and, old &v)
MTL_ATOMIC(xor, old ^ v) MTL_ATOMIC(max, old > v ? old : v) MTL_ATOMIC(min, old < v ? old : v)
template <class T> MTL_EXCHANGE T atomic_load_explicit(const atomic<T> *p, memory_order) { return p->value; }
template <class T, class U> MTL_EXCHANGE void atomic_store_explicit(atomic<T> *p, U v, memory_order) {
  MTL_ATOMIC_NOTE p->value = T(v);
}
template <class T, class U> MTL_EXCHANGE T atomic_exchange_explicit(atomic<T> *p, U v, memory_order) {
  MTL_ATOMIC_NOTE T old = p->value;
  p->value = T(v);
  return old;
}
template <class T>
MTL_EXCHANGE bool atomic_compare_exchange_weak_explicit(atomic<T> *p, T *expected, T v, memory_order, memory_order) {
  MTL_ATOMIC_NOTE if (__builtin_memcmp(&p->value, expected, sizeof(T)) == 0) {
    p->value = v;
    return true;
  }
  *expected = p->value;
  return false;
}
}  // namespace metal
