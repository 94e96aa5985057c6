// Grouped matrix products: on Hopper by our kernel, which reads the offsets on the device; otherwise the offsets are
// copied to the host, and each expert has a product of its own.
#include <algorithm>

#include "ops/gpu/gemm_plans.h"
#include "ops/gpu/grouped_launch.h"
#include "ops/gpu/tensor_map.h"
#include "ops/grouped.h"
#include "ops/product_shape.h"

namespace octet::BACKEND {
namespace {

using grouped::kMost;
using grouped::Params;
using grouped::Store;

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }
// TMA needs bases and pitches that are multiples of 16 bytes; a thread stores eight columns at a time.
bool copyable(Tensor t) { return aligned(t.data) && t.cols() * int64_t(size_of(t.dtype)) % 16 == 0; }
bool storable(Tensor d) {
  return aligned(d.data) && d.cols() % 8 == 0 && (d.dtype == DType::bf16 || d.dtype == DType::f32);
}
bool multiplied(DType a, DType b) { return (a == DType::bf16 && b == DType::bf16) || (is_fp8(a) && b == DType::e4m3); }
bool hopper_takes(const Stream& s, const GroupedGemm& g) {
  if (s.target().compute_capability / 10 != 9 || !storable(g.d) || !copyable(g.a.t)) return false;
  return std::ranges::all_of(g.b, [&](const Factor& b) {
    return copyable(b.t) && multiplied(g.a.t.dtype, b.t.dtype) && b.transposed == g.b[0].transposed &&
           !(b.transposed && is_fp8(b.t.dtype));
  });
}
bool hopper_takes(const Stream& s, const GroupedGradient& g) {
  if (s.target().compute_capability / 10 != 9 || !copyable(g.a.t) || !copyable(g.b.t)) return false;
  const bool mn_major = g.a.t.dtype == DType::bf16;
  return multiplied(g.a.t.dtype, g.b.t.dtype) && g.a.transposed == mn_major && g.b.transposed == mn_major &&
         std::ranges::all_of(g.d, [&](const Tensor& d) { return storable(d) && d.dtype == g.d[0].dtype; });
}

// A matrix in boxes of 64 lines of 128 bytes.
CUtensorMap blocks_of(Tensor t) {
  const int64_t size = int64_t(size_of(t.dtype));
  return tensor_map<2>(t.dtype, t.data, {t.cols(), t.rows()}, {t.cols() * size}, {int(128 / size), 64});
}

// As many rounds as leave each thread block several tiles in each, since every round has to fill the stages anew.
int rounds_for(const Stream& s, int64_t rows, int64_t cols) {
  constexpr int64_t kTiles = 8, kMostRounds = 4;
  const int64_t tiles = (rows + 127) / 128 * ((cols + 255) / 256);
  return int(std::clamp(tiles / (kTiles * s.target().multiprocessors), int64_t{1}, kMostRounds));
}

void set_scales(Params& p, const Factor& a, const Factor& b, int64_t expert, int64_t a_step, int64_t b_step, int i) {
  if (!is_fp8(a.t.dtype)) return;
  CHECK(a.scale_inv && b.scale_inv, "an FP8 factor without a scale");
  p.a_scale[i] = a.scale_inv + expert * a_step;
  p.b_scale[i] = b.scale_inv + expert * b_step;
}

void run_on_hopper(Stream& s, const GroupedGemm& g) {
  const int64_t E = int64_t(g.b.size());
  Params p{.a = blocks_of(g.a.t), .N = int(g.d.cols()), .K = int(g.a.contracted())};
  p.d[0] = g.d.data;
  p.store = g.d.dtype == DType::f32 ? Store::f32 : Store::bf16;
  p.rounds = rounds_for(s, g.d.rows(), p.N);
  for (int64_t first = 0; first < E; first += kMost) {
    p.experts = int(std::min<int64_t>(kMost, E - first));
    p.offset = g.rows.offset.ptr<int32_t>() + first;
    p.M = first + p.experts == E ? int(g.d.rows()) : 0;
    for (int i = 0; i < p.experts; ++i) {
      const Factor& b = g.b[size_t(first + i)];
      p.expert[i] = blocks_of(b.t);
      set_scales(p, g.a, b, first + i, g.scale_step, 0, i);
    }
    if (is_fp8(g.a.t.dtype)) grouped::launch_rows_fp8(s, p, g.a.t.dtype, g.fast);
    else grouped::launch_rows_bf16(s, p, g.b[0].transposed);
  }
}

void run_on_hopper(Stream& s, const GroupedGradient& g) {
  const int64_t E = int64_t(g.d.size());
  Params p{.a = blocks_of(g.a.t), .b = blocks_of(g.b.t), .M = int(g.a.rows()), .N = int(g.b.rows())};
  if (g.d[0].dtype == DType::f32) p.store = g.first_term ? Store::f32 : Store::add_f32;
  else p.store = g.first_term ? Store::bf16 : Store::add_bf16;
  p.rounds = rounds_for(s, E * p.M, p.N);
  for (int64_t first = 0; first < E; first += kMost) {
    p.experts = int(std::min<int64_t>(kMost, E - first));
    p.offset = g.rows.offset.ptr<int32_t>() + first;
    for (int i = 0; i < p.experts; ++i) {
      const Tensor d = g.d[size_t(first + i)];
      p.d[i] = d.data;
      if (d.dtype == DType::f32) p.expert[i] = blocks_of(d);
      set_scales(p, g.a, g.b, first + i, g.scale_step, g.scale_step, i);
    }
    if (is_fp8(g.a.t.dtype)) grouped::launch_sums_fp8(s, p, g.a.t.dtype, g.fast);
    else grouped::launch_sums_bf16(s, p);
  }
}

// ---- one expert after the other
// f(e, first row, rows), also of experts without rows; returns the rows of all.
template <class F>
int64_t for_each_expert(Stream& s, const ExpertRows& rows, F&& f) {
  std::vector<int32_t> host(size_t(rows.offset.numel()));
  const std::vector<int64_t> first = moe_offsets(s, host.data(), rows.offset, rows.assignments);
  for (size_t e = 0; e + 1 < first.size(); ++e) f(int64_t(e), first[e], first[e + 1] - first[e]);
  return first.back();
}

Factor of_expert(Factor f, int64_t e, int64_t scale_step) {
  if (f.scale_inv) f.scale_inv += e * scale_step;
  return f;
}

void run_one_by_one(Stream& s, const GroupedGemm& g) {
  const int64_t used = for_each_expert(s, g.rows, [&](int64_t e, int64_t first, int64_t rows) {
    Factor a = of_expert(g.a, e, g.scale_step);
    a.t = a.t.row_range(first, rows);
    gemm(s, {.d = g.d.row_range(first, rows), .a = a, .b = g.b[size_t(e)], .fast = g.fast});
  });
  fill_zero(s, g.d.row_range(used, g.d.rows() - used));
}

// The FP8 codes of an expert are columns of a matrix, which takes a pitch: gemm()'s factors have none, cuBLASLt's may.
void add_product_of_columns(Stream& s, const GroupedGradient& g, int64_t e, int64_t first, int64_t rows) {
  const Factor a = of_expert(g.a, e, g.scale_step), b = of_expert(g.b, e, g.scale_step);
  const Tensor d = g.d[size_t(e)];
  const ProductKey key{.shape = {.M = d.rows(),
                                 .N = d.cols(),
                                 .K = rows,
                                 .a = a.t.dtype,
                                 .b = b.t.dtype,
                                 .d = d.dtype,
                                 .accumulate = true,
                                 .fast = g.fast},
                       .pitch = a.t.cols()};
  const ProductPointers p{.a = static_cast<const char*>(a.t.data) + first,
                          .b = static_cast<const char*>(b.t.data) + first,
                          .c = d.data,
                          .d = d.data,
                          .a_scale = a.scale_inv,
                          .b_scale = b.scale_inv,
                          .first_term = g.first_term};
  CHECK(ProductPlans::of(s.device()).run(s, key, p), "cuBLASLt ", cublasLtGetVersion(), " has no kernel for ",
        text_of(key), " on ", s.device().name());
}

void run_one_by_one(Stream& s, const GroupedGradient& g) {
  for_each_expert(s, g.rows, [&](int64_t e, int64_t first, int64_t rows) {
    if (rows == 0) {
      if (g.first_term) fill_zero(s, g.d[size_t(e)]);
      return;
    }
    if (is_fp8(g.a.t.dtype)) return add_product_of_columns(s, g, e, first, rows);
    const auto part = [&](Factor f) {
      CHECK(f.transposed, "plain factors of a grouped gradient are stored as they are produced: rows outermost");
      f.t = f.t.row_range(first, rows);
      return f;
    };
    gemm(s, {.d = g.d[size_t(e)],
             .a = part(g.a),
             .b = part(g.b),
             .accumulate = true,
             .first_term = g.first_term,
             .fast = g.fast});
  });
}

}  // namespace

