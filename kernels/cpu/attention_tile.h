// The inner loops of attention: up to kQueryRows rows against one tile of kTile keys.
//
// Rows are independent: each does the same operations in the same order whatever the number of rows.
#pragma once

#include <cmath>

#include "attention_span.h"
#include "vector_math.h"

namespace mlxserve {

#define UNROLL _Pragma("GCC unroll 16")

constexpr float kNothing = -1e30f;  // the running maximum before any key; finite, so that differences stay numbers
constexpr int kTileVectors = kTile / kLanes;

// Which keys of a tile a row sees: tile positions [begin, end).
struct Visible {
  int begin, end;
};

// Vectors that R rows keep in registers at once: with few rows, enough chains of additions to hide their latency.
template <int R>
constexpr int kWide = R <= 4 ? 4 : 2;

// The page rows of the tile that comes next. They are asked for a few at a time between the arithmetic of the current
// tile: all at once, they would fill the queue to the memory and stop it.
class Ahead {
 public:
  explicit Ahead(int head_dim) : dim_(head_dim) {}

  void add(const float* row) { rows_[count_++] = row; }
  void ask(int rows) {
    for (; rows > 0 && asked_ < count_; --rows, ++asked_)
      for (int d = 0; d < dim_; d += kLanes) __builtin_prefetch(rows_[asked_] + d);
  }

 private:
  const float* rows_[2 * kTile];
  int count_ = 0, asked_ = 0;
  const int dim_;
};

// For the rows that come after the first ones of a tile.
struct NothingAhead {
  void ask(int) {}
};

// scores[r][key] = sum over d of queries[d][r] * keys[d][key], for kVectors * 16 keys.
template <int R, int kVectors, class Next>
inline void score_keys(const float* queries, const float* keys, int head_dim, float (*scores)[kTile], int first,
                       Next& next) {
  Floats sums[kVectors][R];
  UNROLL
  for (int v = 0; v < kVectors; ++v) UNROLL
  for (int r = 0; r < R; ++r) sums[v][r] = zero();
  keys += first;
  for (int d = 0; d < head_dim; ++d, queries += R, keys += kTile) {
    next.ask(1);
    Floats key[kVectors];
    UNROLL
    for (int v = 0; v < kVectors; ++v) key[v] = load(keys + v * kLanes);
    UNROLL
    for (int r = 0; r < R; ++r) {
      const Floats query = splat(queries[r]);
      UNROLL
      for (int v = 0; v < kVectors; ++v) sums[v][r] = fma(query, key[v], sums[v][r]);
    }
  }
  UNROLL
  for (int v = 0; v < kVectors; ++v) UNROLL
  for (int r = 0; r < R; ++r) store(scores[r] + first + v * kLanes, sums[v][r]);
}

// Turns a row's scores into weights exp(score - best), moves the row's running maximum and sum, and returns what the
// values gathered so far have to be multiplied by.
inline float soften(float* scores, Visible visible, float soft_cap, float* best, float* weight) {
  Floats x[kTileVectors], largest = splat(*best);
  UNROLL
  for (int v = 0; v < kTileVectors; ++v) {
    x[v] = load(scores + v * kLanes);
    if (soft_cap > 0) x[v] = mul(splat(soft_cap), tanh(div(x[v], splat(soft_cap))));
    x[v] = keep_lanes(x[v], visible.begin - v * kLanes, visible.end - v * kLanes, splat(-INFINITY));
    largest = max(largest, x[v]);
  }
  const float before = *best;
  *best = max_lanes(largest);
  Floats sum = zero();
  UNROLL
  for (int v = 0; v < kTileVectors; ++v) {
    x[v] = exp(sub(x[v], splat(*best)));
    store(scores + v * kLanes, x[v]);
    sum = add(sum, x[v]);
  }
  const float shrink = first_lane(exp(splat(before - *best)));
  *weight = std::fmaf(*weight, shrink, sum_lanes(sum));
  return shrink;
}

// values[r] = values[r] * shrink[r] + sum over the tile's keys of weights[r][key] * rows[key], for kVectors * 16
// columns.
template <int R, int kVectors, class Next>
inline void gather_columns(const float (*weights)[kTile], const float* const* rows, int keys, int column, int head_dim,
                           const float* shrink, float* values, Next& next) {
  Floats sums[kVectors][R];
  UNROLL
  for (int v = 0; v < kVectors; ++v) UNROLL
  for (int r = 0; r < R; ++r) sums[v][r] = mul(load(values + r * head_dim + column + v * kLanes), splat(shrink[r]));
  for (int k = 0; k < keys; ++k) {
    next.ask(1);
    Floats row[kVectors];
    UNROLL
    for (int v = 0; v < kVectors; ++v) row[v] = load(rows[k] + column + v * kLanes);
    UNROLL
    for (int r = 0; r < R; ++r) {
      const Floats weight = splat(weights[r][k]);
      UNROLL
      for (int v = 0; v < kVectors; ++v) sums[v][r] = fma(weight, row[v], sums[v][r]);
    }
  }
  UNROLL
  for (int v = 0; v < kVectors; ++v) UNROLL
  for (int r = 0; r < R; ++r) store(values + r * head_dim + column + v * kLanes, sums[v][r]);
}

// One tile: queries [head_dim][R], keys [head_dim][kTile] (transposed), value rows of the tile's first `count` keys.
template <int R, class Next>
void attend_tile(const float* queries, const float* keys, const float* const* value_rows, int count, int head_dim,
                 const Visible* visible, float soft_cap, const Partial& running, Next& next) {
  alignas(64) float scores[R][kTile];
  float shrink[R];
  for (int key = 0; key < count; key += 2 * kLanes) score_keys<R, 2>(queries, keys, head_dim, scores, key, next);
  for (int r = 0; r < R; ++r) shrink[r] = soften(scores[r], visible[r], soft_cap, running.best + r, running.weight + r);
  constexpr int wide = kWide<R>, width = wide * kLanes;
  int column = 0;
  for (; column + width <= head_dim; column += width)
    gather_columns<R, wide>(scores, value_rows, count, column, head_dim, shrink, running.values, next);
  for (; column < head_dim; column += kLanes)
    gather_columns<R, 1>(scores, value_rows, count, column, head_dim, shrink, running.values, next);
}

}  // namespace mlxserve
