#include "weights.h"

namespace mlxserve {
namespace {

float float_of_half(uint16_t x) {
  alignas(64) uint16_t halves[kLanes] = {x};
  alignas(64) float lanes[kLanes];
  store(lanes, load_half(halves));
  return lanes[0];
}

float float_of_bfloat(uint16_t x) {
  uint32_t bits = uint32_t{x} << 16;
  float value;
  std::memcpy(&value, &bits, 4);
  return value;
}

int64_t dense_bytes(const Weights& w) { return w.storage == kFloat32 ? 4 : 2; }

uint8_t* tile_of(const Weights& w, int row) { return const_cast<uint8_t*>(w.data) + row / kLanes * w.tile_bytes; }

int64_t group_bytes(const Weights& w) {
  return header_bytes(w) + int64_t{kLanes} * w.group / (w.storage == kInt4 ? 2 : 1);
}

void put_scale(const Weights& w, uint8_t* at, int lane, float value) {
  if (w.wide_scales) {
    std::memcpy(at + 4 * lane, &value, 4);
  } else {
    uint16_t half = half_of(value);
    std::memcpy(at + 2 * lane, &half, 2);
  }
}

float get_scale(const Weights& w, const uint8_t* at, int lane) {
  if (!w.wide_scales) {
    uint16_t half;
    std::memcpy(&half, at + 2 * lane, 2);
    return float_of_half(half);
  }
  float value;
  std::memcpy(&value, at + 4 * lane, 4);
  return value;
}

// Where the code of input k (within its group) lies: its byte and the shift within it.
struct Place {
  int64_t byte;
  int shift;
};

Place place_of(const Weights& w, int k, int lane) {
  if (w.storage == kInt8) return {int64_t{k} / 4 * 64 + lane * 4 + k % 4, 0};
  return {int64_t{k} / 8 * 64 + lane * 4 + k % 4, k % 8 / 4 * 4};
}

}  // namespace

void set_tile_bytes(Weights& w) {
  w.tile_bytes = is_quantized(w) ? w.inputs / w.group * group_bytes(w) : int64_t{w.inputs} * kLanes * dense_bytes(w);
}

void pack_quantized_row(const Weights& w, int row, const uint32_t* words, int bits, const float* scales,
                        const float* biases) {
  const int lane = row % kLanes;
  const int64_t scale_bytes = int64_t{kLanes} * (w.wide_scales ? 4 : 2);
  uint8_t* group = tile_of(w, row);
  int64_t bit = 0;
  for (int g = 0; g < w.inputs / w.group; ++g, group += group_bytes(w)) {
    put_scale(w, group, lane, scales[g]);
    if (!w.symmetric) put_scale(w, group + scale_bytes, lane, biases[g]);
    uint8_t* codes = group + header_bytes(w);
    for (int k = 0; k < w.group; ++k, bit += bits) {
      uint64_t pair = words[bit / 32];
      if (bit % 32 + bits > 32) pair |= uint64_t{words[bit / 32 + 1]} << 32;
      const Place place = place_of(w, k, lane);
      codes[place.byte] |= uint8_t((pair >> (bit % 32) & ((1u << bits) - 1)) << place.shift);
    }
  }
}

void pack_dense_row(const Weights& w, int row, const void* values) {
  const int64_t bytes = dense_bytes(w);
  uint8_t* out = tile_of(w, row) + row % kLanes * bytes;
  for (int k = 0; k < w.inputs; ++k) std::memcpy(out + k * kLanes * bytes, (const uint8_t*)values + k * bytes, bytes);
}

void unpack_row(const Weights& w, int row, float* out) {
  const int lane = row % kLanes;
  const uint8_t* tile = tile_of(w, row);
  if (w.storage == kFloat32) {
    for (int k = 0; k < w.inputs; ++k) std::memcpy(out + k, tile + 4 * (k * kLanes + lane), 4);
    return;
  }
  if (!is_quantized(w)) {
    for (int k = 0; k < w.inputs; ++k) {
      uint16_t bits;
      std::memcpy(&bits, tile + 2 * (k * kLanes + lane), 2);
      out[k] = w.storage == kHalf ? float_of_half(bits) : float_of_bfloat(bits);
    }
    return;
  }
  const uint8_t mask = w.storage == kInt4 ? 15 : 255;
  for (int k = 0; k < w.inputs; ++k) {
    const uint8_t* group = tile + k / w.group * group_bytes(w);
    const float scale = get_scale(w, group, lane);
    const float bias = w.symmetric ? -scale * (w.storage == kInt4 ? 8 : 128)
                                   : get_scale(w, group + int64_t{kLanes} * (w.wide_scales ? 4 : 2), lane);
    const Place place = place_of(w, k % w.group, lane);
    out[k] = scale * float(group[header_bytes(w) + place.byte] >> place.shift & mask) + bias;
  }
}

}  // namespace mlxserve
