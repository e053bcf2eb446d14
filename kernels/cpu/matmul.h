// y = x @ w.T for packed weights and packed activations, with what follows it done while the result is in registers'
// reach.
//
// One output of one row is summed over K in one fixed order, whatever the number of rows: a row's bits do not depend on
// its neighbours.
#pragma once

#include "activations.h"
#include "team.h"
#include "weights.h"

namespace mlxserve {

enum Activation : int32_t { kSilu = 0, kGeluTanh = 1 };

// What happens to a tile of results.
struct Epilogue {
  enum Kind { kStore, kResidual, kGlu } kind;
  float* out;             // [rows, outputs], with kGlu [rows, outputs / 2]
  const float* residual;  // kResidual: out = residual + alpha * y; may be out itself
  float alpha;
  Activation activation;  // kGlu: out[n] = act(y[n]) * y[n + outputs / 2]; outputs / 2 is a multiple of 16
};

// One phase.
void multiply(Worker& worker, const Weights& w, const Activations& x, const Panels& panels, const Epilogue& then);

}  // namespace mlxserve
