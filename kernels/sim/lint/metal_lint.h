// Declarations of Metal's standard library with real address spaces, for clang to type-check against; nothing runs.
// bfloat is double here: a builtin type that Metal has no other use for, which every clang can load from any space.
#pragma once
#include <stddef.h>
#include <stdint.h>

#define METAL_FUNC inline
#define device __attribute__((address_space(1)))
#define constant __attribute__((address_space(2)))
#define lint_threadgroup __attribute__((address_space(3)))
#define thread
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef _Float16 half;
typedef double bfloat;
typedef half float16_t;
typedef bfloat bfloat16_t;
#define INFINITY __builtin_inff()
#define M_LOG2E_F 1.44269502162933349609f
#define M_PI_F 3.14159274101257324219f

namespace metal {
template <class T, int N> using vec = T __attribute__((ext_vector_type(N)));
#define VECTORS(t) typedef vec<t, 2> t##2; typedef vec<t, 3> t##3; typedef vec<t, 4> t##4;
VECTORS(float) VECTORS(half) VECTORS(bfloat) VECTORS(char) VECTORS(uchar) VECTORS(short) VECTORS(ushort)
VECTORS(int) VECTORS(uint) VECTORS(long) VECTORS(ulong)
template <class V, class... A> constexpr V construct(A...);  // what lint.py makes of float4(...)
template <class T, class U> T as_type(U);

// One type for all arguments, as Metal's overloads ask: max(float, half) is ambiguous there too.
#define ONE(f) template <class T> T f(T);
#define TWO(f) template <class T> T f(T, T);
#define THREE(f) template <class T> T f(T, T, T);
#define MATH                                                                                          \
  ONE(exp) ONE(exp2) ONE(log) ONE(log2) ONE(sqrt) ONE(rsqrt) ONE(sin) ONE(cos) ONE(tan) ONE(tanh)     \
  ONE(ceil) ONE(floor) ONE(trunc) ONE(round) ONE(rint) ONE(fabs) ONE(abs) ONE(fract) TWO(pow)         \
  TWO(fmod) TWO(fmax) TWO(fmin) TWO(divide) TWO(max) TWO(min) THREE(clamp) THREE(fma)
MATH
namespace fast { MATH }
namespace precise { MATH }
ONE(popcount) ONE(clz) ONE(ctz)
template <class T> bool isnan(T);
template <class T> bool isinf(T);
template <class T> T select(T, T, bool);
template <class T, int N> T dot(vec<T, N>, vec<T, N>);

enum class mem_flags : uint { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
mem_flags operator|(mem_flags, mem_flags);
void threadgroup_barrier(mem_flags);
void simdgroup_barrier(mem_flags);
#define SHUFFLE(f) template <class T> T f(T, ushort);
ONE(simd_sum) ONE(simd_product) ONE(simd_max) ONE(simd_min) ONE(simd_prefix_inclusive_sum)
ONE(simd_prefix_exclusive_sum) ONE(simd_broadcast_first) ONE(quad_sum)
SHUFFLE(simd_shuffle) SHUFFLE(simd_broadcast) SHUFFLE(simd_shuffle_xor) SHUFFLE(simd_shuffle_down)
SHUFFLE(simd_shuffle_up) SHUFFLE(quad_shuffle_xor)
bool simd_any(bool);
bool simd_all(bool);

template <class T, int R = 8, int C = 8> struct simdgroup_matrix {
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T);
  vec<T, 2> &thread_elements();
};
using simdgroup_float8x8 = simdgroup_matrix<float>;
using simdgroup_half8x8 = simdgroup_matrix<half>;
template <class T, int R, int C> simdgroup_matrix<T, R, C> make_filled_simdgroup_matrix(T);
template <class D, class A, class B, class C>
void simdgroup_multiply_accumulate(simdgroup_matrix<D> &, simdgroup_matrix<A>, simdgroup_matrix<B>, simdgroup_matrix<C>);
template <class T> void simdgroup_load(simdgroup_matrix<T> &, const device T *, ulong = 8, ulong2 = 0, bool = false);
template <class T>
void simdgroup_load(simdgroup_matrix<T> &, const lint_threadgroup T *, ulong = 8, ulong2 = 0, bool = false);
template <class T> void simdgroup_store(simdgroup_matrix<T>, device T *, ulong = 8, ulong2 = 0, bool = false);
template <class T> void simdgroup_store(simdgroup_matrix<T>, lint_threadgroup T *, ulong = 8, ulong2 = 0, bool = false);
}  // namespace metal
