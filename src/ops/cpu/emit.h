#pragma once
// Writes a produced matrix into every form that its operand holds: one row at a time, in parallel over rows.
#include <atomic>

#include "ops/cpu/rows.h"

namespace octet::BACKEND {

inline uint32_t magnitude(float v) { return std::bit_cast<uint32_t>(v) & 0x7fffffffu; }  // orders NaN > inf > finite

inline void raise_to(uint32_t* amax, uint32_t bits) {
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
  // codes: room for a row, of the calling thread; amax: its running maximum.
  void row(int64_t n, const R* v, uint8_t* codes, uint32_t& amax) const {
    if (slot_.amax) amax = std::max(amax, largest_magnitude(v, cols_));
    if (q_ || q_t_) {
      uint8_t* out = q_ ? q_ + n * cols_ : codes;
      if (slot_.format == DType::e4m3) encode_row<e4m3>(out, v, cols_, scale_);
      else encode_row<e5m2>(out, v, cols_, scale_);
      if (q_t_)
        for (int64_t c = 0; c < cols_; ++c) q_t_[c * rows_ + n] = out[c];
    }
    if (plain_) narrow(plain_ + n * cols_, v, cols_);
  }
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

// y (rows, cols): fill(n, v) computes row n into v. A row is complete before it is written, so y.plain may be the
// input.
template <class T, class F>
void emit_rows(const Operand& y, int64_t rows, int64_t cols, F&& fill) {
  const Emit<T> emit(y, rows, cols);
#pragma omp parallel
  {
    const auto v = buffer<Real<T>>(cols);
    const auto codes = buffer<uint8_t>(cols);
    uint32_t amax = 0;
#pragma omp for schedule(static)
    for (int64_t n = 0; n < rows; ++n) {
      fill(n, v.get());
      emit.row(n, v.get(), codes.get(), amax);
    }
    emit.measured(amax);
  }
}

}  // namespace octet::BACKEND
