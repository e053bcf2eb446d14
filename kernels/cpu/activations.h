// Rows of activations as the matmul reads them: panels of at most kRows rows, so that one pointer serves a tile.
//
// Quantised: each row in blocks of 32 inputs, x = scale * code, scale = max |x| / 127, codes signed 8 bit (rounded to
// nearest even). A panel of R rows is
//   codes  [K / 4][R][4]  int8      scales [K / 32][R]  float
//   sums   [K / 32][R]  int32       totals [K / 32][R]  float     sum of the codes; that sum times the scale
// Dense: [K][R] floats.
#pragma once

#include "simd.h"

namespace mlxserve {

// How `rows` rows are cut into panels: as evenly as can be, the larger panels first.
struct Panels {
  int rows, count, size, larger;  // `larger` panels of size + 1, the others of size

  explicit Panels(int rows) : rows(rows), count((rows + kRows - 1) / kRows), size(rows / count), larger(rows % count) {}

  int first_row(int panel) const { return panel * size + (panel < larger ? panel : larger); }
  int rows_of(int panel) const { return size + (panel < larger); }
  int panel_of(int row) const {
    const int boundary = larger * (size + 1);
    return row < boundary ? row / (size + 1) : larger + (row - boundary) / size;
  }
};

// The buffers of a packed matrix [rows, inputs]; a panel that begins at row r begins at r times a row's share.
struct Activations {
  int8_t* codes;
  float* scales;
  int32_t* sums;
  float* totals;
  float* dense;
  int inputs;
};

inline size_t quantized_bytes(int rows, int inputs) { return size_t(rows) * (inputs + inputs / kBlock * 12) + 4 * 64; }
inline size_t dense_bytes(int rows, int inputs) { return size_t(rows) * inputs * 4 + 64; }

// Lays the buffers out in memory of quantized_bytes or dense_bytes, 64-byte aligned.
Activations place_activations(uint8_t* memory, int rows, int inputs, bool quantized);

// Packs one row of floats; scale[k], when given, multiplies x[k] * factor (a norm).
void pack_row(const Activations& out, const Panels& panels, bool quantized, int row, const float* x, float factor,
              const float* scale);

// 1 / sqrt(mean(x^2) + eps)
float inverse_rms(const float* x, int n, float eps);

}  // namespace mlxserve
