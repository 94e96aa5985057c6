// Settings that few models have are those of transformers: heads of another size, rotary scaling, windows, GELUs,
// biases, numbers of experts.
#include "models/agreement.h"

namespace octet {
namespace {

TEST(Variants, LogitsLossAndGradientsAgree) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(golden("variants"))) {
    const std::string model = "variants/" + entry.path().filename().string();
    SCOPED_TRACE(model);
    const RunConfig config = parse_config(R"({"model": {"config": ")" + golden(model) + R"("}})", model, {});
    const ModelConfig& m = config.model;
    const int64_t neox = m.arch == Arch::neox, attention = neox ? 2 + 2 * m.attention_bias : 4,
                  mlp = neox            ? 4
                        : m.num_experts ? 1 + 3 * m.num_experts
                                        : 3;
    const int64_t parameters = m.num_layers * (2 + 2 * neox + attention + mlp) + 2 + neox + !m.tie_embeddings;
    const int64_t values = 2 + parameters + (m.num_experts ? 2 : 0);  // logits and loss, and of routers the same
    expect_agreement(verify_golden(model, model, 1, {"precision.param_dtype=fp32"}), size_t(values));
    expect_agreement(verify_golden(model, model, 2, {"precision.param_dtype=fp32", "parallel.zero_stage=3"}),
                     size_t(values));
    ++count;
  }
  EXPECT_EQ(count, 8);
}

// Where the reference's gradient is zero, another is an error.
TEST(Variants, AGradientWhereThereIsNoneIsAnError) {
  const std::vector<VerifyLine> lines =
      verify_golden("variants/mixtral-one", "variants/mixtral-one", 1,
                    {"precision.param_dtype=fp32", "model.router_aux_loss_coef=0.01"});
  int64_t routers = 0;
  for (const VerifyLine& l : lines) {
    if (!l.what.ends_with("gate.weight")) continue;
    EXPECT_FALSE(l.ok) << l.what << " " << l.absolute;
    ++routers;
  }
  EXPECT_EQ(routers, 2);
}

}  // namespace
}  // namespace octet
