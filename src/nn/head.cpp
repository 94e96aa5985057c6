#include "nn/head.h"

namespace octet::BACKEND {

void LossHead::train(Context& c, Tensor loss, Tensor d, Tensor x, Tensor targets, LossFactor factor) {
  const Arena::Scope scope(c.scratch);
  const int64_t N = x.rows(), V = w_.shape[0];
  const Operand w = c.params.value(w_);
  const Tensor losses = c.scratch.alloc(wide(x.dtype), {N});
  const Tensor buffer = c.scratch.alloc(x.dtype, {chunk(N), V});
  for (int64_t n = 0; n < N; n += chunk(N)) {
    const int64_t rows = std::min(chunk(N), N - n);
    const Operand xn{.plain = x.row_range(n, rows)}, logits{.plain = buffer.row_range(0, rows)};
    gemm(c.stream, {.d = logits.plain, .a = xn.by_cols(Precision::plain), .b = w.by_cols(Precision::plain)});
    cross_entropy(c.stream, losses.part(n, {rows}), logits.plain, targets.part(n, {rows}), options_.vocabulary, factor,
                  Backward::yes);  // now logits holds dlogits
    const ParameterStore::Sum dw = c.params.sum(w_);
    gemm(c.stream, {.d = dw.d,
                    .a = logits.by_rows(Precision::plain),
                    .b = xn.by_rows(Precision::plain),
                    .accumulate = true,
                    .first_term = dw.first_term});
    gemm(c.stream,
         {.d = d.row_range(n, rows), .a = logits.by_cols(Precision::plain), .b = w.by_rows(Precision::plain)});
  }
  sum(c.stream, loss, losses);
}

void LossHead::evaluate(Context& c, Tensor losses, Tensor x, Tensor targets) {
  logits(c, x, [&](int64_t n, Tensor some) {
    const Shape rows{some.rows()};
    cross_entropy(c.stream, losses.part(n, rows), some, targets.part(n, rows), options_.vocabulary, 0, Backward::no);
  });
}

void LossHead::logits(Context& c, Tensor x, const Sink& sink) {
  const Arena::Scope scope(c.scratch);
  const int64_t N = x.rows();
  const Factor w = c.params.value(w_).by_cols(Precision::plain);
  const Tensor buffer = c.scratch.alloc(x.dtype, {chunk(N), w_.shape[0]});
  for (int64_t n = 0; n < N; n += chunk(N)) {
    const Tensor some = buffer.row_range(0, std::min(chunk(N), N - n));
    gemm(c.stream, {.d = some, .a = {x.row_range(n, some.rows())}, .b = w});
    sink(n, some);
  }
}

void LossHead::logits(Context& c, Tensor y, Tensor x) {
  gemm(c.stream, {.d = y, .a = {x}, .b = c.params.value(w_).by_cols(Precision::plain), .b_ready = c.decodes()});
}

}  // namespace octet::BACKEND
