// Vectors of two to four components with swizzles, packed vectors, and as_type.
// A swizzle is a member that shares the vector's storage and converts to a vector; build.py writes their list.
#pragma once
#include "mtl/traits.h"

namespace metal {
template <class T, int N> struct vec;
template <class U> constexpr bool mtl_is_scalar = is_arithmetic_v<U> || is_same_v<U, double>;
#define MTL_IF_SCALAR(U) class = enable_if_t<mtl_is_scalar<U>>

template <class T, int N, int A, int B, int C, int D> struct mtl_swizzle {
  T first;  // the vector's storage begins here, so a swizzle must never be copied
  static constexpr int index[4] = {A, B, C, D};
  METAL_FUNC const T *data() const { return (const T *)this; }
  METAL_FUNC T *data() { return (T *)this; }
  METAL_FUNC operator vec<T, N>() const;
  METAL_FUNC mtl_swizzle &operator=(const vec<T, N> &o);
  METAL_FUNC mtl_swizzle &operator=(const mtl_swizzle &o) { return *this = vec<T, N>(o); }
  METAL_FUNC mtl_swizzle &operator+=(const vec<T, N> &o) { return *this = vec<T, N>(*this) + o; }
  METAL_FUNC mtl_swizzle &operator*=(const vec<T, N> &o) { return *this = vec<T, N>(*this) * o; }
  METAL_FUNC T operator[](int i) const { return data()[index[i]]; }
};
}  // namespace metal
#include "mtl_swizzles.inc"
namespace metal {
#define MTL_VEC_COMMON(N)                                                                                            \
  static constexpr int size = N;                                                                                     \
  using element = T;                                                                                                 \
  vec() = default;                                                                                                   \
  vec(const vec &) = default;                                                                                        \
  METAL_FUNC vec &operator=(const vec &o) { __builtin_memcpy(v, o.v, sizeof v); return *this; }                      \
  template <class U, MTL_IF_SCALAR(U)> constexpr vec(U s) : v{} { for (int i = 0; i < N; i++) v[i] = T(s); }         \
  template <class U, class = enable_if_t<!is_same_v<U, T>>> explicit constexpr vec(const vec<U, N> &o) : v{} {       \
    for (int i = 0; i < N; i++) v[i] = T(o.v[i]);                                                                    \
  }                                                                                                                  \
  constexpr T &operator[](int i) { return v[i]; }                                                                    \
  constexpr const T &operator[](int i) const { return v[i]; }
template <class T> struct alignas(2 * sizeof(T)) vec<T, 2> {
  union { T v[2]; struct { T x, y; }; struct { T r, g; }; MTL_SWIZZLES_2 };
  MTL_VEC_COMMON(2)
  constexpr vec(T a, T b) : v{a, b} {}
};
template <class T> struct alignas(4 * sizeof(T)) vec<T, 3> {
  union { T v[3]; struct { T x, y, z; }; struct { T r, g, b; }; MTL_SWIZZLES_3 };
  MTL_VEC_COMMON(3)
  constexpr vec(T a, T b, T c) : v{a, b, c} {}
  constexpr vec(vec<T, 2> a, T c) : v{a.v[0], a.v[1], c} {}
  constexpr vec(T c, vec<T, 2> a) : v{c, a.v[0], a.v[1]} {}
  operator mtl_u3() const { return {(uint32_t)v[0], (uint32_t)v[1], (uint32_t)v[2]}; }
};
template <class T> struct alignas(4 * sizeof(T)) vec<T, 4> {
  union { T v[4]; struct { T x, y, z, w; }; struct { T r, g, b, a; }; MTL_SWIZZLES_4 };
  MTL_VEC_COMMON(4)
  constexpr vec(T a, T b, T c, T d) : v{a, b, c, d} {}
  constexpr vec(vec<T, 2> a, vec<T, 2> b) : v{a.v[0], a.v[1], b.v[0], b.v[1]} {}
  constexpr vec(vec<T, 2> a, T c, T d) : v{a.v[0], a.v[1], c, d} {}
  constexpr vec(vec<T, 3> a, T d) : v{a.v[0], a.v[1], a.v[2], d} {}
};
#define MTL_SWZ_ARGS class T, int N, int A, int B, int C, int D
#define MTL_SWZ mtl_swizzle<T, N, A, B, C, D>
template <MTL_SWZ_ARGS> METAL_FUNC MTL_SWZ::operator vec<T, N>() const {
  vec<T, N> r(T(0));
  for (int i = 0; i < N; i++) r.v[i] = data()[index[i]];
  return r;
}
template <MTL_SWZ_ARGS> METAL_FUNC MTL_SWZ &MTL_SWZ::operator=(const vec<T, N> &o) {
  vec<T, N> copy = o;  // o may be made of the same storage
  for (int i = 0; i < N; i++) data()[index[i]] = copy.v[i];
  return *this;
}

#define MTL_VEC_OP(op)                                                                                                \
  template <class T, int N> METAL_FUNC vec<T, N> operator op(vec<T, N> a, vec<T, N> b) {                              \
    for (int i = 0; i < N; i++) a.v[i] = T(a.v[i] op b.v[i]);                                                         \
    return a;                                                                                                         \
  }                                                                                                                   \
  template <class T, int N, class U, MTL_IF_SCALAR(U)> METAL_FUNC vec<T, N> operator op(vec<T, N> a, U b) {           \
    return a op vec<T, N>(b);                                                                                         \
  }                                                                                                                   \
  template <class T, int N, class U, MTL_IF_SCALAR(U)> METAL_FUNC vec<T, N> operator op(U a, vec<T, N> b) {           \
    return vec<T, N>(a) op b;                                                                                         \
  }                                                                                                                   \
  template <class T, int N, class U> METAL_FUNC vec<T, N> &operator op##=(vec<T, N> &a, const U &b) {                 \
    return a = a op b;                                                                                                \
  }                                                                                                                   \
  template <MTL_SWZ_ARGS> METAL_FUNC vec<T, N> operator op(const MTL_SWZ &a, vec<T, N> b) { return vec<T, N>(a) op b; }      \
  template <MTL_SWZ_ARGS> METAL_FUNC vec<T, N> operator op(vec<T, N> a, const MTL_SWZ &b) { return a op vec<T, N>(b); }      \
  template <MTL_SWZ_ARGS, class U, MTL_IF_SCALAR(U)> METAL_FUNC vec<T, N> operator op(const MTL_SWZ &a, U b) {               \
    return vec<T, N>(a) op b;                                                                                         \
  }                                                                                                                   \
  template <MTL_SWZ_ARGS, int E, int F, int G, int H>                                                                 \
  METAL_FUNC vec<T, N> operator op(const MTL_SWZ &a, const mtl_swizzle<T, N, E, F, G, H> &b) {                                      \
    return vec<T, N>(a) op vec<T, N>(b);                                                                              \
  }
