// Metal's <metal_math>, <metal_integer>, <metal_relational> and <metal_geometric>.
// fast:: and precise:: are both the C library's: the simulator makes no claim about an approximation's last bits.
#pragma once
#include "mtl/vector.h"

namespace metal {
#define MTL_EACH(call)                               \
  for (int i = 0; i < N; i++) a.v[i] = call;         \
  return a;
#define MTL_MATH1(f, expression)                                                                          \
  METAL_FUNC float f(float x) { return expression; }                                                      \
  METAL_FUNC half f(half h) { return (half)f((float)h); }                                                 \
  template <int N> METAL_FUNC vec<float, N> f(vec<float, N> a) { MTL_EACH(f(a.v[i])) }                     \
  template <int N> METAL_FUNC vec<half, N> f(vec<half, N> a) { MTL_EACH(f(a.v[i])) }
#define MTL_MATH2(f, expression)                                                                          \
  METAL_FUNC float f(float x, float y) { return expression; }                                             \
  METAL_FUNC half f(half g, half h) { return (half)f((float)g, (float)h); }                               \
  template <int N> METAL_FUNC vec<float, N> f(vec<float, N> a, vec<float, N> b) { MTL_EACH(f(a.v[i], b.v[i])) } \
  template <int N> METAL_FUNC vec<half, N> f(vec<half, N> a, vec<half, N> b) { MTL_EACH(f(a.v[i], b.v[i])) }
#define MTL_BUILTIN1(name) MTL_MATH1(name, __builtin_##name##f(x))
#define MTL_MATH                                                                                          \
  MTL_BUILTIN1(exp) MTL_BUILTIN1(exp2) MTL_MATH1(exp10, __builtin_powf(10.0f, x))                         \
  MTL_BUILTIN1(log) MTL_BUILTIN1(log2) MTL_BUILTIN1(log10)                                                \
  MTL_BUILTIN1(sqrt) MTL_MATH1(rsqrt, 1.0f / __builtin_sqrtf(x))                                          \
  MTL_BUILTIN1(sin) MTL_BUILTIN1(cos) MTL_BUILTIN1(tan) MTL_BUILTIN1(sinh) MTL_BUILTIN1(cosh)             \
  MTL_BUILTIN1(tanh) MTL_BUILTIN1(asin) MTL_BUILTIN1(acos) MTL_BUILTIN1(atan) MTL_BUILTIN1(asinh)         \
  MTL_BUILTIN1(acosh) MTL_BUILTIN1(atanh)                                                                 \
  MTL_MATH1(sinpi, __builtin_sinf(M_PI_F * x)) MTL_MATH1(cospi, __builtin_cosf(M_PI_F * x))               \
  MTL_MATH1(tanpi, __builtin_tanf(M_PI_F * x))                                                            \
  MTL_BUILTIN1(ceil) MTL_BUILTIN1(floor) MTL_BUILTIN1(trunc) MTL_BUILTIN1(round) MTL_BUILTIN1(rint)       \
  MTL_BUILTIN1(fabs) MTL_MATH1(fract, x - __builtin_floorf(x))                                            \
  MTL_MATH2(pow, __builtin_powf(x, y)) MTL_MATH2(powr, __builtin_powf(x, y))                              \
  MTL_MATH2(atan2, __builtin_atan2f(x, y)) MTL_MATH2(fmod, __builtin_fmodf(x, y))                         \
  MTL_MATH2(fmax, __builtin_fmaxf(x, y)) MTL_MATH2(fmin, __builtin_fminf(x, y))                           \
  MTL_MATH2(fdim, __builtin_fdimf(x, y)) MTL_MATH2(divide, x / y)                                         \
  MTL_MATH2(copysign, __builtin_copysignf(x, y))                                                          \
  METAL_FUNC float abs(float x) { return __builtin_fabsf(x); }                                            \
  METAL_FUNC half abs(half x) { return (half)__builtin_fabsf((float)x); }                                 \
  METAL_FUNC float max(float x, float y) { return __builtin_fmaxf(x, y); }                                \
  METAL_FUNC half max(half x, half y) { return (half)__builtin_fmaxf((float)x, (float)y); }               \
  METAL_FUNC float min(float x, float y) { return __builtin_fminf(x, y); }                                \
  METAL_FUNC half min(half x, half y) { return (half)__builtin_fminf((float)x, (float)y); }               \
  METAL_FUNC float clamp(float x, float a, float b) { return __builtin_fminf(__builtin_fmaxf(x, a), b); } \
  METAL_FUNC half clamp(half x, half a, half b) { return min(max(x, a), b); }                             \
  METAL_FUNC float saturate(float x) { return clamp(x, 0.0f, 1.0f); }                                     \
  METAL_FUNC float mix(float x, float y, float a) { return x + (y - x) * a; }
namespace precise { MTL_MATH }
namespace fast { MTL_MATH }
MTL_MATH

METAL_FUNC float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
METAL_FUNC half fma(half a, half b, half c) { return (half)__builtin_fma((double)a, (double)b, (double)c); }
template <class T, int N> METAL_FUNC vec<T, N> fma(vec<T, N> a, vec<T, N> b, vec<T, N> c) {
  MTL_EACH(fma(a.v[i], b.v[i], c.v[i]))
}
METAL_FUNC float ldexp(float x, int k) { return __builtin_ldexpf(x, k); }
METAL_FUNC half ldexp(half x, int k) { return (half)__builtin_ldexpf((float)x, k); }
METAL_FUNC float frexp(float x, int &e) { return __builtin_frexpf(x, &e); }
METAL_FUNC float nextafter(float x, float y) { return __builtin_nextafterf(x, y); }
METAL_FUNC bool isnan(float x) { return __builtin_isnan(x); }
METAL_FUNC bool isnan(half x) { return __builtin_isnan((float)x); }
METAL_FUNC bool isinf(float x) { return __builtin_isinf(x); }
METAL_FUNC bool isinf(half x) { return __builtin_isinf((float)x); }
METAL_FUNC bool isfinite(float x) { return __builtin_isfinite(x); }
METAL_FUNC bool isfinite(half x) { return __builtin_isfinite((float)x); }
METAL_FUNC bool signbit(float x) { return __builtin_signbit(x); }
METAL_FUNC float sign(float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : x; }

#define MTL_WIDE(x) ((unsigned long long)(x) & (~0ull >> (64 - 8 * sizeof(x))))
#define MTL_INTEGER(t)                                                                                        \
  METAL_FUNC constexpr t max(t a, t b) { return a > b ? a : b; }                                              \
  METAL_FUNC constexpr t min(t a, t b) { return a < b ? a : b; }                                              \
  METAL_FUNC constexpr t clamp(t x, t a, t b) { return x < a ? a : x > b ? b : x; }                           \
  METAL_FUNC constexpr t popcount(t x) { return (t)__builtin_popcountll(MTL_WIDE(x)); }                       \
  METAL_FUNC constexpr t clz(t x) {                                                                           \
    return (t)(x == 0 ? 8 * sizeof(t) : __builtin_clzll(MTL_WIDE(x)) - (64 - 8 * sizeof(t)));                 \
  }                                                                                                           \
  METAL_FUNC constexpr t ctz(t x) { return (t)(x == 0 ? 8 * sizeof(t) : __builtin_ctzll(MTL_WIDE(x))); }
MTL_INTEGER(char) MTL_INTEGER(signed char) MTL_INTEGER(uchar) MTL_INTEGER(short) MTL_INTEGER(ushort)
MTL_INTEGER(int) MTL_INTEGER(uint) MTL_INTEGER(long) MTL_INTEGER(ulong)
METAL_FUNC int abs(int x) { return x < 0 ? -x : x; }
METAL_FUNC long abs(long x) { return x < 0 ? -x : x; }
METAL_FUNC short abs(short x) { return short(x < 0 ? -x : x); }
METAL_FUNC uint abs(uint x) { return x; }
METAL_FUNC uint mulhi(uint a, uint b) { return uint((ulong(a) * b) >> 32); }
METAL_FUNC uint extract_bits(uint x, uint offset, uint bits) {
  return bits == 0 ? 0 : (x >> offset) & (bits >= 32 ? ~0u : (1u << bits) - 1);
}
METAL_FUNC uint reverse_bits(uint x) {
  uint r = 0;
  for (int i = 0; i < 32; i++) r |= ((x >> i) & 1u) << (31 - i);
  return r;
}
METAL_FUNC uint rotate(uint x, uint n) { n &= 31; return n ? (x << n) | (x >> (32 - n)) : x; }

template <class T, int N> METAL_FUNC vec<T, N> max(vec<T, N> a, vec<T, N> b) { MTL_EACH(max(a.v[i], b.v[i])) }
template <class T, int N> METAL_FUNC vec<T, N> min(vec<T, N> a, vec<T, N> b) { MTL_EACH(min(a.v[i], b.v[i])) }
template <class T, int N> METAL_FUNC vec<T, N> clamp(vec<T, N> a, T l, T h) { MTL_EACH(clamp(a.v[i], l, h)) }
template <class T, int N> METAL_FUNC vec<T, N> abs(vec<T, N> a) { MTL_EACH(abs(a.v[i])) }
template <class T, class = enable_if_t<is_arithmetic_v<T>>> METAL_FUNC T select(T a, T b, bool c) { return c ? b : a; }
template <class T, int N> METAL_FUNC vec<T, N> select(vec<T, N> a, vec<T, N> b, vec<bool, N> c) {
  MTL_EACH(c.v[i] ? b.v[i] : a.v[i])
}
template <class T, int N> METAL_FUNC T dot(vec<T, N> a, vec<T, N> b) {
  T s = T(a.v[0] * b.v[0]);
  for (int i = 1; i < N; i++) s = T(s + a.v[i] * b.v[i]);
  return s;
}
template <class T, int N> METAL_FUNC T length_squared(vec<T, N> a) { return dot(a, a); }
template <class T, int N> METAL_FUNC T length(vec<T, N> a) { return sqrt(dot(a, a)); }
// Forms that are not templates, so that a swizzle converts.
#define MTL_FOR_SWIZZLES(V, T)                                                        \
  METAL_FUNC T dot(V a, V b) { return dot<T, V::size>(a, b); }                        \
  METAL_FUNC V max(V a, V b) { return max<T, V::size>(a, b); }                        \
  METAL_FUNC V min(V a, V b) { return min<T, V::size>(a, b); }                        \
  METAL_FUNC V abs(V a) { return abs<T, V::size>(a); }                                \
  METAL_FUNC V fma(V a, V b, V c) { return fma<T, V::size>(a, b, c); }                \
  METAL_FUNC V exp(V a) { return exp<V::size>(a); }                                   \
  METAL_FUNC T length(V a) { return length<T, V::size>(a); }
MTL_FOR_SWIZZLES(float2, float) MTL_FOR_SWIZZLES(float3, float) MTL_FOR_SWIZZLES(float4, float)
MTL_FOR_SWIZZLES(half2, half) MTL_FOR_SWIZZLES(half3, half) MTL_FOR_SWIZZLES(half4, half)
METAL_FUNC float max3(float a, float b, float c) { return max(a, max(b, c)); }
METAL_FUNC float min3(float a, float b, float c) { return min(a, min(b, c)); }
METAL_FUNC float median3(float a, float b, float c) { return max(min(a, b), min(max(a, b), c)); }
}  // namespace metal

