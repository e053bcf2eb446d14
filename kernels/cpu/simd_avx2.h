// Sixteen lanes as two halves with AVX2, FMA and F16C; dot products with AVX-VNNI where there is, else by 16-bit
// products. The interface is described in simd.h.
#pragma once

#include <immintrin.h>

#include <cmath>
#include <cstdint>

namespace mlxserve {

struct Floats {
  __m256 low, high;
};
struct Ints {
  __m256i low, high;
};
using Codes = Ints;

constexpr int kRows = 3;  // each row takes 4 of the 16 registers

inline Floats load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, Floats x) {
  _mm256_storeu_ps(p, x.low);
  _mm256_storeu_ps(p + 8, x.high);
}
inline Floats splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Floats zero() { return splat(0); }
inline Floats add(Floats a, Floats b) { return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)}; }
inline Floats sub(Floats a, Floats b) { return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)}; }
inline Floats mul(Floats a, Floats b) { return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)}; }
inline Floats div(Floats a, Floats b) { return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)}; }
inline Floats fma(Floats a, Floats b, Floats c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Floats max(Floats a, Floats b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline Floats min(Floats a, Floats b) { return {_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)}; }
inline Floats absolute(Floats x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.low), _mm256_andnot_ps(sign, x.high)};
}
inline Floats keep_if_greater(Floats x, Floats a, Floats b) {
  return {_mm256_and_ps(x.low, _mm256_cmp_ps(a.low, b.low, _CMP_GT_OQ)),
          _mm256_and_ps(x.high, _mm256_cmp_ps(a.high, b.high, _CMP_GT_OQ))};
}
inline __m256 keep_lanes(__m256 x, __m256i lane, int begin, int end, __m256 other) {
  const __m256i keep = _mm256_andnot_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(begin), lane),
                                           _mm256_cmpgt_epi32(_mm256_set1_epi32(end), lane));
  return _mm256_blendv_ps(other, x, _mm256_castsi256_ps(keep));
}
inline Floats keep_lanes(Floats x, int begin, int end, Floats other) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return {keep_lanes(x.low, lane, begin, end, other.low),
          keep_lanes(x.high, _mm256_add_epi32(lane, _mm256_set1_epi32(8)), begin, end, other.high)};
}
inline Floats load_half(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)p)),
          _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(p + 8)))};
}
inline __m256 load_bfloat8(const uint16_t* p) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)p)), 16));
}
inline Floats load_bfloat(const uint16_t* p) { return {load_bfloat8(p), load_bfloat8(p + 8)}; }

inline float first_lane(Floats x) { return _mm256_cvtss_f32(x.low); }
inline uint16_t half_of(float x) { return _cvtss_sh(x, 0); }
inline float sum_lanes(Floats x) {
  alignas(32) float lane[8];
  _mm256_store_ps(lane, _mm256_add_ps(x.low, x.high));
  return ((lane[0] + lane[4]) + (lane[2] + lane[6])) + ((lane[1] + lane[5]) + (lane[3] + lane[7]));
}
inline float max_lanes(Floats x) {
  const __m256 eight = _mm256_max_ps(x.low, x.high);
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}
inline bool any_nan(Floats x) {
  return _mm256_movemask_ps(
      _mm256_or_ps(_mm256_cmp_ps(x.low, x.low, _CMP_UNORD_Q), _mm256_cmp_ps(x.high, x.high, _CMP_UNORD_Q)));
}

inline Ints zero_ints() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline Ints splat_ints(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
inline Ints round_to_ints(Floats x) { return {_mm256_cvtps_epi32(x.low), _mm256_cvtps_epi32(x.high)}; }
inline Floats to_floats(Ints x) { return {_mm256_cvtepi32_ps(x.low), _mm256_cvtepi32_ps(x.high)}; }
// 2^n by its exponent bits: n is within [-126, 127].
inline __m256 power_of_two(__m256i n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
inline Floats scale_by_power(Floats x, Ints n) {
  return {_mm256_mul_ps(x.low, power_of_two(n.low)), _mm256_mul_ps(x.high, power_of_two(n.high))};
}

inline Codes load_codes(const uint8_t* p) {
  return {_mm256_loadu_si256((const __m256i*)p), _mm256_loadu_si256((const __m256i*)(p + 32))};
}
inline Codes low_codes(Codes c) {
  const __m256i mask = _mm256_set1_epi8(15);
  return {_mm256_and_si256(c.low, mask), _mm256_and_si256(c.high, mask)};
}
inline Codes high_codes(Codes c) { return low_codes({_mm256_srli_epi16(c.low, 4), _mm256_srli_epi16(c.high, 4)}); }

inline __m256i four_bytes(const int8_t* x) {
  int32_t word;
  std::memcpy(&word, x, 4);
  return _mm256_set1_epi32(word);
}
#if defined(__AVXVNNI__)
inline __m256i dot4(__m256i sum, __m256i codes, __m256i x) { return _mm256_dpbusd_avx_epi32(sum, codes, x); }
inline __m256i dot4_nibbles(__m256i sum, __m256i codes, __m256i x) { return dot4(sum, codes, x); }
#else
// Bytes 0 and 2, then 1 and 3 of each lane as 16-bit numbers: a sum of two byte products may not fit 16 bits.
inline __m256i dot4(__m256i sum, __m256i codes, __m256i x) {
  const __m256i even =
      _mm256_madd_epi16(_mm256_and_si256(codes, _mm256_set1_epi16(255)), _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8));
  const __m256i odd = _mm256_madd_epi16(_mm256_srli_epi16(codes, 8), _mm256_srai_epi16(x, 8));
  return _mm256_add_epi32(sum, _mm256_add_epi32(even, odd));
}
inline __m256i dot4_nibbles(__m256i sum, __m256i codes, __m256i x) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(codes, x), _mm256_set1_epi16(1)));
}
#endif
inline Ints dot4(Ints sum, Codes codes, const int8_t* x) {
  const __m256i four = four_bytes(x);
  return {dot4(sum.low, codes.low, four), dot4(sum.high, codes.high, four)};
}
inline Ints dot4_nibbles(Ints sum, Codes codes, const int8_t* x) {
  const __m256i four = four_bytes(x);
  return {dot4_nibbles(sum.low, codes.low, four), dot4_nibbles(sum.high, codes.high, four)};
}

inline int32_t quantize32(const float* x, float inverse, int8_t* out) {
  alignas(32) int32_t codes[32];
  for (int i = 0; i < 32; i += 8)
    _mm256_store_si256((__m256i*)(codes + i),
                       _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(inverse))));
  int32_t sum = 0;
  for (int i = 0; i < 32; ++i) {
    out[i] = int8_t(codes[i]);
    sum += codes[i];
  }
  return sum;
}

// out[c][r] = in[r][c]; in[r] is the row r, out has 16 floats a row at the given stride.
inline void transpose16(const float* const* in, float* out, int stride) {
  for (int r = 0; r < 16; r += 4)
    for (int c = 0; c < 16; c += 4) {
      __m128 a = _mm_loadu_ps(in[r] + c), b = _mm_loadu_ps(in[r + 1] + c);
      __m128 d = _mm_loadu_ps(in[r + 2] + c), e = _mm_loadu_ps(in[r + 3] + c);
      _MM_TRANSPOSE4_PS(a, b, d, e);
      float* corner = out + c * stride + r;
      _mm_storeu_ps(corner, a);
      _mm_storeu_ps(corner + stride, b);
      _mm_storeu_ps(corner + 2 * stride, d);
      _mm_storeu_ps(corner + 3 * stride, e);
    }
}

}  // namespace mlxserve