MTL_VEC_OP(+) MTL_VEC_OP(-) MTL_VEC_OP(*) MTL_VEC_OP(/) MTL_VEC_OP(%)
MTL_VEC_OP(&) MTL_VEC_OP(|) MTL_VEC_OP(^) MTL_VEC_OP(<<) MTL_VEC_OP(>>)
#define MTL_VEC_COMPARE(op)                                                                          \
  template <class T, int N> METAL_FUNC vec<bool, N> operator op(vec<T, N> a, vec<T, N> b) {          \
    vec<bool, N> r(false);                                                                           \
    for (int i = 0; i < N; i++) r.v[i] = a.v[i] op b.v[i];                                           \
    return r;                                                                                        \
  }                                                                                                  \
  template <class T, int N, class U, MTL_IF_SCALAR(U)> METAL_FUNC vec<bool, N> operator op(vec<T, N> a, U b) { \
    return a op vec<T, N>(b);                                                                        \
  }
MTL_VEC_COMPARE(<) MTL_VEC_COMPARE(>) MTL_VEC_COMPARE(<=) MTL_VEC_COMPARE(>=)
MTL_VEC_COMPARE(==) MTL_VEC_COMPARE(!=) MTL_VEC_COMPARE(&&) MTL_VEC_COMPARE(||)
template <class T, int N> METAL_FUNC vec<T, N> operator-(vec<T, N> a) {
  for (int i = 0; i < N; i++) a.v[i] = T(-a.v[i]);
  return a;
}
template <class T, int N> METAL_FUNC vec<T, N> operator~(vec<T, N> a) {
  for (int i = 0; i < N; i++) a.v[i] = T(~a.v[i]);
  return a;
}
template <int N> METAL_FUNC vec<bool, N> operator!(vec<bool, N> a) {
  for (int i = 0; i < N; i++) a.v[i] = !a.v[i];
  return a;
}
template <int N> METAL_FUNC bool any(vec<bool, N> a) {
  bool r = false;
  for (int i = 0; i < N; i++) r |= a.v[i];
  return r;
}
template <int N> METAL_FUNC bool all(vec<bool, N> a) {
  bool r = true;
  for (int i = 0; i < N; i++) r &= a.v[i];
  return r;
}

template <class T, int N> struct packed_vec {  // aligned as its component
  T v[N];
  packed_vec() = default;
  packed_vec(vec<T, N> o) { for (int i = 0; i < N; i++) v[i] = o.v[i]; }
  template <int A, int B, int C, int D> packed_vec(const mtl_swizzle<T, N, A, B, C, D> &o) : packed_vec(vec<T, N>(o)) {}
  template <class U, MTL_IF_SCALAR(U)> packed_vec(U s) { for (int i = 0; i < N; i++) v[i] = T(s); }
  operator vec<T, N>() const {
    vec<T, N> r(T(0));
    for (int i = 0; i < N; i++) r.v[i] = v[i];
    return r;
  }
  T &operator[](int i) { return v[i]; }
  const T &operator[](int i) const { return v[i]; }
};
#define MTL_VEC_NAMES(t)                                               \
  using t##2 = vec<t, 2>; using t##3 = vec<t, 3>; using t##4 = vec<t, 4>; \
  using packed_##t##2 = packed_vec<t, 2>; using packed_##t##3 = packed_vec<t, 3>; using packed_##t##4 = packed_vec<t, 4>;
MTL_VEC_NAMES(float) MTL_VEC_NAMES(half) MTL_VEC_NAMES(bfloat) MTL_VEC_NAMES(char) MTL_VEC_NAMES(uchar)
MTL_VEC_NAMES(short) MTL_VEC_NAMES(ushort) MTL_VEC_NAMES(int) MTL_VEC_NAMES(uint) MTL_VEC_NAMES(long)
MTL_VEC_NAMES(ulong) MTL_VEC_NAMES(bool)

// The smallest piece of a T in threadgroup memory that two simdgroups may own separately.
template <class T> constexpr size_t mtl_granule = alignof(T) < 4 ? alignof(T) : 4;
template <class T, int N> constexpr size_t mtl_granule<vec<T, N>> = mtl_granule<T>;
template <class T, size_t N> constexpr size_t mtl_granule<T[N]> = mtl_granule<T>;

template <class T, class U> METAL_FUNC T as_type(U x) {
  static_assert(sizeof(T) == sizeof(U), "as_type: sizes differ");
  T r;
  __builtin_memcpy(&r, &x, sizeof r);
  return r;
}
}  // namespace metal
