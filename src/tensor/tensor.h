#pragma once
// Tensor: a non-owning, contiguous, row-major view of device memory. Copying a Tensor copies the view, never the data.
#include <array>
#include <cstddef>
#include <initializer_list>
#include <ostream>
#include <string_view>
#include <tuple>
#include <type_traits>

#include "base/check.h"
#include "base/float.h"

namespace octet {

enum class DType : uint8_t { f64, f32, f16, bf16, e4m3, e5m2, i32, u32 };  // f64: for checking derivatives on the cpu
constexpr size_t size_of(DType t) { return std::array<size_t, 8>{8, 4, 2, 2, 1, 1, 4, 4}[size_t(t)]; }
constexpr const char* name_of(DType t) {
  return std::array{"f64", "f32", "f16", "bf16", "e4m3", "e5m2", "i32", "u32"}[size_t(t)];
}
constexpr DType wide(DType t) { return t == DType::f64 ? DType::f64 : DType::f32; }  // for statistics and sums
constexpr bool is_fp8(DType t) { return t == DType::e4m3 || t == DType::e5m2; }
constexpr float largest(DType fp8) { return fp8 == DType::e4m3 ? e4m3::largest() : e5m2::largest(); }

// DType's C++ types, in its order.
using DTypes = std::tuple<double, float, f16, bf16, e4m3, e5m2, int32_t, uint32_t>;
static_assert(std::tuple_size_v<DTypes> == size_t(DType::u32) + 1);
template <class T, size_t i = 0>
constexpr DType find_dtype() {
  if constexpr (std::is_same_v<T, std::tuple_element_t<i, DTypes>>) return DType(i);
  else return find_dtype<T, i + 1>();
}
template <class T>
constexpr DType dtype_of = find_dtype<T>();

// Calls f.operator()<T>() with the T of the list that stores `t`. The only dtype switch in the program; each caller
// lists the types that it supports:   visit<float, bf16>(x.dtype, [&]<class T>() { … });
template <class... Ts, class F>
void visit(DType t, F&& f) {
  const bool found = ((t == dtype_of<Ts> && (f.template operator()<Ts>(), true)) || ...);
  CHECK(found, "this operation is not defined for ", name_of(t));
}

struct Shape {
  std::array<int64_t, 4> dim{1, 1, 1, 1};
  int rank = 0;
  Shape() = default;
  Shape(std::initializer_list<int64_t> d) : rank(int(d.size())) {
    CHECK(d.size() <= dim.size(), "a shape has at most 4 dimensions");
    int i = 0;
    for (int64_t v : d) dim[size_t(i++)] = v;
  }
  int64_t operator[](int i) const { return dim[size_t(i < 0 ? rank + i : i)]; }
  int64_t numel() const { return dim[0] * dim[1] * dim[2] * dim[3]; }
  bool operator==(const Shape&) const = default;
};
inline std::ostream& operator<<(std::ostream& o, const Shape& s) {
  o << '(';
  for (int i = 0; i < s.rank; ++i) o << (i ? ", " : "") << s[i];
  return o << ')';
}

struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;

  explicit operator bool() const { return data != nullptr; }
  int64_t numel() const { return shape.numel(); }
  int64_t cols() const { return shape[-1]; }                      // size of the innermost dimension
  int64_t rows() const { return cols() ? numel() / cols() : 0; }  // all other dimensions flattened
  size_t bytes() const { return size_t(numel()) * size_of(dtype); }
  Tensor part(int64_t first, Shape s) const {  // view of s.numel() elements, from element `first` on
    return {static_cast<char*>(data) + size_t(first) * size_of(dtype), dtype, s};
  }
  Tensor row_range(int64_t first, int64_t count) const { return part(first * cols(), {count, cols()}); }
  Tensor as(DType t, Shape s) const { return {data, t, s}; }  // the same bytes, read otherwise
  template <class T>
  T* ptr() const {
    CHECK(dtype == dtype_of<T>, "a tensor of ", name_of(dtype), " was read as ", name_of(dtype_of<T>));
    return static_cast<T*>(data);
  }
};

}  // namespace octet
