#pragma once
// Plans of matrix products: for each shape cuBLASLt's descriptors, created once, and the algorithm chosen for it.
//
// cuBLASLt is column-major, where our row-major d (M,N) is a matrix of N rows and M columns. So its A is our b, its B
// is our a, its m is N, its n is M; and a factor that we store contiguous along K is its "T" for A, its "N" for B.
#include <map>
#include <optional>
#include <unordered_map>

#include "device/gpu.h"
#include "ops/product_shape.h"

namespace octet::BACKEND {

inline constexpr int kBestAlignment = 16;  // bytes: no kernel gains by more

struct ProductKey {
  ProductShape shape;              // shape.bias: the epilogue adds it
  int alignment = kBestAlignment;  // of the worst aligned pointer: 1, 2, 4, 8 or 16
  int64_t pitch = 0;               // elements between the rows of both factors as stored; 0: they are contiguous
  bool operator==(const ProductKey&) const = default;
};
struct ProductHash {
  size_t operator()(const ProductKey&) const;
};
std::string text_of(const ProductKey&);  // "16384x12288x4096 e4m3 e4m3 bf16 bias fast"

struct ProductPointers {
  const void *a = nullptr, *b = nullptr, *c = nullptr;  // c: what is added: d itself, or the residual
  void* d = nullptr;
  const float *a_scale = nullptr, *b_scale = nullptr;
  const void* bias = nullptr;
  bool first_term = false;  // d is not read, although the plan is one that accumulates
};

class Product {  // the descriptors of a shape
 public:
  explicit Product(const ProductKey&);
  void bind(const ProductPointers&);  // sets the pointers that are part of the descriptor; run() passes the others
  cublasStatus_t run(Stream&, const ProductPointers&, const cublasLtMatmulAlgo_t&) const;
  std::vector<cublasLtMatmulAlgo_t> proposals(Device&, int most) const;
  bool accepts(Device&, const cublasLtMatmulAlgo_t&) const;
  uint32_t reductions(Device&) const;  // the ways of adding split sums that are allowed: cublasLtReductionScheme_t

 private:
  template <auto destroy>
  struct Destroy {
    void operator()(auto* p) const { destroy(p); }
  };
  using Layout = std::unique_ptr<cublasLtMatrixLayoutOpaque_t, Destroy<cublasLtMatrixLayoutDestroy>>;
  static Layout layout(DType, int64_t rows, int64_t cols, int64_t pitch = 0);
  ProductKey key_;
  std::unique_ptr<cublasLtMatmulDescOpaque_t, Destroy<cublasLtMatmulDescDestroy>> op_;
  Layout a_, b_, d_;  // of our a and b, not of cuBLASLt's
};

struct Choice {
  cublasLtMatmulAlgo_t algo{};  // 64 opaque bytes, valid for one card and one version of cuBLASLt
  double tflops = 0;            // as measured; 0: the library's first proposal, not timed
};

// Roughly normal numbers, for timing; FP8 codes scaled as a cast would scale them. In a file of its own, because nvcc
// cannot compile spdlog.
void fill_random(Stream&, Tensor, uint64_t stream);

class ProductPlans {
 public:
  explicit ProductPlans(Device&);  // reads the plan cache
  static ProductPlans& of(Device&);
  bool run(Stream&, const ProductKey&, const ProductPointers&);  // false: the library has no kernel for it
  bool has(const ProductKey&);                                   // a plan that the library takes
  void choose(const ProductKey&, const Choice&);
  std::string text() const;
  int add_text(const std::string& lines, const std::string& source);  // how many it could not use
  void save() const;  // into the plan cache; keeps other cards' and versions' lines

 private:
  struct Plan {
    Product product;
    std::optional<cublasLtMatmulAlgo_t> algo;
    bool refused = false;
  };
  Plan& find(const ProductKey&, const ProductPointers&);
  std::optional<cublasLtMatmulAlgo_t> stored(const ProductKey&, const Product& bound);
  std::string line(const std::string& key, const Choice&) const;

  Device& device_;
  std::unordered_map<ProductKey, Plan, ProductHash> plans_;
  std::map<std::string, Choice> chosen_;  // by text_of(key), as files and checkpoints hold them
};

}  // namespace octet::BACKEND
