// Stands in for MLX's header of this name, whose constructors differ only in address space.
#pragma once
#include <metal_stdlib>
#include "mlx/backend/metal/kernels/bf16.h"
using namespace metal;
template <typename T> struct complex_t {
  T real, imag;
  constexpr complex_t() : real(0), imag(0) {}
  constexpr complex_t(T r, T i) : real(r), imag(i) {}
};
using complex64_t = complex_t<float>;
using complex32_t = complex_t<half>;
