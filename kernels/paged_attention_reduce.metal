//! kernel paged_attention_reduce
//! inputs partials partial_starts query_starts sinks sizes
//! outputs out
// Joins paged_attention_decode's partial results, in order of the context. One simdgroup a (head, query row).
//   partials [W, Q, H, D + 2] float: sum, maximum (base 2), denominator; partial_starts [S + 1]: a sequence's work items
//   query_starts [S + 1]; sinks [H]; sizes {H, has_sinks}; out [tokens, H, D] T
#include <metal_stdlib>
using namespace metal;

template <typename T, int D, int Q>
void join(const device float* partials, const device int* partial_starts, const device int* query_starts,
          const device float* sinks, const device int* sizes, device T* out, uint3 at, uint lane) {
  const int heads = sizes[0], head = at.y, sequence = at.z / Q, query = at.z % Q;
  const int token = query_starts[sequence] + query;
  if (token >= query_starts[sequence + 1]) return;
  const int begin = partial_starts[sequence], end = partial_starts[sequence + 1];
  const long stride = long(Q) * heads * (D + 2);
  const device float* p = partials + begin * stride + (long(query) * heads + head) * (D + 2);

  const float sink = sizes[1] ? sinks[head] * M_LOG2E_F : -1e30f;
  float top = sink;
  for (int i = 0; i < end - begin; i++) top = max(top, p[i * stride + D]);
  float total = sizes[1] ? fast::exp2(sink - top) : 0.0f;
  float sum[(D / 2 + 31) / 32][2];
  for (int j = 0; j < (D / 2 + 31) / 32; j++) sum[j][0] = sum[j][1] = 0;
  for (int i = 0; i < end - begin; i++) {
    const float weight = fast::exp2(p[i * stride + D] - top);
    total = fma(p[i * stride + D + 1], weight, total);
    for (int d = 2 * lane; d < D; d += 64)
      for (int c = 0; c < 2; c++) sum[d / 64][c] = fma(p[i * stride + d + c], weight, sum[d / 64][c]);
  }
  const float factor = total > 0 ? 1.0f / total : 0.0f;
  for (int d = 2 * lane; d < D; d += 64)
    for (int c = 0; c < 2; c++) out[(long(token) * heads + head) * D + d + c] = T(sum[d / 64][c] * factor);
}
//! body
join<T, D, Q>(partials, partial_starts, query_starts, sinks, sizes, out, threadgroup_position_in_grid,
              thread_index_in_simdgroup);
