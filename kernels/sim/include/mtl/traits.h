// Metal's <metal_type_traits> and <metal_limits>.
#pragma once
#include "mtl/scalar.h"

namespace metal {
using ::bfloat; using ::half;
using ::size_t; using ::ptrdiff_t;
using ::int8_t; using ::int16_t; using ::int32_t; using ::int64_t;
using ::uint8_t; using ::uint16_t; using ::uint32_t; using ::uint64_t;

template <class T, T v> struct integral_constant {
  static constexpr T value = v;
  using value_type = T;
  using type = integral_constant;
  constexpr operator T() const { return v; }
  constexpr T operator()() const { return v; }
};
template <bool B> using bool_constant = integral_constant<bool, B>;
using true_type = bool_constant<true>;
using false_type = bool_constant<false>;
template <bool B, class T = void> using enable_if = mtl_enable<B, T>;
template <bool B, class T = void> using enable_if_t = typename mtl_enable<B, T>::type;
template <bool B, class T, class F> struct conditional { using type = T; };
template <class T, class F> struct conditional<false, T, F> { using type = F; };
template <bool B, class T, class F> using conditional_t = typename conditional<B, T, F>::type;
template <class A, class B> struct is_same : false_type {};
template <class A> struct is_same<A, A> : true_type {};
template <class A, class B> constexpr bool is_same_v = is_same<A, B>::value;
template <class T> struct remove_const { using type = T; };
template <class T> struct remove_const<const T> { using type = T; };
template <class T> using remove_const_t = typename remove_const<T>::type;
template <class T> struct remove_volatile { using type = T; };
template <class T> struct remove_volatile<volatile T> { using type = T; };
template <class T> struct remove_cv { using type = typename remove_volatile<remove_const_t<T>>::type; };
template <class T> using remove_cv_t = typename remove_cv<T>::type;
template <class T> struct remove_reference { using type = T; };
template <class T> struct remove_reference<T &> { using type = T; };
template <class T> struct remove_reference<T &&> { using type = T; };
template <class T> using remove_reference_t = typename remove_reference<T>::type;
template <class T> struct remove_pointer { using type = T; };
template <class T> struct remove_pointer<T *> { using type = T; };
template <class T> using remove_pointer_t = typename remove_pointer<T>::type;
template <class T> struct remove_addrspace { using type = T; };
template <class T> using remove_addrspace_t = T;
template <class T> struct add_pointer { using type = T *; };
template <class T> struct decay { using type = remove_cv_t<remove_reference_t<T>>; };
template <class T> using decay_t = typename decay<T>::type;
template <class T> struct is_integral : bool_constant<mtl_is_int<remove_cv_t<T>>::value> {};
template <class T> constexpr bool is_integral_v = is_integral<T>::value;
template <class T> constexpr bool is_floating_point_v =
    is_same_v<remove_cv_t<T>, float> || is_same_v<remove_cv_t<T>, half> || is_same_v<remove_cv_t<T>, bfloat>;
template <class T> struct is_floating_point : bool_constant<is_floating_point_v<T>> {};
template <class T> constexpr bool is_arithmetic_v = is_integral_v<T> || is_floating_point_v<T>;
template <class T> struct is_arithmetic : bool_constant<is_arithmetic_v<T>> {};
template <class T> struct is_unsigned : bool_constant<is_integral_v<T> && (T(-1) > T(0))> {};
template <class T> constexpr bool is_unsigned_v = is_unsigned<T>::value;
template <class T> struct is_signed : bool_constant<is_arithmetic_v<T> && !is_unsigned_v<T>> {};
template <class T> constexpr bool is_signed_v = is_signed<T>::value;
template <class T> T &&declval() noexcept;
template <class From, class To> struct is_convertible {
  static void take(To);
  template <class F> static auto test(int) -> decltype(take(declval<F>()), true_type{});
  template <class F> static false_type test(...);
  static constexpr bool value = decltype(test<From>(0))::value;
};
template <class F, class T> constexpr bool is_convertible_v = is_convertible<F, T>::value;
template <class T, class... A> struct is_constructible : bool_constant<__is_constructible(T, A...)> {};

template <class T> struct numeric_limits {
  static constexpr bool is_signed = T(-1) < T(0);
  static constexpr T max() { return is_signed ? T((1ul << (sizeof(T) * 8 - 1)) - 1) : T(~T(0)); }
  static constexpr T min() { return is_signed ? T(1ul << (sizeof(T) * 8 - 1)) : T(0); }
  static constexpr T lowest() { return min(); }
  static constexpr int digits = sizeof(T) * 8 - is_signed;
};
template <> struct numeric_limits<bool> {
  static constexpr bool max() { return true; }
  static constexpr bool min() { return false; }
};
#define MTL_FLOAT_LIMITS(T, MAX, MIN, EPSILON, INF, NOT_A_NUMBER) \
  template <> struct numeric_limits<T> {                          \
    static constexpr T max() { return MAX; }                      \
    static constexpr T min() { return MIN; }                      \
    static constexpr T lowest() { return -MAX; }                  \
    static constexpr T epsilon() { return EPSILON; }              \
    static constexpr T infinity() { return INF; }                 \
    static constexpr T quiet_NaN() { return NOT_A_NUMBER; }       \
  };
MTL_FLOAT_LIMITS(float, __FLT_MAX__, __FLT_MIN__, __FLT_EPSILON__, __builtin_inff(), __builtin_nanf(""))
MTL_FLOAT_LIMITS(half, (half)65504.0f, (half)6.103515625e-05f, (half)9.765625e-04f, (half)__builtin_inff(),
                 (half)__builtin_nanf(""))
#define MTL_BITS(b) __builtin_bit_cast(bfloat, (uint16_t)b)
MTL_FLOAT_LIMITS(bfloat, MTL_BITS(0x7f7f), MTL_BITS(0x0080), MTL_BITS(0x3c00), MTL_BITS(0x7f80), MTL_BITS(0x7fc0))
#undef MTL_BITS
#undef MTL_FLOAT_LIMITS
}  // namespace metal

#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#define HALF_MAX 65504.0h
#define FLT_MAX __FLT_MAX__
#define FLT_MIN __FLT_MIN__
#define M_PI_F 3.14159274101257324219f
#define M_LOG2E_F 1.44269502162933349609f
#define M_LN2_F 0.69314718246459960938f
