// Queries, keys and values on their way between the qkv rows and the pages: head norms, RoPE, and where a page row
// lies.
#pragma once

#include "attention.h"

namespace mlxserve {

inline int group_of(const AttentionLayer& layer) { return layer.heads / layer.kv_heads; }

// Floats of one row of qkv.
inline int64_t qkv_width(const AttentionLayer& layer) {
  return int64_t{layer.heads + 2 * layer.kv_heads} * layer.head_dim;
}

// The first key that a query at this position sees.
inline int oldest_key(const AttentionLayer& layer, int position) {
  return layer.window > 0 && position >= layer.window ? position - layer.window + 1 : 0;
}

inline float* page_row(const AttentionLayer& layer, float* pages, int block, int head, int offset) {
  return pages + ((int64_t{block} * layer.kv_heads + head) * layer.block_size + offset) * layer.head_dim;
}

// out[head_dim] = the token's query of one head, normed, turned and scaled.
void load_query(const AttentionLayer& layer, const Angles& angles, int token, int head, const float* qkv, float* out);

// Writes K and V of the tokens [begin, end) to their slots.
void write_pages(const AttentionLayer& layer, const Batch& batch, const Angles& angles, const float* qkv, int begin,
                 int end);

}  // namespace mlxserve
