// Attention by cuDNN. Its backend API (9.19) has no causal attention operation: the caller describes attention as a
// graph of products, pointwise operations and reductions, whose T x T tensors are never stored, and cuDNN matches the
// graph against its kernels. A graph that deviates from what it expects may be refused, but also accepted and computed
// wrongly: where we know that it then gives NaN, a comment says "NaN". tests/gpu/test_attention.cpp must pass after any
// change.
#include <compare>
#include <iostream>
#include <map>

#include "base/recent.h"
#include "device/gpu.h"
#include "ops/gpu/attention.h"
#include "ops/gpu/cudnn_graph.h"
#include "ops/tune.h"
#include "ops/workspace.h"

namespace octet::BACKEND {
namespace {

using namespace cudnn;

enum Uid : int64_t {
  kVirtual,
  kQ,
  kK,
  kV,
  kO,
  kStats,
  kDO,
  kDQ,
  kDK,
  kDV,
  kDQSum,
  kDelta,
  kScale,
  kMinusInf,
  kOne,
  kUids
};
enum class Pass { forward, backward, backward_deterministic };

struct Case {             // what a plan is built for: a slice of the batch, some sequences and some groups of heads
  int64_t B, G, H, T, D;  // of the slice
  int64_t all_H, all_G, interleaved;
  Pass pass;
  auto operator<=>(const Case&) const = default;
};

class AttentionGraph : public Graph {
 public:
  explicit AttentionGraph(const Case& c)
      : c_(c), layout_{.H = c.all_H, .G = c.all_G, .D = c.D, .interleaved = c.interleaved != 0} {
    if (c.pass == Pass::forward) forward();
    else backward(c.pass == Pass::backward_deterministic);
  }

 private:
  // Dimensions and strides in the order batch, head, token, element.
  const Case c_;
  const Heads layout_;
  const int64_t width_ = layout_.width(), q_step_ = layout_.q(1), kv_step_ = layout_.k(1) - layout_.k(0);
  const Dims query_{c_.B, c_.H, c_.T, c_.D}, key_{c_.B, c_.G, c_.T, c_.D}, key_t_{c_.B, c_.G, c_.D, c_.T};
  const Dims packed_q_{c_.T * width_, q_step_, width_, 1}, packed_{c_.T * width_, kv_step_, width_, 1};
  const Dims packed_t_{c_.T * width_, kv_step_, 1, width_};
  const Dims out_{c_.T * c_.all_H * c_.D, c_.D, c_.all_H*c_.D, 1}, dense_{c_.H * c_.T * c_.D, c_.T*c_.D, c_.D, 1};
  const Dims scores_{c_.B, c_.H, c_.T, c_.T}, scores_t_{c_.H * c_.T * c_.T, c_.T*c_.T, 1, c_.T};

  Raw row(int64_t uid = kVirtual) { return tensor(uid, F32, {c_.B, c_.H, c_.T, 1}, {c_.all_H * c_.T, c_.T, 1, 1}); }
  Raw score(cudnnDataType_t type = F32) {
    return tensor(kVirtual, type, scores_, {c_.H * c_.T * c_.T, c_.T * c_.T, c_.T, 1});
  }
  Raw mul(Raw a, Raw b, cudnnDataType_t type = F32) { return pointwise(CUDNN_POINTWISE_MUL, {a, b}, score(type)); }
  Raw sub(Raw a, Raw b) { return pointwise(CUDNN_POINTWISE_SUB, {a, b}, score()); }
  Raw exp(Raw x) { return pointwise(CUDNN_POINTWISE_EXP, {x}, score()); }
  Raw causal_mask(Raw x) {  // x where row >= column, else -inf
    Raw i = index(x, 2, score(I32)), j = index(x, 3, score(I32));
    Raw keep = pointwise(CUDNN_POINTWISE_CMP_GE, {i, j}, score(BOOL), BOOL);
    return pointwise(CUDNN_POINTWISE_BINARY_SELECT, {x, scalar(kMinusInf), keep}, score());
  }

  void forward() {
    Raw q = tensor(kQ, BF16, query_, packed_q_), kt = tensor(kK, BF16, key_t_, packed_t_);
    Raw v = tensor(kV, BF16, key_, packed_);
    Raw x = causal_mask(mul(matmul(q, kt, score()), scalar(kScale)));  // heads broadcast where G < H
    Raw max = reduce(CUDNN_REDUCE_TENSOR_MAX, x, row()), e = exp(sub(x, max));
    Raw sum = reduce(CUDNN_REDUCE_TENSOR_ADD, e, row()), log = pointwise(CUDNN_POINTWISE_LOG, {sum}, row());
    pointwise(CUDNN_POINTWISE_ADD, {max, log}, row(kStats));
    matmul(pointwise(CUDNN_POINTWISE_DIV, {e, sum}, score(BF16)), v, tensor(kO, BF16, query_, out_));
  }

