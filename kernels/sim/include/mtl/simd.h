// Barriers and simdgroup operations: every one is a meeting of all lanes of a simdgroup (or threadgroup).
#pragma once
#include "mtl/math.h"

// Defaulted trailing arguments that identify the call in the source.
#define MTL_SITE const char *site_file = __builtin_FILE(), uint32_t site_line = __builtin_LINE()
#define MTL_PASS_SITE site_file, site_line
#ifdef MTL_SANITIZE  // the exchange itself must not be seen by the instrumentation
#define MTL_EXCHANGE __attribute__((noinline, no_sanitize_thread))
#else
#define MTL_EXCHANGE METAL_FUNC
#endif

namespace metal {
enum class mem_flags : uint {
  mem_none = 0, mem_device = 1, mem_threadgroup = 2, mem_texture = 4, mem_threadgroup_imageblock = 8
};
METAL_FUNC mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(uint(a) | uint(b)); }
METAL_FUNC void threadgroup_barrier(mem_flags flags, MTL_SITE) {
  mtl_site s{MTL_THREADGROUP_BARRIER, "threadgroup_barrier", MTL_PASS_SITE, (uint)flags};
  mtl_meet(&s);
}
METAL_FUNC void simdgroup_barrier(mem_flags flags, MTL_SITE) {
  mtl_site s{MTL_SIMDGROUP_BARRIER, "simdgroup_barrier", MTL_PASS_SITE, (uint)flags};
  mtl_meet(&s);
}

template <class T> struct mtl_meeting {  // publish a value, wait for all lanes, read theirs
  mtl_exchange *exchange;
  uint32_t parity, lane;
  MTL_EXCHANGE mtl_meeting(mtl_kind kind, const char *name, uint32_t steps, T value, MTL_SITE) {
    static_assert(sizeof(T) <= MTL_SLOT_BYTES, "value too large to exchange");
    exchange = mtl_current->exchange;
    parity = exchange->parity;
    lane = mtl_current->lane;
    __builtin_memcpy(exchange->slot[parity] + lane * sizeof(T), &value, sizeof(T));
    mtl_site s{kind, name, MTL_PASS_SITE, steps};
    mtl_meet(&s);
  }
  MTL_EXCHANGE T at(uint32_t i) const {
    T r;
    __builtin_memcpy(&r, exchange->slot[parity] + (i % MTL_LANES) * sizeof(T), sizeof(T));
    return r;
  }
  MTL_EXCHANGE bool exists(uint32_t i) const { return (exchange->mask >> i) & 1; }
  // What all lanes get, computed once.
  template <class R, class F> MTL_EXCHANGE R once(F compute) const {
    if (!exchange->has_reduced[parity]) {
      R r = compute();
      __builtin_memcpy(exchange->reduced[parity], &r, sizeof r);
      exchange->has_reduced[parity] = 1;
    }
    R r;
    __builtin_memcpy(&r, exchange->reduced[parity], sizeof r);
    return r;
  }
};
template <class T> constexpr uint32_t mtl_words = (sizeof(T) + 3) / 4;

