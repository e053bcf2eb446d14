#include "heads.h"

#include "activations.h"

namespace mlxserve {
namespace {

// x: the token's q or k of all `heads` heads; out[head_dim]: one head of it.
void turn_head(const AttentionLayer& layer, const Angles& angles, int token, const float* x, int heads, int head,
               const float* norm, float scale, float* out) {
  const int dim = layer.head_dim, half = layer.rotary / 2;
  const float* in = x + int64_t{head} * dim;
  if (layer.head_norm == kNoNorm) {
    for (int d = 0; d < dim; ++d) out[d] = in[d] * scale;
  } else {
    const bool wide = layer.head_norm == kFullWidth;
    const float factor = inverse_rms(wide ? x : in, wide ? heads * dim : dim, layer.norm_eps) * scale;
    if (wide) norm += int64_t{head} * dim;
    for (int d = 0; d < dim; ++d) out[d] = in[d] * factor * norm[d];
  }
  const float* cosine = angles.cosine + int64_t{token} * half;
  const float* sine = angles.sine + int64_t{token} * half;
  for (int d = 0; d < half; ++d) {
    const float a = out[d], b = out[half + d];
    out[d] = a * cosine[d] - b * sine[d];
    out[half + d] = b * cosine[d] + a * sine[d];
  }
}

}  // namespace

void load_query(const AttentionLayer& layer, const Angles& angles, int token, int head, const float* qkv, float* out) {
  turn_head(layer, angles, token, qkv + token * qkv_width(layer), layer.heads, head, layer.query_norm, layer.scale,
            out);
}

void write_pages(const AttentionLayer& layer, const Batch& batch, const Angles& angles, const float* qkv, int begin,
                 int end) {
  for (int t = begin; t < end; ++t) {
    const float* keys = qkv + t * qkv_width(layer) + int64_t{layer.heads} * layer.head_dim;
    const float* values = keys + int64_t{layer.kv_heads} * layer.head_dim;
    const int block = batch.slots[t] / layer.block_size, offset = batch.slots[t] % layer.block_size;
    for (int h = 0; h < layer.kv_heads; ++h) {
      turn_head(layer, angles, t, keys, layer.kv_heads, h, layer.key_norm, 1.0f,
                page_row(layer, layer.key_pages, block, h, offset));
      std::memcpy(page_row(layer, layer.value_pages, block, h, offset), values + int64_t{h} * layer.head_dim,
                  sizeof(float) * layer.head_dim);
    }
  }
}

}  // namespace mlxserve
