#pragma once
// The pre-norm transformer block that all architectures share: attention and an MLP (or experts) on a residual stream.
//   sequential  h = x + attention(norm1(x)),  y = h + mlp(norm2(h))
//   parallel    h = x + attention(norm1(x)),  y = h + mlp(norm2(x))                Wang & Komatsuzaki 2021 (GPT-J)
// Dimension key:  N rows   C channels
#include "models/model.h"
#include "nn/attention.h"

namespace octet::BACKEND {

enum class Residual : uint8_t { sequential, parallel };

// Members are in the order in which they declare their parameters; brace initialisation evaluates them in that order.
template <class Mlp>
struct BlockParts {
  Norm attention_norm;
  SelfAttention attention;
  Norm mlp_norm;
  Mlp mlp;
  Residual residual = Residual::sequential;
};

template <class Mlp>  // GatedMlp, GeluMlp, Moe
class ResidualBlock final : public Block {
 public:
  explicit ResidualBlock(BlockParts<Mlp> parts) : parts_(std::move(parts)) {}

  void forward(Context& c, Tensor y, Tensor x) override {
    const int64_t N = x.rows();
    Arena& memory = c.pass == Pass::evaluate ? c.scratch : c.saved;
    const Tensor h = memory.alloc(x.dtype, x.shape);
    const bool steps = c.decodes() && parts_.attention_norm.options().kind == Norm::Kind::rms;  // fused: Linear::step
    if (steps) {
      parts_.attention.step(c, h, parts_.attention_norm, x);
    } else {
      const Operand a = parts_.attention.input(c, N);
      parts_.attention_norm.forward(c, a, x);
      parts_.attention.forward(c, h, a, x);
    }
    const Tensor& second = parallel() ? x : h;
    if constexpr (requires { parts_.mlp.step(c, y, parts_.mlp_norm, second, h); })  // Moe has none
      if (steps) return parts_.mlp.step(c, y, parts_.mlp_norm, second, h);
    const Operand m = parts_.mlp.input(c, N);
    parts_.mlp_norm.forward(c, m, second);
    parts_.mlp.forward(c, y, m, h);
  }

  void backward(Context& c, Tensor d) override {
    const Tensor dm = parts_.mlp.backward(c, d);
    if (!parallel()) {
      parts_.mlp_norm.backward(c, d, dm);
      parts_.attention_norm.backward(c, d, parts_.attention.backward(c, d));
      return;
    }
    const Tensor da = parts_.attention.backward(c, d);  // both read dy, before the norms turn d into dx
    parts_.mlp_norm.backward(c, d, dm);
    parts_.attention_norm.backward(c, d, da);
  }

 private:
  bool parallel() const { return parts_.residual == Residual::parallel; }
  BlockParts<Mlp> parts_;
};

template <class Mlp>
std::unique_ptr<Block> residual_block(BlockParts<Mlp> parts) {
  return std::make_unique<ResidualBlock<Mlp>>(std::move(parts));
}

}  // namespace octet::BACKEND
