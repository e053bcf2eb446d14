#include "attention.h"

#include "attention_span.h"

namespace mlxserve {
namespace {

constexpr int kTokens = 16;  // of one work item

// One sequence of the batch. With few tokens its spans are work items of their own (a decode would leave threads idle
// otherwise) and their partial results are put together afterwards; with many, its pieces of kTokens tokens are.
struct Work {
  int sequence, first, tokens, first_span, spans;

  Work(const AttentionLayer& layer, const Batch& batch, int s) : sequence(s), first(batch.query_starts[s]) {
    tokens = batch.query_starts[s + 1] - first;
    first_span = oldest_key(layer, batch.positions[first]) / kSpan;
    spans = (batch.context_lens[s] - 1) / kSpan - first_span + 1;
  }
  bool by_span() const { return tokens <= kTokens; }
  int pieces() const { return by_span() ? spans : (tokens + kTokens - 1) / kTokens; }
  // Rows of partial results, all spans together.
  int64_t partial_rows(const AttentionLayer& layer) const {
    return by_span() ? int64_t{spans} * tokens * layer.heads : 0;
  }
};

// Sums over the sequences.
struct Totals {
  int items = 0;
  int64_t partial_rows = 0;

  Totals(const AttentionLayer& layer, const Batch& batch) {
    for (int s = 0; s < batch.sequences; ++s) {
      const Work work(layer, batch, s);
      items += work.pieces() * layer.kv_heads;
      partial_rows += work.partial_rows(layer);
    }
  }
};

// Walks over the sequences; a worker's items come in ascending order.
struct Cursor {
  const AttentionLayer& layer;
  const Batch& batch;
  Work work;
  int first_item = 0;  // of the sequence
  float* partials;     // of the sequence

  Cursor(const AttentionLayer& layer, const Batch& batch, float* partials)
      : layer(layer), batch(batch), work(layer, batch, 0), partials(partials) {}

  void advance() {
    first_item += work.pieces() * layer.kv_heads;
    partials += partial_floats(work.partial_rows(layer), layer.head_dim);
    work = Work(layer, batch, work.sequence + 1);
  }
  void seek(int item) {
    while (item >= first_item + work.pieces() * layer.kv_heads) advance();
  }
};

int most_rows(const AttentionLayer& layer) { return kTokens * group_of(layer); }

// A worker's buffers.
struct Own {
  SpanBuffers span;
  Partial total, part;

  Own(float* memory, int rows, int dim)
      : span(memory, rows, dim),
        total(place_partial(memory + SpanBuffers::floats(rows, dim), rows, dim)),
        part(place_partial(memory + SpanBuffers::floats(rows, dim) + partial_floats(rows, dim), rows, dim)) {}
};

// A piece of kTokens tokens over all its spans.
void attend_piece(const AttentionLayer& layer, const Batch& batch, const Angles& angles, const Rows& rows,
                  const float* qkv, const Own& own, float* out) {
  const int group = group_of(layer), count = rows.tokens * group, dim = layer.head_dim;
  const int* positions = batch.positions + rows.first;
  load_queries(layer, angles, rows, qkv, own.span);
  clear(own.total, count, dim);
  const int last = positions[rows.tokens - 1] / kSpan;
  for (int span = oldest_key(layer, positions[0]) / kSpan; span <= last; ++span) {
    attend_span(layer, batch, rows, span, own.span, own.part);
    merge(own.total, own.part, count, dim);
  }
  for (int r = 0; r < count; ++r) {
    const int head = rows.kv_head * group + r % group;
    finish(layer, head, own.total.from(r, dim), out + (int64_t{rows.first + r / group} * layer.heads + head) * dim);
  }
}

// The partial results of one span and KV head: [spans][kv_heads][tokens * group] rows, each block of them laid out as
// one.
Partial partial_of(const AttentionLayer& layer, const Work& work, float* partials, int span, int kv_head) {
  const int64_t rows = int64_t{work.tokens} * group_of(layer);
  return place_partial(partials + (int64_t{span} * layer.kv_heads + kv_head) * partial_floats(rows, layer.head_dim),
                       rows, layer.head_dim);
}

void merge_spans(const AttentionLayer& layer, const Work& work, int kv_head, float* partials, float* out) {
  const int group = group_of(layer), rows = work.tokens * group, dim = layer.head_dim;
  const Partial total = partial_of(layer, work, partials, 0, kv_head);
  for (int span = 1; span < work.spans; ++span)
    merge(total, partial_of(layer, work, partials, span, kv_head), rows, dim);
  for (int r = 0; r < rows; ++r) {
    const int head = kv_head * group + r % group;
    finish(layer, head, total.from(r, dim), out + (int64_t{work.first + r / group} * layer.heads + head) * dim);
  }
}

}  // namespace

AttentionScratch attention_scratch(const AttentionLayer& layer, const Batch& batch) {
  const int64_t rows = Totals(layer, batch).partial_rows;
  const int most = most_rows(layer), dim = layer.head_dim;
  return {sizeof(float) * partial_floats(rows, dim),
          sizeof(float) * (SpanBuffers::floats(most, dim) + 2 * partial_floats(most, dim))};
}

void attend(Worker& worker, const AttentionLayer& layer, const Batch& batch, const Angles& angles, const float* qkv,
            float* out, uint8_t* shared, uint8_t* own_memory) {
  const Own own((float*)own_memory, most_rows(layer), layer.head_dim);
  worker.each_range(batch.tokens, [&](int begin, int end) { write_pages(layer, batch, angles, qkv, begin, end); });
  const Totals totals(layer, batch);
  Cursor at(layer, batch, (float*)shared);
  worker.each(totals.items, [&](int item) {
    at.seek(item);
    const Work& work = at.work;
    const int piece = (item - at.first_item) / layer.kv_heads, head = (item - at.first_item) % layer.kv_heads;
    if (work.by_span()) {
      const Rows rows{work.sequence, head, work.first, work.tokens};
      load_queries(layer, angles, rows, qkv, own.span);
      attend_span(layer, batch, rows, work.first_span + piece, own.span,
                  partial_of(layer, work, at.partials, piece, head));
    } else {
      const int begin = (work.pieces() - 1 - piece) * kTokens, left = work.tokens - begin;  // the longest first
      attend_piece(layer, batch, angles, {work.sequence, head, work.first + begin, left < kTokens ? left : kTokens},
                   qkv, own, out);
    }
  });
  if (totals.partial_rows == 0) return;
  Cursor merged(layer, batch, (float*)shared);
  worker.each(batch.sequences, [&](int sequence) {
    while (merged.work.sequence < sequence) merged.advance();
    if (merged.work.by_span())
      for (int h = 0; h < layer.kv_heads; ++h) merge_spans(layer, merged.work, h, merged.partials, out);
  });
}

}  // namespace mlxserve