void grouped_gemm(Stream& s, const GroupedGemm& g) {
  const Timed timed(s, product_class(g.a.t.dtype));
  const int64_t N = g.d.cols(), K = g.a.contracted(), E = int64_t(g.b.size());
  CHECK(g.rows.offset.numel() == E + 1 && g.a.rows() == g.d.rows() && !g.a.transposed, g.a.t.shape, " into ", g.d.shape,
        " for ", E, " experts");
  for (const Factor& b : g.b) CHECK(b.rows() == N && b.contracted() == K, b.t.shape, " for ", g.d.shape);
  if (g.d.numel() == 0) return;
  hopper_takes(s, g) ? run_on_hopper(s, g) : run_one_by_one(s, g);
}

void grouped_gradient(Stream& s, const GroupedGradient& g) {
  const Timed timed(s, product_class(g.a.t.dtype));
  const int64_t M = g.a.rows(), N = g.b.rows(), E = int64_t(g.d.size());
  CHECK(g.rows.offset.numel() == E + 1 && g.a.contracted() == g.b.contracted(), g.a.t.shape, " and ", g.b.t.shape,
        " for ", E, " experts");
  for (const Tensor& d : g.d) CHECK(d.rows() == M && d.cols() == N, d.shape, " for ", M, " x ", N);
  hopper_takes(s, g) ? run_on_hopper(s, g) : run_one_by_one(s, g);
}

}  // namespace octet::BACKEND
