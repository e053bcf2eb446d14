#include "activations.h"

#include <cmath>

namespace mlxserve {
namespace {

uint8_t* aligned(uint8_t* p) { return (uint8_t*)((uintptr_t(p) + 63) & ~uintptr_t{63}); }

// Reads x[k .. k + 31] times factor and scale into out.
void scaled_block(const float* x, float factor, const float* scale, int k, float* out) {
  for (int i = 0; i < kBlock; i += kLanes) {
    Floats v = mul(load(x + k + i), splat(factor));
    store(out + i, scale ? mul(v, load(scale + k + i)) : v);
  }
}

void quantize_row(const Activations& out, int first, int rows, int row, const float* x, float factor,
                  const float* scale) {
  const int blocks = out.inputs / kBlock;
  int8_t* codes = out.codes + int64_t{first} * out.inputs;
  const int64_t side = int64_t{first} * blocks + row;
  alignas(64) float values[kBlock];
  alignas(64) int8_t quantized[kBlock];
  for (int b = 0; b < blocks; ++b) {
    scaled_block(x, factor, scale, b * kBlock, values);
    const Floats low = load(values), high = load(values + kLanes);
    const float largest = max_lanes(max(absolute(low), absolute(high)));
    // A code cannot hold not-a-number; the scale can, and the sampler reports it.
    const float step = any_nan(add(low, high)) ? NAN : largest / 127.0f;
    const int32_t sum = quantize32(values, largest > 0 ? 127.0f / largest : 0.0f, quantized);
    for (int i = 0; i < kBlock; i += 4)
      std::memcpy(codes + (int64_t{b * kBlock + i} / 4 * rows + row) * 4, quantized + i, 4);
    out.scales[side + int64_t{b} * rows] = step;
    out.sums[side + int64_t{b} * rows] = sum;
    out.totals[side + int64_t{b} * rows] = step * float(sum);
  }
}

}  // namespace

Activations place_activations(uint8_t* memory, int rows, int inputs, bool quantized) {
  const size_t blocks = size_t(rows) * (inputs / kBlock);
  Activations a{};
  a.inputs = inputs;
  if (!quantized) {
    a.dense = (float*)aligned(memory);
    return a;
  }
  a.codes = (int8_t*)aligned(memory);
  a.scales = (float*)aligned((uint8_t*)a.codes + size_t(rows) * inputs);
  a.sums = (int32_t*)aligned((uint8_t*)(a.scales + blocks));
  a.totals = (float*)aligned((uint8_t*)(a.sums + blocks));
  return a;
}

void pack_row(const Activations& out, const Panels& panels, bool quantized, int row, const float* x, float factor,
              const float* scale) {
  const int panel = panels.panel_of(row);
  const int first = panels.first_row(panel), rows = panels.rows_of(panel);
  if (quantized) return quantize_row(out, first, rows, row - first, x, factor, scale);
  float* dense = out.dense + int64_t{first} * out.inputs + (row - first);
  for (int k = 0; k < out.inputs; ++k) dense[int64_t{k} * rows] = scale ? x[k] * factor * scale[k] : x[k] * factor;
}

float inverse_rms(const float* x, int n, float eps) {
  Floats sum = zero();
  int k = 0;
  for (; k + kLanes <= n; k += kLanes) sum = fma(load(x + k), load(x + k), sum);
  float total = sum_lanes(sum);
  for (; k < n; ++k) total = std::fmaf(x[k], x[k], total);
  return 1.0f / std::sqrt(total / float(n) + eps);
}

}  // namespace mlxserve
