// Mixtral, arXiv:2401.04088:  h = x + attention(norm(x)),  y = h + moe(norm(h))
// Dimension key:  N rows   C channels
#include "models/architectures.h"
#include "nn/moe.h"

namespace octet::BACKEND {
namespace {

class MixtralBlock final : public Block {
 public:
  MixtralBlock(Builder b, const ModelConfig& c, int64_t layer, const Tensor& rope_table)
      : MixtralBlock(b, c, layer, rope_table, concat("model.layers.", layer, ".")) {}

  void forward(Context& c, Tensor y, Tensor x) override {
    const int64_t N = x.rows();
    Arena& memory = c.pass == Pass::evaluate ? c.scratch : c.saved;
    const Tensor h = memory.alloc(x.dtype, x.shape);
    const Operand a = attention_.input(c, N);
    attention_norm_.forward(c, a, x);
    attention_.forward(c, h, a, x);
    const Operand m = moe_.input(c, N);
    moe_norm_.forward(c, m, h);
    moe_.forward(c, y, m, h);
  }

  void backward(Context& c, Tensor d) override {
    moe_norm_.backward(c, d, moe_.backward(c, d));
    attention_norm_.backward(c, d, attention_.backward(c, d));
  }

 private:
  MixtralBlock(Builder b, const ModelConfig& c, int64_t layer, const Tensor& rope_table, const std::string& name)
      : attention_norm_(b, name + "input_layernorm", {Norm::Kind::rms, c.hidden_size, c.norm_eps}),
        attention_(grouped_attention(b, c, layer, name + "self_attn.", rope_table)),
        moe_norm_(b, name + "post_attention_layernorm", {Norm::Kind::rms, c.hidden_size, c.norm_eps}),
        moe_(b, {.layer = layer,
                 .channels = c.hidden_size,
                 .width = c.intermediate_size,
                 .experts = c.num_experts,
                 .per_token = c.experts_per_token,
                 .jitter = c.router_jitter,
                 .std = c.initializer_range,
                 .residual_std = residual_std(c),
                 .name = name + "block_sparse_moe"}) {}

  Norm attention_norm_;
  SelfAttention attention_;
  Norm moe_norm_;
  Moe moe_;
};

}  // namespace

std::unique_ptr<Block> mixtral_block(Builder b, const ModelConfig& c, int64_t layer, const Tensor& rope_table) {
  return std::make_unique<MixtralBlock>(b, c, layer, rope_table);
}

}  // namespace octet::BACKEND
