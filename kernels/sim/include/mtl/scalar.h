// Metal's scalar types. half is the compiler's 16-bit float; bfloat rounds to nearest even after every operation.
#pragma once
#include "mtl/abi.h"

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;
typedef _Float16 half;

template <class I> struct mtl_is_int { static constexpr bool value = false; };
#define MTL_INT(t) template <> struct mtl_is_int<t> { static constexpr bool value = true; };
MTL_INT(bool) MTL_INT(char) MTL_INT(signed char) MTL_INT(uchar) MTL_INT(short) MTL_INT(ushort) MTL_INT(int)
MTL_INT(uint) MTL_INT(long) MTL_INT(ulong) MTL_INT(long long) MTL_INT(unsigned long long)
#undef MTL_INT
template <bool B, class T = void> struct mtl_enable {};
template <class T> struct mtl_enable<true, T> { using type = T; };
#define MTL_IF_INT(I) class = typename mtl_enable<mtl_is_int<I>::value>::type

struct bfloat {
  uint16_t bits;
  bfloat() = default;
  static constexpr uint16_t round(float f) {
    uint32_t u = __builtin_bit_cast(uint32_t, f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return uint16_t((u >> 16) | 0x40);  // not a number stays one
    return uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
  }
  // As in Metal there is no implicit conversion from float or half.
  constexpr explicit bfloat(float f) : bits(round(f)) {}
  constexpr explicit bfloat(double f) : bits(round((float)f)) {}
  constexpr explicit bfloat(half f) : bits(round((float)f)) {}
  template <class I, MTL_IF_INT(I)> constexpr bfloat(I i) : bits(round((float)i)) {}
  constexpr operator float() const { return __builtin_bit_cast(float, uint32_t(bits) << 16); }
  bfloat &operator+=(float o) { return *this = bfloat(float(*this) + o); }
  bfloat &operator-=(float o) { return *this = bfloat(float(*this) - o); }
  bfloat &operator*=(float o) { return *this = bfloat(float(*this) * o); }
  bfloat &operator/=(float o) { return *this = bfloat(float(*this) / o); }
};
#define MTL_BFLOAT_OP(R, op)                                                                          \
  constexpr R operator op(bfloat a, bfloat b) { return R(float(a) op float(b)); }                     \
  template <class I, MTL_IF_INT(I)> constexpr R operator op(bfloat a, I b) { return R(float(a) op float(b)); } \
  template <class I, MTL_IF_INT(I)> constexpr R operator op(I a, bfloat b) { return R(float(a) op float(b)); }
MTL_BFLOAT_OP(bfloat, +) MTL_BFLOAT_OP(bfloat, -) MTL_BFLOAT_OP(bfloat, *) MTL_BFLOAT_OP(bfloat, /)
MTL_BFLOAT_OP(bool, <) MTL_BFLOAT_OP(bool, >) MTL_BFLOAT_OP(bool, <=) MTL_BFLOAT_OP(bool, >=)
MTL_BFLOAT_OP(bool, ==) MTL_BFLOAT_OP(bool, !=)
#undef MTL_BFLOAT_OP
constexpr bfloat operator-(bfloat a) { return __builtin_bit_cast(bfloat, uint16_t(a.bits ^ 0x8000)); }
constexpr half operator""h(long double x) { return (half)x; }
constexpr bfloat operator""bf(long double x) { return bfloat((float)x); }
