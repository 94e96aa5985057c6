// cuBLASLt descriptors of products, and the lookup of the plan for a call.
#include "ops/gpu/gemm_plans.h"

#include <spdlog/spdlog.h>

#include "base/rng.h"

namespace octet::BACKEND {
namespace {

cudaDataType_t cuda_type(DType t) {
  switch (t) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::e4m3:
      return CUDA_R_8F_E4M3;
    case DType::e5m2:
      return CUDA_R_8F_E5M2;
    default:
      bad_input("the gpu engine has no matrix product of ", name_of(t));
  }
}

template <class T>
void set(cublasLtMatmulDesc_t op, cublasLtMatmulDescAttributes_t what, T value) {
  CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(op, what, &value, sizeof value));
}
template <class T>
void set(cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t what, T value) {
  CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(p, what, &value, sizeof value));
}

}  // namespace

size_t ProductHash::operator()(const ProductKey& k) const {
  const ProductShape& p = k.shape;
  const uint64_t flags = uint64_t(p.a) | uint64_t(p.b) << 4 | uint64_t(p.d) << 8 | uint64_t(p.a_transposed) << 12 |
                         uint64_t(p.b_transposed) << 13 | uint64_t(p.accumulate) << 14 | uint64_t(p.residual) << 15 |
                         uint64_t(p.bias) << 16 | uint64_t(p.fast) << 17 | uint64_t(k.alignment) << 18;
  return mix(mix(random_bits(uint64_t(p.M), uint64_t(p.N), uint64_t(p.K)) + flags) + uint64_t(k.pitch));
}

std::string text_of(const ProductKey& k) {
  const ProductShape& p = k.shape;
  std::string s = concat(p.M, "x", p.N, "x", p.K, " ", name_of(p.a), p.a_transposed ? "^T " : " ", name_of(p.b),
                         p.b_transposed ? "^T " : " ", name_of(p.d));
  if (p.accumulate) s += " accumulate";
  if (p.residual) s += " residual";
  if (p.bias) s += " bias";
  if (p.fast) s += " fast";
  if (k.pitch) s += concat(" pitch ", k.pitch);
  if (k.alignment < kBestAlignment) s += concat(" aligned ", k.alignment);
  return s;
}

Product::Layout Product::layout(DType t, int64_t rows, int64_t cols, int64_t pitch) {  // row-major (rows, cols)
  cublasLtMatrixLayout_t l = nullptr;
  CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&l, cuda_type(t), uint64_t(cols), uint64_t(rows), pitch ? pitch : cols));
  return Layout(l);
}