  // y = a^T b, summed over the query heads that share a key head. NaN if the heads before the sum are fp32.
  void key_gradient(Raw a, Raw b, Uid uid) {
    Raw at = reshape(a, tensor(kVirtual, BF16, scores_, scores_t_)), y = tensor(uid, BF16, key_, packed_);
    if (c_.H == c_.G) matmul(at, b, y);
    else reduce(CUDNN_REDUCE_TENSOR_ADD, matmul(at, b, tensor(kVirtual, BF16, query_, dense_)), y);
  }

  // Normally dq is summed over key tiles by atomic additions into fp32 memory, in no fixed order. Deterministic: dq is
  // a product of its own, for which cuDNN keeps B*H*T*T bf16 values in its workspace.
  void backward(bool deterministic) {
    Raw q = tensor(kQ, BF16, query_, packed_q_), kt = tensor(kK, BF16, key_t_, packed_t_);
    Raw vt = tensor(kV, BF16, key_t_, packed_t_);  // transposed, unlike in the forward graph
    Raw o = tensor(kO, BF16, query_, out_), d_o = tensor(kDO, BF16, query_, out_), stats = row(kStats),
        scale = scalar(kScale);
    // delta = rowsum(do * o) * 1. NaN in dq and dk without the product with 1, which takes dropout's place.
    Raw product = pointwise(CUDNN_POINTWISE_MUL, {d_o, o}, tensor(kVirtual, F32, query_, dense_));
    Raw sum = reduce(CUDNN_REDUCE_TENSOR_ADD, product, row());
    Raw delta = pointwise(CUDNN_POINTWISE_MUL, {sum, scalar(kOne)}, row(kDelta));
    Raw p = exp(causal_mask(sub(mul(matmul(q, kt, score()), scale), stats)));
    key_gradient(p, d_o, kDV);
    Raw ds = mul(mul(sub(matmul(d_o, vt, score()), delta), p), scale, BF16);
    key_gradient(ds, q, kDK);
    Raw k = reshape(kt, tensor(kVirtual, BF16, key_, packed_)), dq = tensor(kDQ, BF16, query_, packed_q_);
    if (deterministic) matmul(ds, k, dq);
    else pointwise(CUDNN_POINTWISE_IDENTITY, {matmul(ds, k, tensor(kDQSum, F32, query_, dense_))}, dq);
  }
};

class Plans {  // of one device
 public:
  Plans() {
    check(cudnnCreate(&handle), "start");
    properties_.set(CUDNN_ATTR_DEVICEPROP_HANDLE, CUDNN_TYPE_HANDLE, 1, &handle).finalize();
  }
  Plans(const Plans&) = delete;
  ~Plans() {
    plans_.clear();
    cudnnDestroy(handle);
  }
  const Plan& get(const Case& c) {
    if (const Plan* plan = plans_.find(c)) return *plan;
    if (plans_.full()) CUDA_CHECK(cudaDeviceSynchronize());  // the one that ends may be under way
    return plans_.make(c, AttentionGraph(c), properties_.raw);
  }
  // Whether there is a plan that needs at most `room` bytes of workspace; warns once about each case without one.
  bool has(const Case& c, int64_t room) {
    const auto [it, first_time] = usable_.try_emplace(c, false);
    if (!first_time) return it->second;
    try {
      const std::string wrong =
          c.pass == Pass::forward ? "" : wrong_backward(cudnnGetVersion(), c.T, c.pass == Pass::backward_deterministic);
      if (!wrong.empty()) throw SystemError(wrong);
      if (const int64_t wanted = get(c).workspace_bytes(); wanted > room)
        throw SystemError(concat("cuDNN wants ", wanted, " bytes of workspace, ", room, " are planned"));
      it->second = true;
    } catch (const SystemError& e) {
      std::cerr << "attention " << (c.pass == Pass::forward ? "forward" : "backward") << " with T " << c.T << ", H "
                << c.all_H << ", G " << c.all_G << ", D " << c.D << " takes the program's own kernels: " << e.what()
                << '\n';
    }
    return it->second;
  }

  cudnnHandle_t handle = nullptr;