template <class T> struct mtl_extremes {
  static T high() { return numeric_limits<T>::max(); }
  static T low() { return numeric_limits<T>::lowest(); }
};
template <> struct mtl_extremes<float> {
  static float high() { return __builtin_inff(); }
  static float low() { return -__builtin_inff(); }
};
template <> struct mtl_extremes<half> {
  static half high() { return (half)__builtin_inff(); }
  static half low() { return (half)-__builtin_inff(); }
};
// A butterfly: lane i with lane i + 16, then + 8, and so on. The hardware's order is not documented.
#define MTL_REDUCE(name, neutral, combine)                                                                       \
  template <class T> struct mtl_reduce_##name {                                                                  \
    __attribute__((noinline, no_sanitize_thread)) static T run(const mtl_meeting<T> &m) {                        \
      T t[MTL_LANES];                                                                                            \
      for (uint32_t i = 0; i < MTL_LANES; i++) t[i] = m.exists(i) ? m.at(i) : T(neutral);                        \
      for (int w = 16; w; w >>= 1)                                                                               \
        for (int i = 0; i < w; i++) { T a = t[i], b = t[i + w]; t[i] = T(combine); }                             \
      return t[0];                                                                                               \
    }                                                                                                            \
  };                                                                                                             \
  template <class T> MTL_EXCHANGE T mtl_all_##name(T x, MTL_SITE) {                                              \
    mtl_meeting<T> m(MTL_SIMD, "simd_" #name, 5 * mtl_words<T>, x, MTL_PASS_SITE);                               \
    return m.template once<T>([&]() __attribute__((no_sanitize_thread)) { return mtl_reduce_##name<T>::run(m); }); \
  }
MTL_REDUCE(sum, 0, a + b)
MTL_REDUCE(product, 1, a * b)
MTL_REDUCE(max, mtl_extremes<T>::low(), max(a, b))
MTL_REDUCE(min, mtl_extremes<T>::high(), min(a, b))
MTL_REDUCE(and, ~T(0), a & b)
MTL_REDUCE(or, 0, a | b)
MTL_REDUCE(xor, 0, a ^ b)
template <class T> MTL_EXCHANGE T mtl_prefix(T v, bool inclusive, bool product, MTL_SITE) {
  mtl_meeting<T> m(MTL_SIMD, "simd_prefix", 5 * mtl_words<T>, v, MTL_PASS_SITE);
  T s = T(product ? 1 : 0);
  for (uint32_t i = 0; i < (inclusive ? m.lane + 1 : m.lane); i++) s = product ? T(s * m.at(i)) : T(s + m.at(i));
  return s;
}
template <class T> MTL_EXCHANGE T mtl_shuffle(const char *name, T v, uint32_t source, bool keep, MTL_SITE) {
  mtl_meeting<T> m(MTL_SIMD, name, mtl_words<T>, v, MTL_PASS_SITE);
  return keep ? v : m.at(source);
}
#define MTL_LANE (mtl_current->lane)
#define MTL_REDUCTIONS(T)                                                                                         \
  METAL_FUNC T simd_sum(T x, MTL_SITE) { return mtl_all_sum<T>(x, MTL_PASS_SITE); }                               \
  METAL_FUNC T simd_product(T x, MTL_SITE) { return mtl_all_product<T>(x, MTL_PASS_SITE); }                       \
  METAL_FUNC T simd_max(T x, MTL_SITE) { return mtl_all_max<T>(x, MTL_PASS_SITE); }                               \
  METAL_FUNC T simd_min(T x, MTL_SITE) { return mtl_all_min<T>(x, MTL_PASS_SITE); }                               \
  METAL_FUNC T simd_prefix_inclusive_sum(T x, MTL_SITE) { return mtl_prefix<T>(x, true, false, MTL_PASS_SITE); }  \
  METAL_FUNC T simd_prefix_exclusive_sum(T x, MTL_SITE) { return mtl_prefix<T>(x, false, false, MTL_PASS_SITE); } \
  METAL_FUNC T simd_prefix_inclusive_product(T x, MTL_SITE) { return mtl_prefix<T>(x, true, true, MTL_PASS_SITE); } \
  METAL_FUNC T simd_prefix_exclusive_product(T x, MTL_SITE) { return mtl_prefix<T>(x, false, true, MTL_PASS_SITE); }
#define MTL_SHUFFLE(name, T, source, keep) \
  METAL_FUNC T name(T x, ushort n, MTL_SITE) { return mtl_shuffle<T>(#name, x, source, keep, MTL_PASS_SITE); }
#define MTL_SHUFFLES(T)                                                                            \
  MTL_SHUFFLE(simd_shuffle, T, n, false)                                                           \
  MTL_SHUFFLE(simd_broadcast, T, n, false)                                                         \
  MTL_SHUFFLE(simd_shuffle_xor, T, MTL_LANE ^ n, false)                                            \
  MTL_SHUFFLE(simd_shuffle_down, T, MTL_LANE + n, MTL_LANE + n >= MTL_LANES)                       \
  MTL_SHUFFLE(simd_shuffle_up, T, MTL_LANE - n, MTL_LANE < n)                                      \
  MTL_SHUFFLE(simd_shuffle_rotate_down, T, MTL_LANE + n, false)                                    \
  MTL_SHUFFLE(simd_shuffle_rotate_up, T, MTL_LANE - n, false)                                      \
  MTL_SHUFFLE(quad_shuffle_xor, T, MTL_LANE ^ (n & 3), false)                                      \
  MTL_SHUFFLE(quad_broadcast, T, (MTL_LANE & ~3u) + (n & 3), false)                                \
  METAL_FUNC T simd_broadcast_first(T x, MTL_SITE) {                                               \
    return mtl_shuffle<T>("simd_broadcast_first", x, 0, false, MTL_PASS_SITE);                     \
  }                                                                                                \
  METAL_FUNC T simd_shuffle_and_fill_up(T x, T fill, ushort n, MTL_SITE) {                         \
    T r = mtl_shuffle<T>("simd_shuffle_and_fill_up", x, MTL_LANE - n, false, MTL_PASS_SITE);       \
    T f = mtl_shuffle<T>("simd_shuffle_and_fill_up", fill, 32 + MTL_LANE - n, false, MTL_PASS_SITE); \
    return MTL_LANE >= n ? r : f;                                                                  \
  }                                                                                                \
  METAL_FUNC T simd_shuffle_and_fill_down(T x, T fill, ushort n, MTL_SITE) {                       \
    T r = mtl_shuffle<T>("simd_shuffle_and_fill_down", x, MTL_LANE + n, false, MTL_PASS_SITE);     \
    T f = mtl_shuffle<T>("simd_shuffle_and_fill_down", fill, MTL_LANE + n - 32, false, MTL_PASS_SITE); \
    return MTL_LANE + n < 32 ? r : f;                                                              \
  }
MTL_REDUCTIONS(float) MTL_REDUCTIONS(half) MTL_REDUCTIONS(int) MTL_REDUCTIONS(uint) MTL_REDUCTIONS(short)
MTL_REDUCTIONS(ushort) MTL_REDUCTIONS(char) MTL_REDUCTIONS(uchar) MTL_REDUCTIONS(long) MTL_REDUCTIONS(ulong)
MTL_SHUFFLES(float) MTL_SHUFFLES(half) MTL_SHUFFLES(int) MTL_SHUFFLES(uint) MTL_SHUFFLES(short) MTL_SHUFFLES(ushort)
MTL_SHUFFLES(char) MTL_SHUFFLES(uchar) MTL_SHUFFLES(bool) MTL_SHUFFLES(long) MTL_SHUFFLES(ulong)
MTL_SHUFFLES(float2) MTL_SHUFFLES(float4) MTL_SHUFFLES(half2) MTL_SHUFFLES(half4) MTL_SHUFFLES(uint2)
MTL_SHUFFLES(uint4) MTL_SHUFFLES(int2) MTL_SHUFFLES(int4)
template <class T, int N> METAL_FUNC vec<T, N> simd_sum(vec<T, N> a, MTL_SITE) {
  MTL_EACH(mtl_all_sum<T>(a.v[i], MTL_PASS_SITE))
}
template <class T> MTL_EXCHANGE T mtl_quad_sum(T x, MTL_SITE) {
  mtl_meeting<T> m(MTL_SIMD, "quad_sum", 2 * mtl_words<T>, x, MTL_PASS_SITE);
  uint32_t b = m.lane & ~3u;
  return T(T(m.at(b) + m.at(b + 2)) + T(m.at(b + 1) + m.at(b + 3)));
}
METAL_FUNC float quad_sum(float x, MTL_SITE) { return mtl_quad_sum<float>(x, MTL_PASS_SITE); }

struct simd_vote {
  using vote_t = ulong;
  ulong bits;
  explicit constexpr simd_vote(ulong b = 0) : bits(b) {}
  explicit constexpr operator vote_t() const { return bits; }
  bool all() const { return (uint32_t)bits == 0xffffffffu; }
  bool any() const { return bits != 0; }
};
MTL_EXCHANGE static simd_vote simd_ballot(bool predicate, MTL_SITE) {
  mtl_meeting<uint32_t> m(MTL_SIMD, "simd_ballot", 1, predicate, MTL_PASS_SITE);
  uint32_t r = 0;
  for (uint32_t i = 0; i < MTL_LANES; i++) if (m.exists(i) && m.at(i)) r |= 1u << i;
  return simd_vote(r);
}
METAL_FUNC bool simd_any(bool p, MTL_SITE) { return simd_ballot(p, MTL_PASS_SITE).any(); }
METAL_FUNC bool simd_all(bool p, MTL_SITE) { return !simd_ballot(!p, MTL_PASS_SITE).any(); }
METAL_FUNC bool simd_is_first() { return MTL_LANE == 0; }
}  // namespace metal

// Names under which MLX's bfloat headers call the same operations.
#define MTL_METAL_SIMD(n) \
  template <class T, class... A> METAL_FUNC T __metal_simd_##n(T x, A... a) { return metal::simd_##n(x, a...); }
MTL_METAL_SIMD(sum) MTL_METAL_SIMD(product) MTL_METAL_SIMD(max) MTL_METAL_SIMD(min)
MTL_METAL_SIMD(prefix_exclusive_sum) MTL_METAL_SIMD(prefix_inclusive_sum) MTL_METAL_SIMD(prefix_exclusive_product)
MTL_METAL_SIMD(prefix_inclusive_product) MTL_METAL_SIMD(broadcast) MTL_METAL_SIMD(shuffle)
MTL_METAL_SIMD(shuffle_down) MTL_METAL_SIMD(shuffle_up) MTL_METAL_SIMD(shuffle_xor)
MTL_METAL_SIMD(shuffle_rotate_down) MTL_METAL_SIMD(shuffle_rotate_up)
template <class T> METAL_FUNC T __metal_simd_xor(T x) { return x; }  // named by MLX's bfloat header, never used
template <class T> METAL_FUNC T __metal_simd_shuffle_and_fill_up(T x, T f, ushort d, ushort) {
  return metal::simd_shuffle_and_fill_up(x, f, d);
}
template <class T> METAL_FUNC T __metal_simd_shuffle_and_fill_down(T x, T f, ushort d, ushort) {
  return metal::simd_shuffle_and_fill_down(x, f, d);
}
METAL_FUNC ushort __metal_get_simdgroup_size(ushort) { return MTL_LANES; }
