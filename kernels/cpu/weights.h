// Weights in the order in which the matmul reads them: tiles of 16 outputs, one lane an output.
//
// A tile of a quantised matrix (w = scale * code + bias, as AffineTensor) is a row of groups along K:
//   scales [16], biases [16] (absent when symmetric), then the group's codes: for each 4 inputs, 4 bytes a lane;
//   with 4 bits, a byte holds input k in its low and input k + 4 in its high half (64 bytes = 8 inputs of 16 outputs).
// A tile of a dense matrix is [K][16]. Outputs past the last are zero weights.
#pragma once

#include <cstddef>
#include <cstdint>

#include "simd.h"

namespace mlxserve {

enum Storage : int32_t { kInt4 = 0, kInt8 = 1, kFloat32 = 2, kBFloat16 = 3, kHalf = 4 };

// One matrix. Mirrored by mlxserve/backends/torch/native/library.py.
struct Weights {
  const uint8_t* data;  // tiles
  const float* bias;    // [outputs] added to the product, or null
  int64_t tile_bytes;
  int32_t storage;      // Storage
  int32_t wide_scales;  // scales and biases are 0: halves, 1: floats
  int32_t symmetric;    // bias = -2^(bits - 1) * scale in every group, and is not stored
  int32_t outputs;      // N
  int32_t inputs;       // K, a multiple of 32 when quantised
  int32_t group;        // inputs that share a scale, a multiple of 32
};

inline int tiles_of(const Weights& w) { return (w.outputs + kLanes - 1) / kLanes; }

inline bool is_quantized(const Weights& w) { return w.storage <= kInt8; }

inline int64_t header_bytes(const Weights& w) {
  return int64_t{kLanes} * (w.wide_scales ? 4 : 2) * (w.symmetric ? 1 : 2);
}

// Sets tile_bytes from the other fields.
void set_tile_bytes(Weights& w);

// Writes one output row, `row`, of w into its (zeroed) tiles.
// words: the row's little-endian bit string of `bits`-bit codes; scales and biases: [K / group].
void pack_quantized_row(const Weights& w, int row, const uint32_t* words, int bits, const float* scales,
                        const float* biases);
// values: [K], of the storage's own type.
void pack_dense_row(const Weights& w, int row, const void* values);

// out[k] = w[row, k]
void unpack_row(const Weights& w, int row, float* out);

}  // namespace mlxserve
