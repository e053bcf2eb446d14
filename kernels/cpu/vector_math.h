// Elementary functions on sixteen lanes.
#pragma once

#include "simd.h"

namespace mlxserve {

// exp, relative error below 2e-7; exactly 0 under -87 (so that a masked key weighs nothing), inf never (clamped at 88).
// x = n ln 2 + r, |r| <= ln 2 / 2; exp(r) by its minimax polynomial (Cephes, expf).
inline Floats exp(Floats x) {
  Floats y = min(x, splat(88.0f));
  Ints n = round_to_ints(mul(max(y, splat(-88.0f)), splat(1.44269504088896341f)));
  Floats whole = to_floats(n);
  Floats r = fma(whole, splat(-0.693359375f), max(y, splat(-88.0f)));
  r = fma(whole, splat(2.12194440e-4f), r);
  Floats p = splat(1.9875691500e-4f);
  p = fma(p, r, splat(1.3981999507e-3f));
  p = fma(p, r, splat(8.3334519073e-3f));
  p = fma(p, r, splat(4.1665795894e-2f));
  p = fma(p, r, splat(1.6666665459e-1f));
  p = fma(p, r, splat(5.0000001201e-1f));
  Floats result = scale_by_power(add(fma(p, mul(r, r), r), splat(1.0f)), n);
  return keep_if_greater(result, y, splat(-87.0f));
}

// 1 / (1 + exp(-x))
inline Floats sigmoid(Floats x) { return div(splat(1.0f), add(splat(1.0f), exp(sub(zero(), x)))); }

inline Floats silu(Floats x) { return mul(x, sigmoid(x)); }

// tanh(x) = 2 sigmoid(2 x) - 1
inline Floats tanh(Floats x) { return fma(splat(2.0f), sigmoid(add(x, x)), splat(-1.0f)); }

// The tanh approximation: 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) = x sigmoid(2 sqrt(2 / pi) (...))
inline Floats gelu_tanh(Floats x) {
  Floats inner = mul(x, fma(mul(x, x), splat(0.044715f), splat(1.0f)));
  return mul(x, sigmoid(mul(inner, splat(1.5957691216057308f))));
}

}  // namespace mlxserve
