// One head of a fused q|k|v row, normed and rotated by one simdgroup. A lane owns pairs of channels.
#include <metal_stdlib>
#include <metal_simdgroup>
using namespace metal;

// Channels of pair p. The first ROT / 2 pairs rotate; the rest are neighbours.
template <int ROT>
int2 pair_channels(int p) {
  return p < ROT / 2 ? int2(p, p + ROT / 2) : int2(2 * p, 2 * p + 1);
}

// in, out: D channels. NORM: RMS norm with `weight` [D]. Rotates by position * inverse_frequencies[p], times `scale`.
// plain: copy only (a value head).
template <int D, int ROT, bool NORM, typename T, typename W>
void norm_rope(const device T* in, device T* out, const device W* weight, const device float* inverse_frequencies,
               int position, float eps, float scale, bool plain, uint lane) {
  float squares = 0;
  if (NORM) {
    for (int p = lane; p < D / 2; p += 32) {
      const int2 c = pair_channels<ROT>(p);
      const float a = float(in[c.x]), b = float(in[c.y]);
      squares = fma(a, a, fma(b, b, squares));
    }
    squares = simd_sum(squares);
  }
  const float norm = NORM && !plain ? precise::rsqrt(squares / D + eps) : 1.0f;
  for (int p = lane; p < D / 2; p += 32) {
    const int2 c = pair_channels<ROT>(p);
    float a = float(in[c.x]), b = float(in[c.y]);
    if (NORM && !plain) {
      a *= norm * float(weight[c.x]);
      b *= norm * float(weight[c.y]);
    }
    if (p < ROT / 2 && !plain) {
      const float angle = float(position) * inverse_frequencies[p];
      const float cosine = precise::cos(angle) * scale, sine = precise::sin(angle) * scale, x = a;
      a = x * cosine - b * sine;
      b = x * sine + b * cosine;
    }
    out[c.x] = T(a);
    out[c.y] = T(b);
  }
}
