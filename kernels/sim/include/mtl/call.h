// Calls a kernel function that has its own signature: buffers in order, then the attributes.
#pragma once
#include "mtl/matrix.h"

namespace mtl_call {
struct attribute {  // converts to whatever integer or vector type the function declares
  uint32_t x, y, z;
  attribute(uint32_t v) : x(v), y(0), z(0) {}
  attribute(metal::uint3 v) : x(v.v[0]), y(v.v[1]), z(v.v[2]) {}
  operator metal::uint3() const { return metal::uint3(x, y, z); }
  operator metal::uint2() const { return metal::uint2(x, y); }
  operator uint() const { return x; }
  operator ushort() const { return (ushort)x; }
};
template <class P> struct argument { static P get(void *p) { return (P)p; } };
template <class P> struct argument<P &> { static P &get(void *p) { return *(P *)p; } };
template <size_t... I> struct indices {};
template <size_t N, size_t... I> struct up_to : up_to<N - 1, N - 1, I...> {};
template <size_t... I> struct up_to<0, I...> { using type = indices<I...>; };
template <size_t I, class Head, class... Tail> struct nth { using type = typename nth<I - 1, Tail...>::type; };
template <class Head, class... Tail> struct nth<0, Head, Tail...> { using type = Head; };

template <class... P, size_t... I, class... A>
void call(void (*f)(P...), void **buffers, indices<I...>, A... attributes) {
  f(argument<typename nth<I, P...>::type>::get(buffers[I])..., attributes...);
}
template <class... P, class... A> void call(void (*f)(P...), void **buffers, A... attributes) {
  call(f, buffers, typename up_to<sizeof...(P) - sizeof...(A)>::type{}, attributes...);
}
}  // namespace mtl_call
