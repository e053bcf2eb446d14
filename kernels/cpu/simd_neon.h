// Sixteen lanes as four quarters with Arm's Advanced SIMD and its dot product. The interface is described in simd.h.
// Every operation has the order and the rounding of the x86 headers, so all of them give the same bits.
#pragma once

#include <arm_neon.h>

#include <cstdint>

namespace mlxserve {

struct Floats {
  float32x4_t q[4];
};
struct Ints {
  int32x4_t q[4];
};
struct Codes {
  uint8x16_t q[4];
};

constexpr int kRows = 3;  // 12 integer and 12 float accumulators of the 32 registers

template <class Result, class Quarter>
inline Result quarters(const Quarter& quarter) {
  return {{quarter(0), quarter(1), quarter(2), quarter(3)}};
}
template <class Quarter>
inline Floats floats(const Quarter& quarter) {
  return quarters<Floats>(quarter);
}
template <class Quarter>
inline Ints ints(const Quarter& quarter) {
  return quarters<Ints>(quarter);
}

// max and min give the second operand where one is not a number, as x86's do; Arm's own would give the NaN.
inline float32x4_t larger(float32x4_t a, float32x4_t b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
inline float32x4_t smaller(float32x4_t a, float32x4_t b) { return vbslq_f32(vcltq_f32(a, b), a, b); }

inline Floats load(const float* p) {
  return floats([&](int i) { return vld1q_f32(p + 4 * i); });
}
inline void store(float* p, Floats x) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, x.q[i]);
}
inline Floats splat(float x) {
  return floats([&](int) { return vdupq_n_f32(x); });
}
inline Floats zero() { return splat(0); }
inline Floats add(Floats a, Floats b) {
  return floats([&](int i) { return vaddq_f32(a.q[i], b.q[i]); });
}
inline Floats sub(Floats a, Floats b) {
  return floats([&](int i) { return vsubq_f32(a.q[i], b.q[i]); });
}
inline Floats mul(Floats a, Floats b) {
  return floats([&](int i) { return vmulq_f32(a.q[i], b.q[i]); });
}
inline Floats div(Floats a, Floats b) {
  return floats([&](int i) { return vdivq_f32(a.q[i], b.q[i]); });
}
inline Floats fma(Floats a, Floats b, Floats c) {
  return floats([&](int i) { return vfmaq_f32(c.q[i], a.q[i], b.q[i]); });
}
inline Floats max(Floats a, Floats b) {
  return floats([&](int i) { return larger(a.q[i], b.q[i]); });
}
inline Floats min(Floats a, Floats b) {
  return floats([&](int i) { return smaller(a.q[i], b.q[i]); });
}
inline Floats absolute(Floats x) {
  return floats([&](int i) { return vabsq_f32(x.q[i]); });
}
inline Floats keep_if_greater(Floats x, Floats a, Floats b) {
  return floats([&](int i) { return vbslq_f32(vcgtq_f32(a.q[i], b.q[i]), x.q[i], vdupq_n_f32(0)); });
}
inline Floats keep_lanes(Floats x, int begin, int end, Floats other) {
  static const int32_t first[4] = {0, 1, 2, 3};
  return floats([&](int i) {
    const int32x4_t lane = vaddq_s32(vld1q_s32(first), vdupq_n_s32(4 * i));
    const uint32x4_t keep = vandq_u32(vcgeq_s32(lane, vdupq_n_s32(begin)), vcltq_s32(lane, vdupq_n_s32(end)));
    return vbslq_f32(keep, x.q[i], other.q[i]);
  });
}
inline Floats load_half(const uint16_t* p) {
  return floats([&](int i) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))); });
}
inline Floats load_bfloat(const uint16_t* p) {
  return floats([&](int i) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)); });
}

inline float first_lane(Floats x) { return vgetq_lane_f32(x.q[0], 0); }
inline uint16_t half_of(float x) { return vget_lane_u16(vreinterpret_u16_f16(vcvt_f16_f32(vdupq_n_f32(x))), 0); }
inline float sum_lanes(Floats x) {
  const float32x4_t four = vaddq_f32(vaddq_f32(x.q[0], x.q[2]), vaddq_f32(x.q[1], x.q[3]));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}
inline float max_lanes(Floats x) {
  const float32x4_t four = larger(larger(x.q[0], x.q[2]), larger(x.q[1], x.q[3]));
  const float32x4_t two = larger(four, vextq_f32(four, four, 2));
  return vgetq_lane_f32(larger(two, vextq_f32(two, two, 1)), 0);
}
inline bool any_nan(Floats x) {
  const uint32x4_t numbers = vandq_u32(vandq_u32(vceqq_f32(x.q[0], x.q[0]), vceqq_f32(x.q[1], x.q[1])),
                                       vandq_u32(vceqq_f32(x.q[2], x.q[2]), vceqq_f32(x.q[3], x.q[3])));
  return vminvq_u32(numbers) == 0;
}