 private:
  Descriptor properties_{CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR};
  // Each holds its kernels. A run has few shapes, but generation one for each length of a prompt.
  static constexpr size_t kMost = 32;
  Recent<Case, Plan> plans_{kMost};
  std::map<Case, bool> usable_;
};

Plans& plans(Device& d) {
  std::shared_ptr<void>& slot = d.impl().attention;
  if (!slot) slot = std::make_shared<Plans>();
  return *static_cast<Plans*>(slot.get());
}

Case whole(const Attention& a, Pass pass) {
  const Heads& h = a.heads;
  return {a.B, h.G, h.H, a.T, h.D, h.H, h.G, h.interleaved, pass};
}
Case backward_case(Device& d, const Attention& a) {
  if (!d.target().deterministic) return whole(a, Pass::backward);
  Case c = whole(a, Pass::backward_deterministic);
  const AttentionSlice slice = attention_slice(a);
  c.B = slice.B, c.G = slice.G, c.H = slice.G * (a.heads.H / a.heads.G);
  return c;
}

struct Scalars {
  explicit Scalars(const Attention& a) : scale(float(a.scale)) {}
  float scale, minus_inf = -INFINITY, one = 1;
  void bind(std::vector<void*>& memory) {
    memory[kScale] = &scale, memory[kMinusInf] = &minus_inf, memory[kOne] = &one;
  }
};

// One slice of the backward pass: sequences from b on, groups from g on.
void backward_slice(Stream& s, const Case& c, const AttentionBackward& t, const Attention& a, int64_t b, int64_t g) {
  const Heads& heads = a.heads;
  const int64_t h = g * (heads.H / heads.G), row = b * a.T * heads.width(),
                out = b * a.T * heads.H * heads.D + h * heads.D;
  const int64_t statistic = (b * heads.H + h) * a.T;
  auto at = [](const Tensor& x, int64_t i) { return x.part(i, {0}).data; };
  const AttentionParts parts = attention_backward_parts(s.target(), a, DType::bf16);
  const Tensor delta = t.workspace.as(DType::f32, {a.B, heads.H, a.T});
  char* const dq_sum = static_cast<char*>(t.workspace.data) + parts.delta;
  std::vector<void*> memory(kUids);
  Scalars scalars(a);
  scalars.bind(memory);
  memory[kQ] = at(t.qkv, row + heads.q(h)), memory[kDQ] = at(t.dqkv, row + heads.q(h));
  memory[kK] = at(t.qkv, row + heads.k(g)), memory[kDK] = at(t.dqkv, row + heads.k(g));
  memory[kV] = at(t.qkv, row + heads.v(g)), memory[kDV] = at(t.dqkv, row + heads.v(g));
  memory[kO] = at(t.o, out), memory[kDO] = at(t.d_o, out), memory[kStats] = at(t.lse, statistic);
  memory[kDelta] = at(delta, statistic), memory[kDQSum] = dq_sum;
  Plans& all = plans(s.device());
  const Plan& plan = all.get(c);
  CHECK(plan.workspace_bytes() <= parts.own, "cuDNN wants ", plan.workspace_bytes(), " bytes of workspace, not ",
        parts.own);
  plan.run(all.handle, memory, dq_sum + parts.dq);
}

}  // namespace

bool cudnn_has_forward(Device& d, const Attention& a) { return plans(d).has(whole(a, Pass::forward), kCudnnSlack); }
bool cudnn_has_backward(Device& d, const Attention& a) {
  const Case c = backward_case(d, a);
  const bool slices = c.B < a.B || c.G < a.heads.G;
  if (slices && c.H * a.T % 4) return false;  // their lse and delta would not begin at multiples of 16 bytes
  return plans(d).has(c, attention_backward_parts(d.target(), a, DType::bf16).own);
}

void cudnn_attention_forward(Stream& s, const AttentionForward& t, const Attention& a) {
  Plans& all = plans(s.device());
  check(cudnnSetStream(all.handle, raw(s)), "stream");
  const Plan& plan = all.get(whole(a, Pass::forward));
  CHECK(plan.workspace_bytes() <= int64_t(t.workspace.bytes()), "cuDNN wants ", plan.workspace_bytes(),
        " bytes of workspace, ", t.workspace.bytes(), " are planned");
  std::vector<void*> memory(kUids);
  Scalars scalars(a);
  scalars.bind(memory);
  const Heads& heads = a.heads;
  memory[kQ] = t.qkv.part(heads.q(0), {0}).data, memory[kK] = t.qkv.part(heads.k(0), {0}).data;
  memory[kV] = t.qkv.part(heads.v(0), {0}).data, memory[kO] = t.o.data, memory[kStats] = t.lse.data;
  plan.run(all.handle, memory, t.workspace.data);
}

void cudnn_attention_backward(Stream& s, const AttentionBackward& t, const Attention& a) {
  check(cudnnSetStream(plans(s.device()).handle, raw(s)), "stream");
  const Case c = backward_case(s.device(), a);
  for (int64_t b = 0; b < a.B; b += c.B)
    for (int64_t g = 0; g < a.heads.G; g += c.G) backward_slice(s, c, t, a, b, g);
}

bool has_cudnn() { return true; }

}  // namespace octet::BACKEND
