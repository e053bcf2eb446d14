// Parts of paged_attention_decode: loads of a lane's run, and the join of a threadgroup's simdgroups.
#include <metal_stdlib>
#include <metal_simdgroup>
#include <metal_simdgroup_matrix>
using namespace metal;

constexpr constant float LOWEST = -1e30f;  // finite: differences of it are numbers
constexpr constant int TOKENS = 16;        // a simdgroup's step: two tiles of 8
typedef simdgroup_matrix<float, 8, 8> Fragment;

template <typename T, int N>
void load_run(const device T* p, bool inside, thread float* out) {
  constexpr int V = N < 4 ? N : 4;
  for (int i = 0; i < N; i += V) {
    vec<T, V> v = vec<T, V>(T(0));
    if (inside) v = *(const device vec<T, V>*)(p + i);
    for (int c = 0; c < V; c++) out[i + c] = float(v[c]);
  }
}

// Folds simdgroups' (maximum, denominator, sum) into simdgroup 0's, pairwise.
template <int TILES, int FRAGMENTS, int SG>
void merge(thread Fragment* sum, thread float* top, thread float* total, threadgroup float* shared, uint simdgroup_index,
           uint lane) {
  constexpr int STRIDE = TILES * (2 * FRAGMENTS + 2) * 32;
  for (uint apart = SG / 2; apart; apart /= 2) {
    threadgroup float* slot = shared + (simdgroup_index % apart) * STRIDE + lane;
    if (simdgroup_index >= apart && simdgroup_index < 2 * apart)
      for (int t = 0; t < TILES; t++) {
        threadgroup float* s = slot + t * (2 * FRAGMENTS + 2) * 32;
        s[0] = top[t];
        s[32] = total[t];
        for (int j = 0; j < FRAGMENTS; j++)
          for (int c = 0; c < 2; c++) s[(2 + 2 * j + c) * 32] = sum[t * FRAGMENTS + j].thread_elements()[c];
      }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (simdgroup_index < apart)
      for (int t = 0; t < TILES; t++) {
        const threadgroup float* s = slot + t * (2 * FRAGMENTS + 2) * 32;
        const float best = max(top[t], s[0]), mine = fast::exp2(top[t] - best), theirs = fast::exp2(s[0] - best);
        top[t] = best;
        total[t] = total[t] * mine + s[32] * theirs;
        for (int j = 0; j < FRAGMENTS; j++) {
          const float2 other = float2(s[(2 + 2 * j) * 32], s[(3 + 2 * j) * 32]);
          thread Fragment& f = sum[t * FRAGMENTS + j];
          f.thread_elements() = f.thread_elements() * mine + other * theirs;
        }
      }
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
}

