// Sixteen lanes on every CPU: the only header that knows an instruction set.
//
// Each simd_*.h defines, for its instruction set,
//   Floats  16 floats        Ints  16 int32        Codes  64 bytes: 4 weight codes for each of 16 lanes
// and these functions. A lane's result never depends on another lane, and `fma` rounds once, so that every caller that
// does the same operations in the same order gets the same bits (the build turns contraction off).
//   load, store, splat, zero, add, sub, mul, div, fma(a, b, c) = a * b + c, max, min, absolute, first_lane
//   keep_if_greater(x, a, b) = a > b ? x : 0        keep_lanes(x, begin, end, other) = x in lanes begin .. end - 1
//   sum_lanes and max_lanes (in one fixed order), any_nan, scale_by_power(x, n) = x * 2^n, round_to_ints, to_floats
//   load_half (16 IEEE halves), load_bfloat, half_of (one float), transpose16 (16 rows of 16 floats)
//   load_codes, low_codes and high_codes (the halves of every byte), zero_ints, splat_ints
//   dot4(sum, codes, x) : sum[lane] += codes[4 * lane + j] * x[j], j = 0..3, codes unsigned, x signed; exact
//   dot4_nibbles        : the same for codes below 16
//   quantize32(x, inverse, out) -> the sum of the codes: out[i] = round(x[i] * inverse), i = 0..31
// kRows is how many rows of activations a matmul tile keeps in registers.
#pragma once

#include <cstdint>
#include <cstring>

namespace mlxserve {
constexpr int kLanes = 16;  // outputs of one weight tile, keys of one score vector
constexpr int kBlock = 32;  // activations that share one scale
}  // namespace mlxserve

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512VNNI__)
#include "simd_avx512.h"
#elif defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#include "simd_avx2.h"
#elif defined(__ARM_FEATURE_DOTPROD)
#include "simd_neon.h"
#else
#error "this CPU has neither AVX-512 with VNNI, nor AVX2 with FMA and F16C, nor Arm's dot product"
#endif
