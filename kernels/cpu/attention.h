// Attention over KV pages: RoPE, the page write, and softmax(q k') v for a ragged batch of sequences.
//
// Pages: [num_blocks, kv_heads, block_size, head_dim] floats, one pool for K and one for V.
// Keys are taken in spans of kSpan positions, each span in tiles of kTile, both at absolute positions; a span's partial
// result is merged into the row's in order. So a row's bits depend on its own sequence only: not on the batch, not on
// whether it is decoded or prefilled, not on the chunk. (Pinned by tests/cpu/test_attention.py.)
#pragma once

#include <cstdint>

#include "team.h"

namespace mlxserve {

constexpr int kTile = 32;      // keys whose scores are computed together
constexpr int kSpan = 128;     // keys of one work item when decoding
constexpr int kQueryRows = 8;  // rows of queries (token, head) held in registers
constexpr int kMaxHeadDim = 256;

enum HeadNorm : int32_t { kNoNorm = 0, kPerHead = 1, kFullWidth = 2 };

// One layer's attention. Mirrored by mlxserve/backends/torch/native/library.py.
struct AttentionLayer {
  float* key_pages;
  float* value_pages;
  const float* query_norm;  // [head_dim] or [heads * head_dim], or null
  const float* key_norm;
  const float* sinks;  // [heads] a logit that takes part in the softmax and has no value; or null
  int32_t heads, kv_heads, head_dim, block_size;
  int32_t window;     // a row sees this many keys, itself included; 0: all
  int32_t rotary;     // leading dimensions that RoPE turns, as two halves; 0: none
  int32_t head_norm;  // HeadNorm
  float scale, soft_cap, norm_eps;
};

// One step's sequences, as in ForwardBatch.
struct Batch {
  const int32_t* positions;     // [tokens]
  const int32_t* slots;         // [tokens] block * block_size + offset
  const int32_t* query_starts;  // [sequences + 1]
  const int32_t* context_lens;  // [sequences]
  const int32_t* block_tables;  // [sequences, table_width]
  int32_t tokens, sequences, table_width;
};

// Angles of one kind of RoPE for the step's tokens: [tokens, rotary / 2] each.
struct Angles {
  const float* cosine;
  const float* sine;
};

// Scratch of one call, in bytes: `shared` once, `own` for every worker.
struct AttentionScratch {
  size_t shared, own;
};
AttentionScratch attention_scratch(const AttentionLayer& layer, const Batch& batch);

// qkv: [tokens, (heads + 2 kv_heads) * head_dim] as q | k | v; out: [tokens, heads * head_dim]. Several phases.
void attend(Worker& worker, const AttentionLayer& layer, const Batch& batch, const Angles& angles, const float* qkv,
            float* out, uint8_t* shared, uint8_t* own);

}  // namespace mlxserve
