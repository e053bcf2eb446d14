// Softmax attention of some rows over one span of keys, and how spans are put together.
#pragma once

#include "heads.h"

namespace mlxserve {

// Rows (token, query head of the group) of one sequence and KV head, token by token.
struct Rows {
  int sequence, kv_head;
  int first, tokens;  // flat tokens
};

// Partial softmax of a row over some keys: the largest score, the sum of exp(score - best), and that sum of the values.
struct Partial {
  float* best;    // [rows]
  float* weight;  // [rows]
  float* values;  // [rows, head_dim]

  Partial from(int row, int dim) const { return {best + row, weight + row, values + int64_t{row} * dim}; }
};

// Floats of a Partial, and one laid out in memory that large.
inline int64_t partial_floats(int64_t rows, int dim) { return rows * (dim + 2); }
inline Partial place_partial(float* memory, int64_t rows, int dim) {
  return {memory + rows * dim, memory + rows * (dim + 1), memory};
}

// No keys yet.
void clear(const Partial& partial, int rows, int dim);

// total = total and other together, a row at a time.
void merge(const Partial& total, const Partial& other, int rows, int dim);

// out[head_dim] = the values of one row, weighed; the head's sink takes its part.
void finish(const AttentionLayer& layer, int head, const Partial& row, float* out);

// What attend_span needs of a worker.
struct SpanBuffers {
  float* queries;  // panels of [head_dim][rows of the panel]
  float* keys;     // [head_dim][kTile]

  static int64_t floats(int rows, int dim) { return int64_t{rows} * dim + kTile * dim; }
  SpanBuffers(float* memory, int rows, int dim) : queries(memory), keys(memory + int64_t{rows} * dim) {}
};

void load_queries(const AttentionLayer& layer, const Angles& angles, const Rows& rows, const float* qkv,
                  const SpanBuffers& buffers);

// The rows over the keys that they see of the span; `rows` were loaded before.
void attend_span(const AttentionLayer& layer, const Batch& batch, const Rows& rows, int span,
                 const SpanBuffers& buffers, const Partial& result);

}  // namespace mlxserve
