#include "program.h"

#include "scratch.h"

namespace mlxserve {
namespace {

struct Run {
  const Operator* operators;
  int count;
  const Step* step;
  uint8_t* scratch;
};

int rows_of(const Operator& op, const Step& step) { return op.of_logits ? step.logits_wanted : step.batch.tokens; }

float* place(const Step& step, int64_t at) { return at == kLogits ? step.logits : step.arena + at * step.batch.tokens; }

size_t scratch_bytes(const Operator& op, const Step& step, int workers) {
  if (op.kind == Operator::kAttend) {
    const AttentionScratch need = attention_scratch(*op.layer, step.batch);
    return rounded(need.shared) + workers * rounded(need.own);
  }
  if (op.kind < Operator::kNormLinear) return 0;
  const int rows = rows_of(op, step), inputs = op.weights->inputs;
  return is_quantized(*op.weights) ? quantized_bytes(rows, inputs) : dense_bytes(rows, inputs);
}

void copy_row(const Operator& op, const Step& step, int r) {
  float* out = place(step, op.out) + int64_t{r} * op.width;
  if (op.kind == Operator::kEmbedding) return unpack_row(*op.weights, int(step.tokens[r]), out);
  const int64_t from = op.kind == Operator::kTake ? step.logit_rows[r] : r;
  const float* x = place(step, op.x) + from * op.width;
  for (int i = 0; i < op.width; ++i) out[i] = op.alpha * x[i];
}

// out = residual + alpha * norm(out)
void add_normed(const Operator& op, const Step& step, int r) {
  const int n = op.weights->outputs;
  float* row = place(step, op.out) + int64_t{r} * n;
  const float* residual = place(step, op.residual) + int64_t{r} * n;
  const float factor = inverse_rms(row, n, op.eps) * op.alpha;
  for (int i = 0; i < n; ++i) row[i] = residual[i] + row[i] * factor * op.norm[i];
}

void product(Worker& worker, const Operator& op, const Step& step, uint8_t* scratch) {
  const Weights& w = *op.weights;
  const bool quantized = is_quantized(w), adds = op.kind == Operator::kLinearResidual;
  const float* norm = adds ? nullptr : op.norm;
  const int rows = rows_of(op, step);
  const Panels panels(rows);
  const Activations x = place_activations(scratch, rows, w.inputs, quantized);
  worker.each_range(rows, [&](int begin, int end) {
    for (int r = begin; r < end; ++r) {
      const float* row = place(step, op.x) + int64_t{r} * w.inputs;
      pack_row(x, panels, quantized, r, row, norm ? inverse_rms(row, w.inputs, op.eps) : 1.0f, norm);
    }
  });
  Epilogue then{Epilogue::kStore, place(step, op.out), nullptr, op.alpha, Activation(op.activation)};
  if (op.kind == Operator::kNormGlu) then.kind = Epilogue::kGlu;
  if (adds && !op.norm) then.kind = Epilogue::kResidual, then.residual = place(step, op.residual);
  multiply(worker, w, x, panels, then);
  if (adds && op.norm)
    worker.each_range(rows, [&](int begin, int end) {
      for (int r = begin; r < end; ++r) add_normed(op, step, r);
    });
}

void run_operator(Worker& worker, const Operator& op, const Step& step, uint8_t* scratch) {
  const int rows = rows_of(op, step);
  if (rows == 0) return;
  if (op.kind == Operator::kAttend) {
    const AttentionScratch need = attention_scratch(*op.layer, step.batch);
    uint8_t* own = scratch + rounded(need.shared) + worker.id * rounded(need.own);
    attend(worker, *op.layer, step.batch, step.angles[op.angles], place(step, op.x), place(step, op.out), scratch, own);
  } else if (op.kind < Operator::kNormLinear) {
    worker.each_range(rows, [&](int begin, int end) {
      for (int r = begin; r < end; ++r) copy_row(op, step, r);
    });
  } else {
    product(worker, op, step, scratch);
  }
}

void run_all(Worker& worker, const void* argument) {
  const Run& run = *(const Run*)argument;
  for (int i = 0; i < run.count; ++i) run_operator(worker, run.operators[i], *run.step, run.scratch);
}

// The rows of one matrix, row after row, as a checkpoint has them.
struct Rows {
  const Weights* weights;
  const uint8_t* values;
  const float *scales, *biases;
  int64_t row_bytes;
  int bits;
};

void pack_row(const Rows& rows, int row) {
  const Weights& w = *rows.weights;
  const uint8_t* values = rows.values + row * rows.row_bytes;
  if (!is_quantized(w)) return pack_dense_row(w, row, values);
  const int64_t at = int64_t{row} * (w.inputs / w.group);
  pack_quantized_row(w, row, (const uint32_t*)values, rows.bits, rows.scales + at, rows.biases + at);
}

void pack_all(Worker& worker, const void* argument) {
  const Rows& rows = *(const Rows*)argument;
  worker.each_range(rows.weights->outputs, [&](int begin, int end) {
    for (int row = begin; row < end; ++row) pack_row(rows, row);
  });
}

}  // namespace

// A team and its scratch. One caller at a time.
struct Context {
  Team team;
  Scratch scratch;
  explicit Context(int threads) : team(threads) {}
};

}  // namespace mlxserve

using namespace mlxserve;

extern "C" {

Context* mlxserve_open(int threads) { return new Context(threads); }

void mlxserve_close(Context* context) { delete context; }

// Sets w's tile_bytes; the bytes of all its tiles.
int64_t mlxserve_weight_bytes(Weights* w) {
  set_tile_bytes(*w);
  return w->tile_bytes * tiles_of(*w);
}

// Both fill w's tiles, which are zero before. words: [N, K * bits / 32]; scales and biases: [N, K / group]; values: [N,
// K].
void mlxserve_pack_quantized(Context* context, const Weights* w, const uint32_t* words, int bits, const float* scales,
                             const float* biases) {
  const Rows rows{w, (const uint8_t*)words, scales, biases, int64_t{w->inputs} * bits / 8, bits};
  context->team.run(pack_all, &rows);
}

void mlxserve_pack_dense(Context* context, const Weights* w, const void* values) {
  const Rows rows{w, (const uint8_t*)values, nullptr, nullptr, int64_t{w->inputs} * (w->storage == kFloat32 ? 4 : 2),
                  0};
  context->team.run(pack_all, &rows);
}

void mlxserve_run(Context* context, const Operator* operators, int count, const Step* step) {
  size_t bytes = 0;
  for (int i = 0; i < count; ++i) {
    const size_t need = scratch_bytes(operators[i], *step, context->team.size());
    bytes = need > bytes ? need : bytes;
  }
  const Run run{operators, count, step, context->scratch.of(bytes)};
  context->team.run(run_all, &run);
}

}  // extern "C"
