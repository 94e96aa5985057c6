// Llama: the whole model differentiates, with tied and untied heads and for every sharing of key/value heads;
// recomputation and chunks of logits change no gradient.
#include "cpu/whole_model.h"

namespace octet::BACKEND {
namespace {

struct Case {
  bool tied;
  int kv_heads;
};
std::ostream& operator<<(std::ostream& o, const Case& c) {
  return o << (c.tied ? "tied_" : "untied_") << c.kv_heads << "_of_4_kv_heads";
}

class Llama : public testing::TestWithParam<Case> {
 protected:
  static RunConfig config(const std::vector<std::string>& changes = {}) {
    return tiny_config(
        concat(R"({"model_type": "llama", "vocab_size": 23, "hidden_size": 16, "intermediate_size": 24,
      "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": )",
               GetParam().kv_heads, R"(, "tie_word_embeddings": )", GetParam().tied ? "true}" : "false}"),
        changes);
  }

 private:
  const Threads one_{1};  // so small a model gains nothing by more
};
INSTANTIATE_TEST_SUITE_P(Model, Llama,
                         testing::Values(Case{false, 1}, Case{false, 2}, Case{false, 4}, Case{true, 1}, Case{true, 2},
                                         Case{true, 4}),
                         testing::PrintToStringParamName());

TEST_P(Llama, EveryParametersGradientIsTheDerivativeOfTheLoss) {
  WholeModel m(config());
  m.expect_derivatives([&] { return m.train(); }, {.samples = 14});
  EXPECT_EQ(m.gradients().size(), size_t(2 * 9 + 2 + !GetParam().tied));
}

TEST_P(Llama, RecomputationChangesNoBit) {
  WholeModel none(config());
  const double loss = none.train();
  for (const int blocks : {1, 2}) {
    WholeModel some(config({concat("memory.recompute_blocks=", blocks)}));
    EXPECT_EQ(some.train(), loss) << blocks;
    EXPECT_EQ(some.gradients(), none.gradients()) << blocks;
  }
}

TEST_P(Llama, ChunksOfLogitsAreTheWhole) {
  WholeModel whole(config()), chunks(config({"memory.head_chunk=7"}));
  EXPECT_NEAR(whole.train(), chunks.train(), 1e-14);
  const auto a = whole.gradients(), b = chunks.gradients();
  for (size_t i = 0; i < a.size(); ++i) EXPECT_LT(distance(a[i], b[i]), 1e-26) << i;
}

}  // namespace
}  // namespace octet::BACKEND
