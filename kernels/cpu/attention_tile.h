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

// Which keys of a tile a row sees: tile positions [begin, end).
struct Visible {
  int begin, end;
};

// scores[r][key] = sum over d of queries[d][r] * keys[d][key]
template <int R>
inline void score_tile(const float* queries, const float* keys, int head_dim, float (*scores)[kTile]) {
  Floats low[R], high[R];
  UNROLL
  for (int r = 0; r < R; ++r) low[r] = high[r] = zero();
  for (int d = 0; d < head_dim; ++d, queries += R, keys += kTile) {
    const Floats a = load(keys), b = load(keys + kLanes);
    UNROLL
    for (int r = 0; r < R; ++r) {
      const Floats q = splat(queries[r]);
      low[r] = fma(q, a, low[r]);
      high[r] = fma(q, b, high[r]);
    }
  }
  UNROLL
  for (int r = 0; r < R; ++r) {
    store(scores[r], low[r]);
    store(scores[r] + kLanes, high[r]);
  }
}

// Turns scores into weights exp(score - best), moves the running maximum and sum, and returns in `shrink` what the values
// gathered so far have to be multiplied by.
template <int R>
inline void soften_tile(float (*scores)[kTile], const Visible* visible, float soft_cap, const Partial& running,
                        float* shrink) {
  for (int r = 0; r < R; ++r) {
    Floats low = load(scores[r]), high = load(scores[r] + kLanes);
    if (soft_cap > 0) {
      low = mul(splat(soft_cap), tanh(div(low, splat(soft_cap))));
      high = mul(splat(soft_cap), tanh(div(high, splat(soft_cap))));
    }
    const Floats hidden = splat(-INFINITY);
    low = keep_lanes(low, visible[r].begin, visible[r].end, hidden);
    high = keep_lanes(high, visible[r].begin - kLanes, visible[r].end - kLanes, hidden);
    const float before = running.best[r], largest = max_lanes(max(low, high));
    const float best = largest > before ? largest : before;
    low = exp(sub(low, splat(best)));
    high = exp(sub(high, splat(best)));
    store(scores[r], low);
    store(scores[r] + kLanes, high);
    shrink[r] = first_lane(exp(splat(before - best)));
    running.best[r] = best;
    running.weight[r] = std::fmaf(running.weight[r], shrink[r], sum_lanes(add(low, high)));
  }
}

// values[r] = values[r] * shrink[r] + sum over the tile's keys of weights[r][key] * rows[key], kVectors * 16 columns.
template <int R, int kVectors>
inline void gather_columns(const float (*weights)[kTile], const float* const* rows, int keys, int column, int head_dim,
                           const float* shrink, float* values) {
  Floats sums[kVectors][R];
  UNROLL
  for (int v = 0; v < kVectors; ++v)
    UNROLL
    for (int r = 0; r < R; ++r)
      sums[v][r] = mul(load(values + r * head_dim + column + v * kLanes), splat(shrink[r]));
  for (int k = 0; k < keys; ++k) {
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
  for (int v = 0; v < kVectors; ++v)
    UNROLL
    for (int r = 0; r < R; ++r) store(values + r * head_dim + column + v * kLanes, sums[v][r]);
}

// One tile: queries [head_dim][R], keys [head_dim][kTile] (transposed), value rows of the tile's first `count` keys.
template <int R>
void attend_tile(const float* queries, const float* keys, const float* const* value_rows, int count, int head_dim,
                 const Visible* visible, float soft_cap, const Partial& running) {
  alignas(64) float scores[R][kTile];
  float shrink[R];
  score_tile<R>(queries, keys, head_dim, scores);
  soften_tile<R>(scores, visible, soft_cap, running, shrink);
  int column = 0;
  for (; column + 2 * kLanes <= head_dim; column += 2 * kLanes)
    gather_columns<R, 2>(scores, value_rows, count, column, head_dim, shrink, running.values);
  if (column < head_dim) gather_columns<R, 1>(scores, value_rows, count, column, head_dim, shrink, running.values);
}

}  // namespace mlxserve
