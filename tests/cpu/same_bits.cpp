// Runs every operator on made-up numbers and prints a hash of each result's bits, so that builds for different CPUs can
// be compared. Single-threaded; test_every_cpu.py compiles it with kernels/cpu and runs it, if need be in an emulator.

#include <cstdio>
#include <string>
#include <vector>

#include "program.h"

using namespace mlxserve;

extern "C" {
struct Context;
Context* mlxserve_open(int threads);
void mlxserve_close(Context* context);
int64_t mlxserve_weight_bytes(Weights* w);
void mlxserve_pack_quantized(Context* context, const Weights* w, const uint32_t* words, int bits, const float* scales,
                             const float* biases);
void mlxserve_pack_dense(Context* context, const Weights* w, const void* values);
void mlxserve_run(Context* context, const Operator* operators, int count, const Step* step);
}

namespace {

// Integer arithmetic alone, so that every CPU makes the same numbers.
struct Random {
  uint64_t state = 1;
  uint32_t word() {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return uint32_t(state >> 32);
  }
  float number() { return float(int32_t(word()) >> 8) / float(1 << 22); }  // in -2 .. 2
  std::vector<float> numbers(size_t count) {
    std::vector<float> made(count);
    for (float& x : made) x = number();
    return made;
  }
};

Random random_numbers;
Context* context;

void report(const std::string& name, const std::vector<float>& values) {
  uint64_t hash = 14695981039346656037u;
  for (float value : values) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    hash = (hash ^ bits) * 1099511628211u;
  }
  std::printf("%s %016llx %.6g\n", name.c_str(), (unsigned long long)hash, values[values.size() / 2]);
}

struct Matrix {
  Weights w{};
  std::vector<uint8_t> tiles;
  std::vector<float> bias;

  Matrix(int storage, bool wide, bool symmetric, int outputs, int inputs, int group, bool with_bias) {
    w.storage = storage, w.wide_scales = wide, w.symmetric = symmetric;
    w.outputs = outputs, w.inputs = inputs, w.group = group;
    tiles.resize(mlxserve_weight_bytes(&w) + 64);
    w.data = tiles.data() + (64 - uintptr_t(tiles.data()) % 64) % 64;
    if (with_bias) bias = random_numbers.numbers(outputs), w.bias = bias.data();
    storage <= kInt8 ? fill_quantized() : fill_dense();
  }

  void fill_quantized() {
    const int bits = w.storage == kInt4 ? 4 : 8;
    std::vector<uint32_t> words(size_t(w.outputs) * w.inputs * bits / 32);
    for (uint32_t& word : words) word = random_numbers.word();
    std::vector<float> scales(size_t(w.outputs) * w.inputs / w.group), biases(scales.size());
    for (size_t i = 0; i < scales.size(); ++i) {
      scales[i] = float(1 + random_numbers.word() % 100) / 2048;  // halves hold it exactly
      biases[i] = w.symmetric ? 0 : -scales[i] * 8;
    }
    mlxserve_pack_quantized(context, &w, words.data(), bits, scales.data(), biases.data());
  }

  void fill_dense() {
    const size_t count = size_t(w.outputs) * w.inputs;
    if (w.storage == kFloat32) return mlxserve_pack_dense(context, &w, random_numbers.numbers(count).data());
    std::vector<uint16_t> values(count);
    const int one = w.storage == kBFloat16 ? 0x3f80 : 0x3c00;  // the bits of 1.0; those below 1024 more are ordinary
    for (uint16_t& x : values) x = uint16_t((one + random_numbers.word() % 200) | (random_numbers.word() & 1) << 15);
    mlxserve_pack_dense(context, &w, values.data());
  }
};

void product(const std::string& name, const Matrix& matrix, int kind, int rows, bool norm, int activation) {
  const int inputs = matrix.w.inputs, width = matrix.w.outputs / (kind == Operator::kNormGlu ? 2 : 1);
  std::vector<float> arena = random_numbers.numbers(size_t(rows) * (inputs + width)), out(size_t(rows) * width);
  const std::vector<float> weight = random_numbers.numbers(inputs > width ? inputs : width);
  Operator op{};
  op.kind = kind, op.weights = &matrix.w, op.norm = norm ? weight.data() : nullptr;
  op.residual = inputs, op.out = kLogits, op.width = width, op.activation = activation;
  op.eps = 1e-5f, op.alpha = 0.75f;
  Step step{};
  step.batch.tokens = rows, step.arena = arena.data(), step.logits = out.data();
  mlxserve_run(context, &op, 1, &step);
  report(name + " rows " + std::to_string(rows), out);
}

