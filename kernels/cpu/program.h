// A model's forward pass as a list of operators, run by a team; and the C interface that Python calls.
//
// The operators are the fused ones of mlxserve/models/ops.py. Values are float32 rows, one a token, in one arena: a
// value at place p with rows of n floats lies at arena + p * tokens. Mirrored by
// mlxserve/backends/torch/native/library.py.
#pragma once

#include "attention.h"
#include "matmul.h"

namespace mlxserve {

struct Operator {
  enum Kind : int32_t {
    kEmbedding = 0,   // out[t] = w[tokens[t]]
    kScale = 1,       // out = alpha * x
    kTake = 2,        // out[r] = x[logit_rows[r]]
    kNormLinear = 3,  // out = norm(x) w^T + b
    kNormGlu = 4,     // out = act(gate) * up, (gate | up) = norm(x) w^T + b; half of w's outputs is a multiple of 16
    kLinearResidual = 5,  // out = residual + alpha * norm(x w^T + b)
    kAttend = 6,          // out = attention of x = q | k | v
  };
  const Weights* weights;
  const float* norm;  // or null; [inputs], with kLinearResidual [outputs]
  const AttentionLayer* layer;
  int64_t x, out, residual;  // places; kLogits as `out`: the step's logits
  int32_t kind;
  int32_t of_logits;   // rows: 0: one a token, 1: one a wanted row of logits
  int32_t width;       // floats of a row of x
  int32_t angles;      // index into the step's
  int32_t activation;  // Activation
  float eps, alpha;
};

constexpr int64_t kLogits = -1;

// What changes from one run to the next.
struct Step {
  Batch batch;
  const int64_t* tokens;      // [batch.tokens]
  const int64_t* logit_rows;  // [logits_wanted]
  const Angles* angles;
  float* arena;
  float* logits;  // [logits_wanted, vocabulary]
  int32_t logits_wanted;
};

}  // namespace mlxserve
