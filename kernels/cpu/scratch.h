// Working memory that is handed out again for every operator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>

namespace mlxserve {

constexpr size_t kAlignment = 64;

inline size_t rounded(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Grows only; what was in it is lost when it does.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { std::free(memory_); }

  uint8_t* of(size_t bytes) {
    if (bytes > size_) {
      std::free(memory_);
      size_ = rounded(bytes);
      memory_ = (uint8_t*)std::aligned_alloc(kAlignment, size_);
      if (!memory_) std::abort();
    }
    return memory_;
  }

 private:
  uint8_t* memory_ = nullptr;
  size_t size_ = 0;
};

}  // namespace mlxserve
