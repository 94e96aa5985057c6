#pragma once
// Writes a produced matrix in every form that its operand holds, in parallel over rows.
#include <atomic>

#include "ops/cpu/rows.h"

namespace octet::BACKEND {

inline uint32_t magnitude(float v) { return std::bit_cast<uint32_t>(v) & 0x7fffffffu; }  // orders NaN > inf > finite

inline void raise_to(uint32_t* amax, uint32_t bits) {
  if (bits > 0x7f800000u) bits = 0x7fffffffu;  // any NaN, whose payload does not matter
  std::atomic_ref<uint32_t> shared(*amax);
  for (uint32_t seen = shared.load(std::memory_order_relaxed);
       seen < bits && !shared.compare_exchange_weak(seen, bits);) {}
}

template <class R>
uint32_t largest_magnitude(const R* x, int64_t n) {
  uint32_t m = 0;
  for (int64_t i = 0; i < n; ++i) m = std::max(m, magnitude(float(x[i])));
  return m;
}

template <class F8, class R>
void encode_row(uint8_t* codes, const R* x, int64_t n, float scale) {
  for (int64_t i = 0; i < n; ++i) codes[i] = F8(float(x[i]) * scale).bits;
}

// The operand's addresses, read and checked once; T stores the plain form.
template <class T>
class Emit {
 public:
  using R = Real<T>;
  static constexpr int64_t kRows = 32;  // rows that a thread takes at a time
  Emit(const Operand& y, int64_t rows, int64_t cols)
      : rows_(rows), cols_(cols), slot_(y.slot), scale_(y.slot.scale ? *y.slot.scale : 1) {
    for (const Tensor& t : {y.plain, y.q}) CHECK(!t || (t.rows() == rows && t.cols() == cols), t.shape);
    CHECK(!y.q_t || (y.q_t.rows() == cols && y.q_t.cols() == rows), y.q_t.shape);
    CHECK((!y.q && !y.q_t) || (y.slot.scale && is_fp8(y.slot.format)), "an FP8 form without a scale");
    for (const Tensor& t : {y.q, y.q_t}) CHECK(!t || t.dtype == y.slot.format, name_of(t.dtype));
    if (y.plain) plain_ = y.plain.ptr<T>();
    q_ = static_cast<uint8_t*>(y.q.data);
    q_t_ = static_cast<uint8_t*>(y.q_t.data);
    if (y.scale_inv && y.slot.scale) *y.scale_inv = 1 / scale_;
  }
  // Writes row n: its plain form, and its FP8 codes to `codes` (its place in q, or scratch).
  // amax: the calling thread's.
  void row(int64_t n, const R* v, uint8_t* codes, uint32_t& amax) const {
    if (slot_.amax) amax = std::max(amax, largest_magnitude(v, cols_));
    if (quantised()) {
      if (slot_.format == DType::e4m3) encode_row<e4m3>(codes, v, cols_, scale_);
      else encode_row<e5m2>(codes, v, cols_, scale_);
    }
    if (plain_) narrow(plain_ + n * cols_, v, cols_);
  }
  // Writes codes (count, cols) of the rows from n on in the transposed form, cache line by cache line.
  void transposed(int64_t n, int64_t count, const uint8_t* codes) const {
    if (!q_t_) return;
    for (int64_t c0 = 0; c0 < cols_; c0 += kRows)
      for (int64_t c = c0; c < std::min(cols_, c0 + kRows); ++c)
        for (int64_t i = 0; i < count; ++i) q_t_[c * rows_ + n + i] = codes[i * cols_ + c];
  }
  bool quantised() const { return q_ || q_t_; }
  uint8_t* codes_at(int64_t n, uint8_t* own) const { return q_ ? q_ + n * cols_ : own; }
  void measured(uint32_t amax) const {
    if (slot_.amax) raise_to(slot_.amax, amax);
  }

 private:
  int64_t rows_, cols_;
  Slot slot_;
  float scale_;
  T* plain_ = nullptr;
  uint8_t *q_ = nullptr, *q_t_ = nullptr;
};

// y (rows, cols): fill(n, v) computes row n into v. A row is complete before it is written, so
// y.plain may be the input.
template <class T, class F>
void emit_rows(const Operand& y, int64_t rows, int64_t cols, F&& fill) {
  const Emit<T> emit(y, rows, cols);
  constexpr int64_t kRows = Emit<T>::kRows;
#pragma omp parallel
  {
    const auto v = buffer<Real<T>>(cols);
    const auto own = buffer<uint8_t>(emit.quantised() ? kRows * cols : 0);
    uint32_t amax = 0;
#pragma omp for schedule(static)
    for (int64_t n0 = 0; n0 < rows; n0 += kRows) {
      const int64_t count = std::min(kRows, rows - n0);
      uint8_t* codes = emit.codes_at(n0, own.get());
      for (int64_t i = 0; i < count; ++i) {
        fill(n0 + i, v.get());
        emit.row(n0 + i, v.get(), codes + i * cols, amax);
      }
      emit.transposed(n0, count, codes);
    }
    emit.measured(amax);
  }
}

}  // namespace octet::BACKEND
