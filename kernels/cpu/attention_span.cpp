#include "attention_span.h"

#include <cmath>

#include "attention_tile.h"

namespace mlxserve {
namespace {

template <class Next>
using TileFunction = void (*)(const float*, const float*, const float* const*, int, int, const Visible*, float,
                              const Partial&, Next&);
template <class Next>
constexpr TileFunction<Next> kTileFunctions[kQueryRows] = {
    attend_tile<1, Next>, attend_tile<2, Next>, attend_tile<3, Next>, attend_tile<4, Next>,
    attend_tile<5, Next>, attend_tile<6, Next>, attend_tile<7, Next>, attend_tile<8, Next>};

// The row of a key past the context.
alignas(64) constexpr float kNoKey[kMaxHeadDim] = {};

int panel_rows(int rows, int at) { return rows - at < kQueryRows ? rows - at : kQueryRows; }

Ahead rows_ahead(const AttentionLayer& layer, const int32_t* table, int head, int first, int end) {
  Ahead ahead(layer.head_dim);
  for (int k = first; k < end && k < first + kTile; ++k) {
    const int block = table[k / layer.block_size], offset = k % layer.block_size;
    ahead.add(page_row(layer, layer.key_pages, block, head, offset));
    ahead.add(page_row(layer, layer.value_pages, block, head, offset));
  }
  return ahead;
}

// Transposes the tile's keys and finds its value rows. What lies past `count` is never read: old pages may hold
// anything.
void load_tile(const AttentionLayer& layer, const int32_t* table, int head, int first, int count,
               const SpanBuffers& buffers, const float** value_rows, Ahead& ahead) {
  const float* key_rows[kTile];
  const int padded = (count + kLanes - 1) / kLanes * kLanes;
  for (int k = 0; k < padded; ++k) {
    key_rows[k] = kNoKey;
    if (k >= count) continue;
    const int block = table[(first + k) / layer.block_size], offset = (first + k) % layer.block_size;
    key_rows[k] = page_row(layer, layer.key_pages, block, head, offset);
    value_rows[k] = page_row(layer, layer.value_pages, block, head, offset);
  }
  for (int keys = 0; keys < padded; keys += kLanes)
    for (int column = 0; column < layer.head_dim; column += kLanes) {
      const float* corner[kLanes];
      for (int k = 0; k < kLanes; ++k) corner[k] = key_rows[keys + k] + column;
      ahead.ask(1);
      transpose16(corner, buffers.keys + column * kTile + keys, kTile);
    }
}

}  // namespace

void clear(const Partial& partial, int rows, int dim) {
  for (int r = 0; r < rows; ++r) partial.best[r] = kNothing, partial.weight[r] = 0;
  std::memset(partial.values, 0, sizeof(float) * rows * dim);
}

void merge(const Partial& total, const Partial& other, int rows, int dim) {
  for (int r = 0; r < rows; ++r) {
    const float top = total.best[r] > other.best[r] ? total.best[r] : other.best[r];
    const float keep = first_lane(exp(splat(total.best[r] - top))), take = first_lane(exp(splat(other.best[r] - top)));
    float* values = total.values + int64_t{r} * dim;
    const float* others = other.values + int64_t{r} * dim;
    for (int d = 0; d < dim; d += kLanes)
      store(values + d, fma(load(others + d), splat(take), mul(load(values + d), splat(keep))));
    total.weight[r] = std::fmaf(other.weight[r], take, total.weight[r] * keep);
    total.best[r] = top;
  }
}

void finish(const AttentionLayer& layer, int head, const Partial& row, float* out) {
  float share = 1.0f / *row.weight;
  if (layer.sinks) {
    const float sink = layer.sinks[head], top = *row.best > sink ? *row.best : sink;
    const float keep = first_lane(exp(splat(*row.best - top)));
    share = keep / std::fmaf(*row.weight, keep, first_lane(exp(splat(sink - top))));
  }
  for (int d = 0; d < layer.head_dim; d += kLanes) store(out + d, mul(load(row.values + d), splat(share)));
}

void load_queries(const AttentionLayer& layer, const Angles& angles, const Rows& rows, const float* qkv,
                  const SpanBuffers& buffers) {
  const int group = group_of(layer), count = rows.tokens * group, dim = layer.head_dim;
  alignas(64) float query[kMaxHeadDim];
  for (int at = 0; at < count; at += kQueryRows) {
    const int width = panel_rows(count, at);
    float* panel = buffers.queries + int64_t{at} * dim;
    for (int r = 0; r < width; ++r) {
      const int head = rows.kv_head * group + (at + r) % group;
      load_query(layer, angles, rows.first + (at + r) / group, head, qkv, query);
      for (int d = 0; d < dim; ++d) panel[d * width + r] = query[d];
    }
  }
}

void attend_span(const AttentionLayer& layer, const Batch& batch, const Rows& rows, int span,
                 const SpanBuffers& buffers, const Partial& result) {
  const int group = group_of(layer), count = rows.tokens * group, dim = layer.head_dim;
  const int32_t* table = batch.block_tables + int64_t{rows.sequence} * batch.table_width;
  const int* positions = batch.positions + rows.first;
  const int last = positions[rows.tokens - 1], oldest = oldest_key(layer, positions[0]);
  const int begin = oldest > span * kSpan ? oldest / kTile * kTile : span * kSpan;
  const int end = last + 1 < (span + 1) * kSpan ? last + 1 : (span + 1) * kSpan;
  clear(result, count, dim);
  for (int tile = begin; tile < end; tile += kTile) {
    const float* value_rows[kTile];
    const int keys = end - tile < kTile ? end - tile : kTile;
    Ahead ahead = rows_ahead(layer, table, rows.kv_head, tile + kTile, end);
    NothingAhead nothing;
    load_tile(layer, table, rows.kv_head, tile, keys, buffers, value_rows, ahead);
    for (int at = 0; at < count; at += kQueryRows) {
      const int width = panel_rows(count, at);
      if (positions[(at + width - 1) / group] < tile) continue;
      Visible visible[kQueryRows];
      for (int r = 0; r < width; ++r) {
        const int position = positions[(at + r) / group];
        visible[r] = {oldest_key(layer, position) - tile, position + 1 - tile};
      }
      const float* queries = buffers.queries + int64_t{at} * dim;
      const Partial panel = result.from(at, dim);
      if (at == 0)
        kTileFunctions<Ahead>[width - 1](queries, buffers.keys, value_rows, keys, dim, visible, layer.soft_cap, panel,
                                         ahead);
      else
        kTileFunctions<NothingAhead>[width - 1](queries, buffers.keys, value_rows, keys, dim, visible, layer.soft_cap,
                                                panel, nothing);
    }
  }
}

}  // namespace mlxserve
