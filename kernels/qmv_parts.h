// Parts of qmv_int4: x staged in threadgroup memory, and the reduction over the lanes along K.
#include <metal_stdlib>
#include <metal_simdgroup>
using namespace metal;

constexpr constant int KLANES = 8;  // lanes along K
constexpr constant int RUN = 32;    // values of K a lane takes in a round
constexpr constant int SLOT = 36;   // a run: 32 values, their sum, their sum of squares; 36 keeps 8 lanes off one bank

template <int M>
constexpr int qmv_rounds() {  // rounds staged at once: about 16 KB
  return M >= 16 ? 1 : 16 / M;
}

// Stages rounds [first, first + ROUNDS) of x. Element i of a packed word is masked in place, not shifted, so its x is
// scaled by 2^(-BITS * i): exact.
template <typename T, typename W, int BITS, int GROUP, int M, int THREADS, bool NORM>
void qmv_stage(const device T* x, const device W* norm_weight, threadgroup float* staged, int K, int rows, int first,
               uint thread_index) {
  constexpr int SUBS = GROUP / RUN, ROUNDS = qmv_rounds<M>();
  for (uint slot = thread_index; slot < uint(M * ROUNDS * KLANES); slot += THREADS) {
    const int lane = slot % KLANES, round = first + slot / KLANES % ROUNDS, m = slot / (KLANES * ROUNDS);
    const int k = (round / SUBS * KLANES + lane) * GROUP + round % SUBS * RUN;
    threadgroup float* out = staged + slot * SLOT;
    float sum = 0, squares = 0;
    for (int i = 0; i < RUN; i += 4) {
      float4 v = float4(0.0f);
      if (k < K && m < rows) v = float4(*(const device vec<T, 4>*)(x + m * K + k + i));
      for (int c = 0; c < 4; c++) {
        squares = fma(v[c], v[c], squares);
        if (NORM && k < K) v[c] *= float(norm_weight[k + i + c]);
        sum += v[c];
        v[c] *= 1.0f / float(1u << (BITS * ((i + c) % (32 / BITS))));
      }
      *(threadgroup float4*)(out + i) = v;
    }
    out[RUN] = sum;
    out[RUN + 1] = squares;
  }
}

// Sums V values over lanes APART, APART / 2, ... 1 apart. At each step a lane keeps half of them and sends the rest.
template <int V, int APART>
struct Reduce {
  static constexpr constant int KEEP = (V + 1) / 2;
  static void run(thread float* v, uint lane) {
    const bool upper = lane & APART;
    for (int i = 0; i < KEEP; i++) {
      const bool traded = i + KEEP < V;
      const float mine = traded && upper ? v[i + KEEP] : v[i], other = traded && !upper ? v[i + KEEP] : v[i];
      v[i] = mine + simd_shuffle_xor(other, ushort(APART));
    }
    Reduce<KEEP, APART / 2>::run(v, lane);
  }
  // Which of the V values this lane's v[i] is in the end; -1 when a lower lane has it too.
  static int owned(int i, uint lane) {
    const int j = Reduce<KEEP, APART / 2>::owned(i, lane);
    if (!(lane & APART) || j < 0) return j;
    return j + KEEP < V ? j + KEEP : -1;
  }
};
template <int V>
struct Reduce<V, 0> {
  static void run(thread float*, uint) {}
  static int owned(int i, uint) { return i; }
};
