//! kernel qmv_int4
//! include qmv_parts.h
//! inputs x packed scales biases norm_weight residual linear_bias sizes factors
//! outputs y
// y = x W^T for 1 to 16 rows of x, W in 4 or 8 bits: w = scale * q + bias, one scale and bias a GROUP of a row.
//   x [rows, K] T; packed [N, K * BITS / 32] uint; scales, biases [N, K / GROUP]; y [rows, N], or [rows, N / 2] with ACT
//   sizes {N, K, rows}; factors {eps, alpha}
// NORM: x is RMS-normed with norm_weight [K] on the way. ACT: W is gate | up, y = act(gate) * up (1 silu, 2 tanh gelu).
// BIAS: linear_bias [N] is added. RESIDUAL: y = residual + alpha * (...), residual as y.
//
// A lane owns whole groups of weight rows, so every packed word, scale and bias is loaded by one lane, once: 8 lanes
// along K by 4 rows, R rows a lane. x is staged in threadgroup memory as float, a run of 32 values a slot. A row's sums
// are taken in an order that neither M nor R nor SG changes: over a lane's rounds, then lanes 4, 2, 1 apart.
inline float qmv_act(float gate, int act) {
  if (act == 1) return gate / (1.0f + precise::exp(-gate));
  const float inner = 0.7978845608f * (gate + 0.044715f * gate * gate * gate);
  return 0.5f * gate * (1.0f + precise::tanh(clamp(inner, -15.0f, 15.0f)));
}

template <typename T, int BITS, int GROUP, int M, int R, int SG, bool NORM, int ACT, bool BIAS, bool RESIDUAL,
          typename S, typename W>
void qmv(const device T* x, const device uint* packed, const device S* scales, const device S* biases,
         const device W* norm_weight, const device T* residual, const device T* linear_bias,
         const constant int* sizes, const constant float* factors, device T* y, threadgroup float* staged,
         uint threadgroup_index, uint simdgroup_index, uint lane) {
  constexpr int SUBS = GROUP / RUN, ROUNDS = qmv_rounds<M>(), WORDS = RUN * BITS / 32, PER_WORD = 32 / BITS;
  constexpr int PARTS = ACT ? 2 : 1, OUT = R / PARTS;  // outputs a lane; with ACT, rows are gate, up, gate, up, ...
  const int N = sizes[0], K = sizes[1], rows = sizes[2], n_out = N / PARTS, groups = K / GROUP;
  const int klane = lane % KLANES;
  const int first = ((threadgroup_index * SG + simdgroup_index) * OUT) * 4 + lane / KLANES;  // outputs first + 4 i
  const int rounds = (groups + KLANES - 1) / KLANES * SUBS;

  float sums[PARTS][OUT * M], squares[M], scale[R], bias[R];
  for (int i = 0; i < OUT * M; i++) for (int p = 0; p < PARTS; p++) sums[p][i] = 0;
  for (int m = 0; m < M; m++) squares[m] = 0;
  for (int r = 0; r < R; r++) scale[r] = bias[r] = 0;

  for (int base = 0; base < rounds; base += ROUNDS) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    qmv_stage<T, W, BITS, GROUP, M, SG * 32, NORM>(x, norm_weight, staged, K, rows, base, simdgroup_index * 32 + lane);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int round = base; round < min(base + ROUNDS, rounds); round++) {
      const int group = round / SUBS * KLANES + klane;
      if (group >= groups) break;
      uint words[R][WORDS];
      for (int r = 0; r < R; r++) {
        const int output = first + r / PARTS * 4;
        for (int i = 0; i < WORDS; i++) words[r][i] = 0;
        if (output >= n_out) continue;
        const long row = output + long(r % PARTS) * n_out;
        if (round % SUBS == 0) {
          scale[r] = float(scales[row * groups + group]);
          bias[r] = float(biases[row * groups + group]);
        }
        const device uint4* p = (const device uint4*)(packed + (row * K + group * GROUP + round % SUBS * RUN) / PER_WORD);
        for (int i = 0; i < WORDS / 4; i++)
          for (int c = 0; c < 4; c++) words[r][4 * i + c] = p[i][c];
      }
      const threadgroup float* slot = staged + ((round - base) * KLANES + klane) * SLOT;
      for (int i = 0; i < WORDS; i++) {
        float q[R][PER_WORD];
        for (int r = 0; r < R; r++)
          for (int e = 0; e < PER_WORD; e++) q[r][e] = float(words[r][i] & (((1u << BITS) - 1) << (BITS * e)));
        for (int m = 0; m < M; m++) {
          float v[PER_WORD];
          for (int e = 0; e < PER_WORD; e += 4) {
            const float4 four = *(const threadgroup float4*)(slot + m * ROUNDS * KLANES * SLOT + i * PER_WORD + e);
            for (int c = 0; c < 4; c++) v[e + c] = four[c];
          }
          for (int r = 0; r < R; r++) {
            float dot = 0;
            for (int e = 0; e < PER_WORD; e++) dot = fma(q[r][e], v[e], dot);
            thread float& sum = sums[r % PARTS][r / PARTS * M + m];
            sum = fma(scale[r], dot, sum);
          }
        }
      }
      for (int m = 0; m < M; m++) {
        const threadgroup float* totals = slot + m * ROUNDS * KLANES * SLOT + RUN;
        for (int r = 0; r < R; r++) {
          thread float& sum = sums[r % PARTS][r / PARTS * M + m];
          sum = fma(bias[r], totals[0], sum);
        }
        squares[m] += totals[1];
      }
    }
  }

  if (NORM) {  // every simdgroup has the same sums of squares; the first shares its lanes'
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int m = 0; m < M; m++)
      if (simdgroup_index == 0 && int(lane) < KLANES) staged[m * KLANES + klane] = squares[m];
    threadgroup_barrier(mem_flags::mem_threadgroup);
  }
  for (int p = 0; p < PARTS; p++) Reduce<OUT * M, KLANES / 2>::run(sums[p], lane);
  for (int i = 0; i < (OUT * M + 7) / 8; i++) {
    const int owned = Reduce<OUT * M, KLANES / 2>::owned(i, lane);
    const int m = owned % M, output = first + owned / M * 4;
    if (owned < 0 || m >= rows || output >= n_out) continue;
    float norm = 1;
    if (NORM) {
      float square = 0;
      for (int k = 0; k < KLANES; k++) square += staged[m * KLANES + k];
      norm = precise::rsqrt(square / float(K) + factors[0]);
    }
    float v = sums[0][i] * norm + (BIAS ? float(linear_bias[output]) : 0.0f);
    if (ACT) v = qmv_act(v, ACT) * (sums[PARTS - 1][i] * norm + (BIAS ? float(linear_bias[n_out + output]) : 0.0f));
    const long at = long(m) * n_out + output;
    if (RESIDUAL) v = fma(factors[1], v, float(residual[at]));
    y[at] = T(v);
  }
}
//! body
threadgroup float staged[M * qmv_rounds<M>() * KLANES * SLOT];
qmv<T, BITS, GROUP, M, R, SG, NORM, ACT, BIAS, RESIDUAL>(
    x, packed, scales, biases, norm_weight, residual, linear_bias, sizes, factors, y, staged,
    threadgroup_position_in_grid.x, simdgroup_index_in_threadgroup, thread_index_in_simdgroup);
