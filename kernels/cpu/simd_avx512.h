// Sixteen lanes with AVX-512 and VNNI. The interface is described in simd.h.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace mlxserve {

using Floats = __m512;
using Ints = __m512i;
using Codes = __m512i;

constexpr int kRows = 12;  // 12 integer and 12 float accumulators of the 32 registers

inline Floats load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Floats x) { _mm512_storeu_ps(p, x); }
inline Floats splat(float x) { return _mm512_set1_ps(x); }
inline Floats zero() { return _mm512_setzero_ps(); }
inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
inline Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
inline Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
inline Floats absolute(Floats x) { return _mm512_abs_ps(x); }
inline Floats keep_if_greater(Floats x, Floats a, Floats b) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), x);
}
// lane i of x where begin <= i < end, else of `other`
inline Floats keep_lanes(Floats x, int begin, int end, Floats other) {
  const Ints lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __mmask16 keep =
      _mm512_cmplt_epi32_mask(lane, _mm512_set1_epi32(end)) & _mm512_cmpge_epi32_mask(lane, _mm512_set1_epi32(begin));
  return _mm512_mask_mov_ps(other, keep, x);
}
inline Floats load_half(const uint16_t* p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)p)); }
inline Floats load_bfloat(const uint16_t* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p)), 16));
}

inline float first_lane(Floats x) { return _mm512_cvtss_f32(x); }
inline uint16_t half_of(float x) { return _cvtss_sh(x, 0); }
inline float sum_lanes(Floats x) { return _mm512_reduce_add_ps(x); }
inline float max_lanes(Floats x) { return _mm512_reduce_max_ps(x); }
inline bool any_nan(Floats x) { return _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q); }

inline Ints zero_ints() { return _mm512_setzero_si512(); }
inline Ints splat_ints(int32_t x) { return _mm512_set1_epi32(x); }
inline Ints round_to_ints(Floats x) { return _mm512_cvtps_epi32(x); }
inline Floats to_floats(Ints x) { return _mm512_cvtepi32_ps(x); }
inline Floats scale_by_power(Floats x, Ints n) { return _mm512_scalef_ps(x, _mm512_cvtepi32_ps(n)); }

inline Codes load_codes(const uint8_t* p) { return _mm512_loadu_si512(p); }
inline Codes low_codes(Codes c) { return _mm512_and_si512(c, _mm512_set1_epi8(15)); }
inline Codes high_codes(Codes c) { return _mm512_and_si512(_mm512_srli_epi16(c, 4), _mm512_set1_epi8(15)); }
inline Ints dot4(Ints sum, Codes codes, const int8_t* x) {
  return _mm512_dpbusd_epi32(sum, codes, _mm512_set1_epi32(*(const int32_t*)x));
}
inline Ints dot4_nibbles(Ints sum, Codes codes, const int8_t* x) { return dot4(sum, codes, x); }

inline int32_t quantize32(const float* x, float inverse, int8_t* out) {
  Ints low = _mm512_cvtps_epi32(mul(load(x), splat(inverse)));
  Ints high = _mm512_cvtps_epi32(mul(load(x + 16), splat(inverse)));
  _mm_storeu_si128((__m128i*)out, _mm512_cvtepi32_epi8(low));
  _mm_storeu_si128((__m128i*)(out + 16), _mm512_cvtepi32_epi8(high));
  return _mm512_reduce_add_epi32(_mm512_add_epi32(low, high));
}

// out[c][r] = in[r][c]; in[r] is the row r, out has 16 floats a row at the given stride.
inline void transpose16(const float* const* in, float* out, int stride) {
  __m512 t[16], u[16];
  for (int r = 0; r < 16; r += 2) {
    __m512 a = load(in[r]), b = load(in[r + 1]);
    t[r] = _mm512_unpacklo_ps(a, b);
    t[r + 1] = _mm512_unpackhi_ps(a, b);
  }
  for (int r = 0; r < 16; r += 4)
    for (int h = 0; h < 2; ++h) {
      __m512d a = _mm512_castps_pd(t[r + h]), b = _mm512_castps_pd(t[r + 2 + h]);
      u[r + 2 * h] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, b));
      u[r + 2 * h + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, b));
    }
  // u[4q + i], 128-bit lane l: column 4l + i of the rows 4q .. 4q + 3.
  for (int i = 0; i < 4; ++i) {
    __m512 ab_low = _mm512_shuffle_f32x4(u[i], u[4 + i], 0x88), ab_high = _mm512_shuffle_f32x4(u[i], u[4 + i], 0xdd);
    __m512 cd_low = _mm512_shuffle_f32x4(u[8 + i], u[12 + i], 0x88);
    __m512 cd_high = _mm512_shuffle_f32x4(u[8 + i], u[12 + i], 0xdd);
    store(out + i * stride, _mm512_shuffle_f32x4(ab_low, cd_low, 0x88));
    store(out + (4 + i) * stride, _mm512_shuffle_f32x4(ab_high, cd_high, 0x88));
    store(out + (8 + i) * stride, _mm512_shuffle_f32x4(ab_low, cd_low, 0xdd));
    store(out + (12 + i) * stride, _mm512_shuffle_f32x4(ab_high, cd_high, 0xdd));
  }
}

}  // namespace mlxserve