// Compiler builtins that MLX's bfloat headers call by name.
#define __METAL_MAYBE_FAST_MATH__ 0
#define __METAL_FAST_MATH__ 1
#define __METAL_PRECISE_MATH__ 2
#define MTL_METAL1(f) METAL_FUNC float __metal_##f(float x, int = 0) { return metal::f(x); }
#define MTL_METAL2(f) METAL_FUNC float __metal_##f(float x, float y, int = 0) { return metal::f(x, y); }
#define MTL_METAL3(f) METAL_FUNC float __metal_f##f(float x, float y, float z, int = 0) { return metal::f(x, y, z); }
MTL_METAL1(fabs) MTL_METAL1(acos) MTL_METAL1(acosh) MTL_METAL1(asin) MTL_METAL1(asinh) MTL_METAL1(atan)
MTL_METAL1(atanh) MTL_METAL1(ceil) MTL_METAL1(cos) MTL_METAL1(cosh) MTL_METAL1(cospi) MTL_METAL1(exp)
MTL_METAL1(exp10) MTL_METAL1(exp2) MTL_METAL1(floor) MTL_METAL1(fract) MTL_METAL1(log) MTL_METAL1(log10)
MTL_METAL1(log2) MTL_METAL1(rint) MTL_METAL1(round) MTL_METAL1(rsqrt) MTL_METAL1(sin) MTL_METAL1(sinh)
MTL_METAL1(sinpi) MTL_METAL1(sqrt) MTL_METAL1(tan) MTL_METAL1(tanh) MTL_METAL1(tanpi) MTL_METAL1(trunc)
MTL_METAL2(atan2) MTL_METAL2(divide) MTL_METAL2(fmax) MTL_METAL2(fmin) MTL_METAL2(fmod) MTL_METAL2(nextafter)
MTL_METAL2(pow) MTL_METAL2(powr) MTL_METAL3(max3) MTL_METAL3(min3) MTL_METAL3(median3)
METAL_FUNC float __metal_fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
METAL_FUNC float __metal_frexp(float a, int *e) { return __builtin_frexpf(a, e); }
METAL_FUNC float __metal_ldexp(float a, int e, int = 0) { return __builtin_ldexpf(a, e); }