void products() {
  for (int storage = kInt4; storage <= kHalf; ++storage)
    for (int form = 0; form < (storage <= kInt8 ? 4 : 1); ++form) {
      const bool wide = form & 1, symmetric = form & 2;
      const Matrix ragged(storage, wide, symmetric, 50, 128, 64, true);
      const Matrix pair(storage, wide, symmetric, 64, 96, 32, false);
      const std::string name = "storage " + std::to_string(storage) + " form " + std::to_string(form);
      for (int rows : {1, 2, 3, 7, 13}) {
        product(name + " linear", ragged, Operator::kNormLinear, rows, rows % 2, 0);
        product(name + " glu", pair, Operator::kNormGlu, rows, rows % 2, rows % 3 ? 0 : 1);
        product(name + " residual", ragged, Operator::kLinearResidual, rows, rows % 2, 0);
      }
    }
}

struct Sequence {
  int queries, context;
};

void attention(const std::string& name, AttentionLayer layer, const std::vector<Sequence>& sequences) {
  int tokens = 0, widest = 0;
  std::vector<int32_t> positions, slots, starts{0}, contexts, tables;
  for (const Sequence& s : sequences) widest = s.context > widest ? s.context : widest;
  const int width = (widest + layer.block_size - 1) / layer.block_size;
  for (const Sequence& s : sequences) {
    const int first_block = int(contexts.size()) * width;
    for (int i = 0; i < width; ++i) tables.push_back(first_block + width - 1 - i);
    for (int p = s.context - s.queries; p < s.context; ++p) {
      positions.push_back(p);
      slots.push_back(tables[first_block + p / layer.block_size] * layer.block_size + p % layer.block_size);
    }
    tokens += s.queries;
    starts.push_back(tokens), contexts.push_back(s.context);
  }
  const size_t page_floats = size_t(width) * sequences.size() * layer.kv_heads * layer.block_size * layer.head_dim;
  std::vector<float> k = random_numbers.numbers(page_floats), v = random_numbers.numbers(page_floats);
  const std::vector<float> cosine = random_numbers.numbers(size_t(tokens) * layer.rotary / 2 + 1);
  const std::vector<float> sine = random_numbers.numbers(cosine.size());
  const std::vector<float> norms = random_numbers.numbers(size_t(layer.heads) * layer.head_dim);
  const std::vector<float> sinks = random_numbers.numbers(layer.heads);
  const int64_t row = int64_t{layer.heads + 2 * layer.kv_heads} * layer.head_dim;
  std::vector<float> arena = random_numbers.numbers(tokens * row), out(size_t(tokens) * layer.heads * layer.head_dim);
  layer.key_pages = k.data(), layer.value_pages = v.data();
  layer.query_norm = layer.key_norm = norms.data(), layer.norm_eps = 1e-5f;
  layer.sinks = layer.window ? sinks.data() : nullptr;
  layer.scale = 0.125f;
  const Angles angles{cosine.data(), sine.data()};
  Operator op{};
  op.kind = Operator::kAttend, op.layer = &layer, op.out = kLogits;
  Step step{};
  step.batch = {positions.data(), slots.data(), starts.data(), contexts.data(), tables.data(), tokens,
                int32_t(sequences.size()), width};
  step.angles = &angles, step.arena = arena.data(), step.logits = out.data();
  mlxserve_run(context, &op, 1, &step);
  report(name, out);
  report(name + ", keys", k);
}

void attentions() {
  AttentionLayer layer{};
  layer.heads = 6, layer.kv_heads = 2, layer.head_dim = 64, layer.block_size = 16, layer.rotary = 64;
  attention("decode", layer, {{1, 5}, {1, 300}, {1, 33}});
  attention("mixed", layer, {{40, 40}, {1, 150}, {17, 90}});
  layer.window = 48, layer.soft_cap = 20, layer.head_norm = kPerHead, layer.rotary = 32;
  attention("window, soft cap, sinks, head norm, partial RoPE", layer, {{1, 200}, {60, 130}});
  layer.head_norm = kFullWidth, layer.head_dim = 96, layer.kv_heads = 3;
  attention("full-width norm, head_dim 96", layer, {{1, 70}, {9, 70}});
}

}  // namespace

int main() {
  context = mlxserve_open(1);
  products();
  attentions();
  mlxserve_close(context);
}
