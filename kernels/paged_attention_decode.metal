//! kernel paged_attention_decode
//! include attention_parts.h
//! inputs queries key_pages value_pages block_tables context_lens query_starts work sinks after sizes factors
//! outputs out
// Attention of 1 to Q query rows a sequence over KV pages; each page is read once for all query heads of its KV head.
//   queries [tokens, Hkv * G, D] T; pages [blocks, Hkv, BLOCK, D] T; block_tables [S, max_blocks]; context_lens [S]
//   query_starts [S + 1]; work [W, 2] {sequence, first token of the context, a multiple of 16}; sinks [Hkv * G]
//   after: read by nobody, it orders this launch behind kv_write
//   sizes {Hkv, max_blocks, window (0: none), chunk, has_sinks}; factors {scale, soft cap (0: none)}
// A threadgroup takes `chunk` tokens of one work item for one KV head and TILES * 8 of its Q * G rows (row: query, head).
//   SPLIT: out [W, Q, Hkv * G, D + 2] float: unnormalised sum, maximum (base 2), denominator; the reduce kernel ends it.
//   else:  out [tokens, Hkv * G, D] T, and work item w is sequence w.
//
// Scores and sums are 8x8 matrix products. The contracted index of a fragment is free to choose, so a lane's elements
// are a run of WK (keys) or WV (values) channels that it loads from the page itself, and what it holds of P after the
// softmax is already the left fragment of P V. Softmax in base 2 and float32.
template <typename T, int D, int BLOCK, int G, int Q, int TILES, int SG, bool SPLIT, typename Out>
void paged_attention(const device T* queries, const device T* key_pages, const device T* value_pages,
                     const device int* block_tables, const device int* context_lens, const device int* query_starts,
                     const device int* work, const device float* sinks, const device int* sizes,
                     const device float* factors, device Out* out, threadgroup float* shared, uint3 at,
                     uint simdgroup_index, uint lane) {
  constexpr int WK = D % 64 == 0 ? 8 : D % 32 == 0 ? 4 : 2, WV = D % 32 == 0 ? 8 : 4, FRAGMENTS = D / 8;
  const int heads = sizes[0], window = sizes[2], kv_head = at.x % heads, row_base = at.x / heads * TILES * 8;
  const int sequence = work[2 * at.y], start = work[2 * at.y + 1];
  const int length = context_lens[sequence], query0 = query_starts[sequence];
  const int queries_here = query_starts[sequence + 1] - query0;
  const int fm = (lane / 4 & 4) + (lane / 2) % 4, fn = (lane / 4 & 2) * 2 + (lane % 2) * 2;

  // This lane's row of each tile: which tokens it sees, and its query as left fragments.
  int first[TILES], end[TILES];
  float top[TILES], total[TILES];
  Fragment query[TILES * FRAGMENTS], sum[TILES * FRAGMENTS];
  for (int t = 0; t < TILES; t++) {
    const int row = row_base + t * 8 + fm, q = row / G;
    const bool real = row < Q * G && q < queries_here;
    end[t] = real ? length - queries_here + q + 1 : 0;
    first[t] = window > 0 ? max(end[t] - window, 0) : 0;
    top[t] = LOWEST;
    total[t] = 0;
    const device T* p = queries + (long(query0 + q) * heads * G + kv_head * G + row % G) * D;
    for (int i = 0; i < FRAGMENTS / WK; i++) {
      float run[2 * WK];
      load_run<T, 2 * WK>(p + (8 * i + fn) * WK, real, run);
      for (int e = 0; e < WK; e++) query[t * FRAGMENTS + i * WK + e].thread_elements() = float2(run[e], run[WK + e]);
    }
    for (int j = 0; j < FRAGMENTS; j++) sum[t * FRAGMENTS + j].thread_elements() = float2(0.0f);
  }
  const int lowest = window > 0 ? max(length - queries_here + 1 - window, 0) : 0;  // of any row
  const int stop = min(start + sizes[3], length);

  const int begin = max(start, lowest / TOKENS * TOKENS);  // steps go to simdgroups by their place in the context
  const int turn = (simdgroup_index + SG - begin / TOKENS % SG) % SG;
  for (int token = begin + turn * TOKENS; token < stop; token += SG * TOKENS) {
    Fragment scores[TILES][2];
    long page[2];  // offset of each half's first token
    for (int part = 0; part < 2; part++) {
      const int t0 = token + 8 * part;
      const int block = t0 < stop ? block_tables[sequence * sizes[1] + t0 / BLOCK] : 0;
      page[part] = ((long(block) * heads + kv_head) * BLOCK + t0 % BLOCK) * D;
      for (int t = 0; t < TILES; t++) scores[t][part].thread_elements() = float2(0.0f);
      bool inside[2];
      for (int c = 0; c < 2; c++) inside[c] = t0 + fn + c >= lowest && t0 + fn + c < stop;
      for (int i = 0; i < FRAGMENTS / WK; i++) {
        float run[2][WK];
        for (int c = 0; c < 2; c++)
          load_run<T, WK>(key_pages + page[part] + (fn + c) * D + (8 * i + fm) * WK, inside[c], run[c]);
        for (int e = 0; e < WK; e++) {
          Fragment keys;
          keys.thread_elements() = float2(run[0][e], run[1][e]);
          for (int t = 0; t < TILES; t++)
            simdgroup_multiply_accumulate(scores[t][part], query[t * FRAGMENTS + i * WK + e], keys, scores[t][part]);
        }
      }
    }
    // Online softmax: a row's columns lie in lanes 1 and 8 apart.
    for (int t = 0; t < TILES; t++) {
      float s[4];
      float best = LOWEST;
      for (int c = 0; c < 4; c++) {
        s[c] = scores[t][c / 2].thread_elements()[c % 2] * factors[0];
        if (factors[1] > 0) s[c] = factors[1] * precise::tanh(s[c] / factors[1]);
        s[c] *= M_LOG2E_F;
        const int n = token + c / 2 * 8 + fn + c % 2;
        if (n < first[t] || n >= min(end[t], stop)) s[c] = 2 * LOWEST;
        best = max(best, s[c]);
      }
      best = max(best, simd_shuffle_xor(best, 1));
      best = max(max(best, simd_shuffle_xor(best, 8)), top[t]);
      const float keep = fast::exp2(top[t] - best);
      top[t] = best;
      total[t] *= keep;
      for (int c = 0; c < 4; c++) {
        const float p = fast::exp2(s[c] - best);  // 0 where masked: best is at least LOWEST
        total[t] += p;
        scores[t][c / 2].thread_elements()[c % 2] = p;
      }
      for (int j = 0; j < FRAGMENTS; j++) sum[t * FRAGMENTS + j].thread_elements() *= keep;
    }
    for (int part = 0; part < 2; part++) {
      const int n = token + 8 * part + fm;
      for (int i = 0; i < D / (4 * WV); i++) {
        float run[WV];
        load_run<T, WV>(value_pages + page[part] + fm * D + (4 * i + fn / 2) * WV, n >= lowest && n < stop, run);
        for (int f = 0; f < WV / 2; f++) {
          Fragment values;
          values.thread_elements() = float2(run[2 * f], run[2 * f + 1]);
          for (int t = 0; t < TILES; t++) {
            thread Fragment& o = sum[t * FRAGMENTS + i * (WV / 2) + f];
            simdgroup_multiply_accumulate(o, scores[t][part], values, o);
          }
        }
      }
    }
  }

  merge<TILES, FRAGMENTS, SG>(sum, top, total, shared, simdgroup_index, lane);
  if (simdgroup_index > 0) return;
  for (int t = 0; t < TILES; t++) {
    total[t] += simd_shuffle_xor(total[t], 1);
    total[t] += simd_shuffle_xor(total[t], 8);
    const int row = row_base + t * 8 + fm, q = row / G, head = kv_head * G + row % G;
    if (row >= Q * G || (!SPLIT && q >= queries_here)) continue;
    device Out* p = out + (SPLIT ? (long(at.y) * Q + q) * heads * G + head : long(query0 + q) * heads * G + head) *
                              (SPLIT ? D + 2 : D);
    float factor = 1;
    if (!SPLIT) {
      if (sizes[4]) {
        const float sink = sinks[head] * M_LOG2E_F, best = max(top[t], sink);
        factor = fast::exp2(top[t] - best);
        total[t] = total[t] * factor + fast::exp2(sink - best);
      }
      factor = total[t] > 0 ? factor / total[t] : 0;
    } else if (fn == 0) {
      p[D] = Out(top[t]);
      p[D + 1] = Out(total[t]);
    }
    for (int i = 0; i < D / (4 * WV); i++)
      for (int f = 0; f < WV / 2; f++) {
        const float2 v = sum[t * FRAGMENTS + i * (WV / 2) + f].thread_elements() * factor;
        *(device vec<Out, 2>*)(p + (4 * i + fn / 2) * WV + 2 * f) = vec<Out, 2>(Out(v.x), Out(v.y));
      }
  }
}
//! body
threadgroup float shared[SG / 2 * TILES * (D / 4 + 2) * 32];
paged_attention<T, D, BLOCK, G, Q, TILES, SG, SPLIT>(
    queries, key_pages, value_pages, block_tables, context_lens, query_starts, work, sinks, sizes, factors, out, shared,
    threadgroup_position_in_grid, simdgroup_index_in_threadgroup, thread_index_in_simdgroup);
