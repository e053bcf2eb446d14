#include "matmul.h"

#include <array>
#include <utility>

#include "vector_math.h"

// Accumulators live in registers only if every loop over them is unrolled.
#define UNROLL _Pragma("GCC unroll 16")

namespace mlxserve {
namespace {

// An item is worth some microseconds and there are some of them for every worker, so that one that was held up does not
// hold up all.
constexpr int64_t kItemBytes = 32 << 10;  // of weights, once a panel
constexpr int kMostItems = 16;
constexpr int kPanels = 32;  // of one item: their activations stay in the second-level cache from tile to tile

// Results of one weight tile and one panel: [row][lane].
using Result = float[kRows][kLanes];

template <bool kWide>
struct Scales {
  static constexpr int kBytes = kLanes * (kWide ? 4 : 2);
  static Floats read(const uint8_t* p) {
    if constexpr (kWide)
      return load((const float*)p);
    else
      return load_half((const uint16_t*)p);
  }
};

// How far ahead of its use a weight is asked for. The hardware stops at every 4 KiB, less than one tile.
constexpr int kAhead = 8192;

// sums[r] = the integer dot products of one block of 32 inputs; x points at the panel's codes of the block.
template <int kBits, int R>
inline void dot_block(const uint8_t* codes, const int8_t* x, Ints (&sums)[R]) {
  if constexpr (kBits == 4) {
    UNROLL
    for (int step = 0; step < 4; ++step, codes += 64, x += 8 * R) {
      __builtin_prefetch(codes + kAhead);
      const Codes both = load_codes(codes), low = low_codes(both), high = high_codes(both);
      UNROLL
      for (int r = 0; r < R; ++r) sums[r] = dot4_nibbles(sums[r], low, x + 4 * r);
      UNROLL
      for (int r = 0; r < R; ++r) sums[r] = dot4_nibbles(sums[r], high, x + 4 * (R + r));
    }
  } else {
    UNROLL
    for (int step = 0; step < 8; ++step, codes += 64, x += 4 * R) {
      __builtin_prefetch(codes + kAhead);
      const Codes w = load_codes(codes);
      UNROLL
      for (int r = 0; r < R; ++r) sums[r] = dot4(sums[r], w, x + 4 * r);
    }
  }
}

template <int kBits, bool kWide, bool kSymmetric, int R>
void quantized_tile(const Weights& w, const uint8_t* tile, const Activations& x, int first, Result& result) {
  const int64_t blocks = x.inputs / kBlock;
  const int8_t* codes = x.codes + int64_t{first} * x.inputs;
  const float* steps = x.scales + first * blocks;
  const int32_t* sums_of_codes = x.sums + first * blocks;
  const float* totals = x.totals + first * blocks;
  Floats result_rows[R];
  UNROLL
  for (int r = 0; r < R; ++r) result_rows[r] = zero();
  for (int k = 0; k < x.inputs;) {
    const Floats scale = Scales<kWide>::read(tile);
    Floats bias{};
    if constexpr (!kSymmetric) bias = Scales<kWide>::read(tile + Scales<kWide>::kBytes);
    tile += Scales<kWide>::kBytes * (kSymmetric ? 1 : 2);
    for (const int end = k + w.group; k < end; k += kBlock) {
      Ints sums[R];
      UNROLL
      for (int r = 0; r < R; ++r)
        sums[r] = kSymmetric ? splat_ints(-(1 << (kBits - 1)) * sums_of_codes[r]) : zero_ints();
      dot_block<kBits, R>(tile, codes, sums);
      UNROLL
      for (int r = 0; r < R; ++r) {
        result_rows[r] = fma(mul(to_floats(sums[r]), splat(steps[r])), scale, result_rows[r]);
        if constexpr (!kSymmetric) result_rows[r] = fma(splat(totals[r]), bias, result_rows[r]);
      }
      tile += kBlock * kLanes * kBits / 8;
      codes += kBlock * R;
      steps += R, sums_of_codes += R, totals += R;
    }
  }
  UNROLL
  for (int r = 0; r < R; ++r) store(result[r], result_rows[r]);
}

template <Storage kStorage, int R>
void dense_tile(const Weights&, const uint8_t* tile, const Activations& x, int first, Result& result) {
  const float* values = x.dense + int64_t{first} * x.inputs;
  Floats rows[R];
  UNROLL
  for (int r = 0; r < R; ++r) rows[r] = zero();
  for (int k = 0; k < x.inputs; ++k, values += R) {
    Floats w;
    if constexpr (kStorage == kFloat32)
      w = load((const float*)tile + k * kLanes);
    else if constexpr (kStorage == kBFloat16)
      w = load_bfloat((const uint16_t*)tile + k * kLanes);
    else
      w = load_half((const uint16_t*)tile + k * kLanes);
    UNROLL
    for (int r = 0; r < R; ++r) rows[r] = fma(w, splat(values[r]), rows[r]);
  }
  UNROLL
  for (int r = 0; r < R; ++r) store(result[r], rows[r]);
}

using TileFunction = void (*)(const Weights&, const uint8_t*, const Activations&, int, Result&);
using TileTable = std::array<TileFunction, kRows>;  // [rows - 1]

template <int kBits, bool kWide, bool kSymmetric, size_t... R>
constexpr TileTable quantized_table(std::index_sequence<R...>) {
  return {quantized_tile<kBits, kWide, kSymmetric, int(R) + 1>...};
}

template <Storage kStorage, size_t... R>
constexpr TileTable dense_table(std::index_sequence<R...>) {
  return {dense_tile<kStorage, int(R) + 1>...};
}

TileFunction tile_function(const Weights& w, int rows) {
  using Rows = std::make_index_sequence<kRows>;
  static constexpr TileTable quantized[2][2][2] = {
      // [storage][wide scales][symmetric]
      {{quantized_table<4, false, false>(Rows{}), quantized_table<4, false, true>(Rows{})},
       {quantized_table<4, true, false>(Rows{}), quantized_table<4, true, true>(Rows{})}},
      {{quantized_table<8, false, false>(Rows{}), quantized_table<8, false, true>(Rows{})},
       {quantized_table<8, true, false>(Rows{}), quantized_table<8, true, true>(Rows{})}}};
  static constexpr TileTable dense[3] = {dense_table<kFloat32>(Rows{}), dense_table<kBFloat16>(Rows{}),
                                         dense_table<kHalf>(Rows{})};
  if (is_quantized(w)) return quantized[w.storage][w.wide_scales][w.symmetric][rows - 1];
  return dense[w.storage - kFloat32][rows - 1];
}

Floats with_bias(const Weights& w, int n, Floats y) {
  if (!w.bias) return y;
  if (n + kLanes <= w.outputs) return add(y, load(w.bias + n));
  alignas(64) float padded[kLanes] = {};
  for (int i = 0; n + i < w.outputs; ++i) padded[i] = w.bias[n + i];
  return add(y, load(padded));
}

// out[0 .. columns - 1] = y, or residual + alpha * y
void finish_row(const Epilogue& then, int64_t at, int columns, Floats y) {
  if (columns >= kLanes) {
    if (then.kind == Epilogue::kResidual) y = fma(splat(then.alpha), y, load(then.residual + at));
    return store(then.out + at, y);
  }
  alignas(64) float lanes[kLanes] = {};
  if (then.kind == Epilogue::kResidual) {
    for (int i = 0; i < columns; ++i) lanes[i] = then.residual[at + i];
    y = fma(splat(then.alpha), y, load(lanes));
  }
  store(lanes, y);
  for (int i = 0; i < columns; ++i) then.out[at + i] = lanes[i];
}

void finish_glu(const Epilogue& then, int64_t at, Floats gate, Floats up) {
  store(then.out + at, mul(then.activation == kSilu ? silu(gate) : gelu_tanh(gate), up));
}

// One weight tile (with kGlu the pair of a gate and an up tile) against the panels [begin, end).
void multiply_tile(const Weights& w, const Activations& x, const Panels& panels, const Epilogue& then, int t, int begin,
                   int end) {
  const bool glu = then.kind == Epilogue::kGlu;
  const uint8_t* tile = w.data + t * w.tile_bytes;
  const int n = t * kLanes, half = w.outputs / 2;
  const TileFunction larger = tile_function(w, panels.rows_of(0));
  const TileFunction smaller = tile_function(w, panels.size ? panels.size : 1);
  alignas(64) Result result, up;
  for (int p = begin; p < end; ++p) {
    const int first = panels.first_row(p), rows = panels.rows_of(p);
    const TileFunction product = p < panels.larger ? larger : smaller;
    product(w, tile, x, first, result);
    if (glu) product(w, tile + half / kLanes * w.tile_bytes, x, first, up);
    for (int r = 0; r < rows; ++r) {
      const Floats y = with_bias(w, n, load(result[r]));
      if (glu)
        finish_glu(then, int64_t{first + r} * half + n, y, with_bias(w, n + half, load(up[r])));
      else
        finish_row(then, int64_t{first + r} * w.outputs + n, w.outputs - n, y);
    }
  }
}

}  // namespace

void multiply(Worker& worker, const Weights& w, const Activations& x, const Panels& panels, const Epilogue& then) {
  const int tiles = then.kind == Epilogue::kGlu ? tiles_of(w) / 2 : tiles_of(w);
  const int blocks = (panels.count + kPanels - 1) / kPanels;
  const int64_t work = tiles * w.tile_bytes * panels.count;
  const int64_t most = int64_t{worker.count()} * kMostItems, wanted = work / kItemBytes + worker.count();
  const int chunk = int((tiles - 1) / (wanted < most ? wanted : most) + 1), chunks = (tiles - 1) / chunk + 1;
  worker.each(blocks * chunks, [&](int item) {
    const int begin = item / chunks * kPanels, end = begin + kPanels < panels.count ? begin + kPanels : panels.count;
    const int first = item % chunks * chunk;
    for (int t = first; t < first + chunk && t < tiles; ++t) multiply_tile(w, x, panels, then, t, begin, end);
  });
}

}  // namespace mlxserve