Product::Product(const ProductKey& key) : key_(key) {
  const ProductShape& p = key.shape;
  a_ = p.a_transposed ? layout(p.a, p.K, p.M, key.pitch) : layout(p.a, p.M, p.K, key.pitch);
  b_ = p.b_transposed ? layout(p.b, p.K, p.N, key.pitch) : layout(p.b, p.N, p.K, key.pitch);
  d_ = layout(p.d, p.M, p.N);
  cublasLtMatmulDesc_t op = nullptr;
  CUBLAS_CHECK(cublasLtMatmulDescCreate(&op, CUBLAS_COMPUTE_32F, CUDA_R_32F));  // of fp32 factors: true fp32, no TF32
  op_.reset(op);
  set(op, CUBLASLT_MATMUL_DESC_TRANSA, p.b_transposed ? CUBLAS_OP_N : CUBLAS_OP_T);
  set(op, CUBLASLT_MATMUL_DESC_TRANSB, p.a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (is_fp8(p.a)) set(op, CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t(p.fast));
  if (p.bias) {
    set(op, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(op, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, int32_t(cuda_type(epilogue_bias(p.a, p.d))));
  }
}

void Product::bind(const ProductPointers& p) {
  if (is_fp8(key_.shape.a)) {
    set(op_.get(), CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.b_scale);
    set(op_.get(), CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.a_scale);
  }
  if (key_.shape.bias) set(op_.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
}

cublasStatus_t Product::run(Stream& s, const ProductPointers& p, const cublasLtMatmulAlgo_t& algo) const {
  const bool adds = key_.shape.residual || (key_.shape.accumulate && !p.first_term);
  const float alpha = 1, beta = adds ? 1 : 0;
  void* const workspace = s.device().impl().workspace(s);
  return cublasLtMatmul(s.device().impl().lt, op_.get(), &alpha, p.b, b_.get(), p.a, a_.get(), &beta, p.c, d_.get(),
                        p.d, d_.get(), &algo, workspace, kProductWorkspace, raw(s));
}

// Split-K adds partial sums in an order that the library does not guarantee, and by some schemes in the type of d: a
// sum of bf16 numbers, where d is no wider.
uint32_t Product::reductions(Device& device) const {
  if (device.target().deterministic) return CUBLASLT_REDUCTION_SCHEME_NONE;
  return size_of(key_.shape.d) < size_of(DType::f32) ? CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE
                                                     : CUBLASLT_REDUCTION_SCHEME_MASK;
}

std::vector<cublasLtMatmulAlgo_t> Product::proposals(Device& device, int most) const {
  cublasLtMatmulPreference_t made = nullptr;
  CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&made));
  const std::unique_ptr<cublasLtMatmulPreferenceOpaque_t, Destroy<cublasLtMatmulPreferenceDestroy>> preference(made);
  set(made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t(kProductWorkspace));
  for (const auto which : {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
                           CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    set(made, which, uint32_t(key_.alignment));
  set(made, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, reductions(device));
  std::vector<cublasLtMatmulHeuristicResult_t> found(most);
  int count = 0;
  const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(device.impl().lt, op_.get(), b_.get(), a_.get(),
                                                               d_.get(), d_.get(), made, most, found.data(), &count);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
  CUBLAS_CHECK(status);
  std::vector<cublasLtMatmulAlgo_t> algos;
  for (int i = 0; i < count; ++i)
    if (found[size_t(i)].state == CUBLAS_STATUS_SUCCESS) algos.push_back(found[size_t(i)].algo);
  return algos;
}

bool Product::accepts(Device& device, const cublasLtMatmulAlgo_t& algo) const {
  uint32_t reduction = 0;
  size_t written = 0;
  if (cublasLtMatmulAlgoConfigGetAttribute(&algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, &reduction, sizeof reduction,
                                           &written) != CUBLAS_STATUS_SUCCESS ||
      reduction & ~reductions(device))
    return false;
  cublasLtMatmulHeuristicResult_t r{};
  return cublasLtMatmulAlgoCheck(device.impl().lt, op_.get(), b_.get(), a_.get(), d_.get(), d_.get(), &algo, &r) ==
             CUBLAS_STATUS_SUCCESS &&
         r.workspaceSize <= kProductWorkspace;
}

ProductPlans& ProductPlans::of(Device& d) {
  std::shared_ptr<void>& slot = d.impl().products;
  if (!slot) slot = std::make_shared<ProductPlans>(d);
  return *static_cast<ProductPlans*>(slot.get());
}

// What is chosen for the product, unless it is refused: then it is forgotten, to be chosen anew.
std::optional<cublasLtMatmulAlgo_t> ProductPlans::stored(const ProductKey& key, const Product& bound) {
  const auto found = chosen_.find(text_of(key));
  if (found == chosen_.end()) return {};
  if (bound.accepts(device_, found->second.algo)) return found->second.algo;
  spdlog::warn("cuBLASLt refuses the stored plan of product {}; it will be chosen anew", found->first);
  chosen_.erase(found);
  return {};
}

bool ProductPlans::has(const ProductKey& key) {
  alignas(256) static const char anything[256]{};  // only the pointers' presence and alignment are looked at
  const auto* scale = reinterpret_cast<const float*>(anything);
  Product product(key);
  product.bind({.a_scale = scale, .b_scale = scale, .bias = anything});
  return stored(key, product).has_value();
}

ProductPlans::Plan& ProductPlans::find(const ProductKey& key, const ProductPointers& p) {
  if (const auto found = plans_.find(key); found != plans_.end()) {
    found->second.product.bind(p);
    return found->second;
  }
  Plan plan{Product(key), {}};
  plan.product.bind(p);  // before anything else: cuBLASLt's heuristics and checks depend on the descriptor's pointers
  plan.algo = stored(key, plan.product);
  return plans_.emplace(key, std::move(plan)).first->second;
}

void ProductPlans::choose(const ProductKey& key, const Choice& c) {
  chosen_[text_of(key)] = c;
  plans_.erase(key);
}

bool ProductPlans::run(Stream& s, const ProductKey& key, const ProductPointers& p) {
  Plan& plan = find(key, p);
  if (plan.algo) CUBLAS_CHECK(plan.product.run(s, p, *plan.algo));
  if (plan.algo || plan.refused) return !plan.refused;
  constexpr int kProposals = 8;
  for (const cublasLtMatmulAlgo_t& algo : plan.product.proposals(device_, kProposals)) {
    if (plan.product.run(s, p, algo) != CUBLAS_STATUS_SUCCESS) continue;  // it checks before it launches
    plan.algo = algo;
    chosen_[text_of(key)] = {algo, 0};
    spdlog::debug("product {} was not tuned; it takes cuBLASLt's first proposal that runs", text_of(key));
    return true;
  }
  plan.refused = true;
  return false;
}

}  // namespace octet::BACKEND