inline Ints splat_ints(int32_t x) {
  return ints([&](int) { return vdupq_n_s32(x); });
}
inline Ints zero_ints() { return splat_ints(0); }
inline Ints round_to_ints(Floats x) {
  return ints([&](int i) { return vcvtnq_s32_f32(x.q[i]); });
}
inline Floats to_floats(Ints x) {
  return floats([&](int i) { return vcvtq_f32_s32(x.q[i]); });
}
// 2^n by its exponent bits: n is within [-126, 127].
inline Floats scale_by_power(Floats x, Ints n) {
  return floats([&](int i) {
    const int32x4_t exponent = vshlq_n_s32(vaddq_s32(n.q[i], vdupq_n_s32(127)), 23);
    return vmulq_f32(x.q[i], vreinterpretq_f32_s32(exponent));
  });
}

inline Codes load_codes(const uint8_t* p) {
  return quarters<Codes>([&](int i) { return vld1q_u8(p + 16 * i); });
}
inline Codes low_codes(Codes c) {
  return quarters<Codes>([&](int i) { return vandq_u8(c.q[i], vdupq_n_u8(15)); });
}
inline Codes high_codes(Codes c) {
  return quarters<Codes>([&](int i) { return vshrq_n_u8(c.q[i], 4); });
}

inline int8x16_t four_bytes(const int8_t* x) {
  int32_t word;
  std::memcpy(&word, x, 4);
  return vreinterpretq_s8_s32(vdupq_n_s32(word));
}
inline Ints dot4_nibbles(Ints sum, Codes codes, const int8_t* x) {
  const int8x16_t four = four_bytes(x);
  return ints([&](int i) { return vdotq_s32(sum.q[i], vreinterpretq_s8_u8(codes.q[i]), four); });
}
#if defined(__ARM_FEATURE_MATMUL_INT8)
inline Ints dot4(Ints sum, Codes codes, const int8_t* x) {
  const int8x16_t four = four_bytes(x);
  return ints([&](int i) { return vusdotq_s32(sum.q[i], codes.q[i], four); });
}
#else
// Both factors are signed here: codes - 128, and 128 times the sum of x after it.
inline Ints dot4(Ints sum, Codes codes, const int8_t* x) {
  const int8x16_t four = four_bytes(x);
  const int32x4_t rest = vshlq_n_s32(vdotq_s32(vdupq_n_s32(0), vdupq_n_s8(1), four), 7);
  return ints([&](int i) {
    const int8x16_t centred = vreinterpretq_s8_u8(veorq_u8(codes.q[i], vdupq_n_u8(128)));
    return vaddq_s32(vdotq_s32(sum.q[i], centred, four), rest);
  });
}
#endif

inline int32_t quantize32(const float* x, float inverse, int8_t* out) {
  int32x4_t sum = vdupq_n_s32(0);
  for (int i = 0; i < 32; i += 8) {
    const int32x4_t a = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + i), inverse));
    const int32x4_t b = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + i + 4), inverse));
    vst1_s8(out + i, vmovn_s16(vcombine_s16(vmovn_s32(a), vmovn_s32(b))));
    sum = vaddq_s32(sum, vaddq_s32(a, b));
  }
  return vaddvq_s32(sum);
}

// out[c][r] = in[r][c]; in[r] is the row r, out has 16 floats a row at the given stride.
inline void transpose16(const float* const* in, float* out, int stride) {
  for (int r = 0; r < 16; r += 4)
    for (int c = 0; c < 16; c += 4) {
      const float32x4_t a = vld1q_f32(in[r] + c), b = vld1q_f32(in[r + 1] + c);
      const float32x4_t d = vld1q_f32(in[r + 2] + c), e = vld1q_f32(in[r + 3] + c);
      const float64x2_t ab_even = vreinterpretq_f64_f32(vtrn1q_f32(a, b));
      const float64x2_t ab_odd = vreinterpretq_f64_f32(vtrn2q_f32(a, b));
      const float64x2_t de_even = vreinterpretq_f64_f32(vtrn1q_f32(d, e));
      const float64x2_t de_odd = vreinterpretq_f64_f32(vtrn2q_f32(d, e));
      float* corner = out + c * stride + r;
      vst1q_f32(corner, vreinterpretq_f32_f64(vtrn1q_f64(ab_even, de_even)));
      vst1q_f32(corner + stride, vreinterpretq_f32_f64(vtrn1q_f64(ab_odd, de_odd)));
      vst1q_f32(corner + 2 * stride, vreinterpretq_f32_f64(vtrn2q_f64(ab_even, de_even)));
      vst1q_f32(corner + 3 * stride, vreinterpretq_f32_f64(vtrn2q_f64(ab_odd, de_odd)));
    }
}

}  // namespace mlxserve
