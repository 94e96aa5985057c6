// GPT-NeoX: the whole model differentiates; recomputation changes no bit.
#include "cpu/whole_model.h"

namespace octet::BACKEND {
namespace {

RunConfig neox(bool parallel, const std::vector<std::string>& changes = {}) {
  return tiny_config(
      concat(R"({"model_type": "gpt_neox", "vocab_size": 19, "hidden_size": 16, "intermediate_size": 24,
    "num_hidden_layers": 2, "num_attention_heads": 2, "rotary_pct": 0.5, "hidden_act": ")",
             parallel ? "gelu" : "gelu_new", R"(", "use_parallel_residual": )", parallel ? "true}" : "false}"),
      changes);
}

TEST(Neox, TheWholeModelDifferentiates) {
  for (const bool parallel : {true, false}) {
    WholeModel m(neox(parallel));
    m.expect_derivatives([&] { return m.train(); }, {.samples = 12});
  }
}

TEST(Neox, RecomputingBlocksChangesNoBit) {
  WholeModel kept(neox(true)), again(neox(true, {"memory.recompute_blocks=1"}));
  EXPECT_EQ(kept.train(), again.train());
  EXPECT_EQ(kept.gradients(), again.gradients());
}

TEST(Neox, NothingOfTheVocabularysPaddingIsTrained) {
  WholeModel m(neox(true));
  m.train();
  m.session().params.for_each([&](const std::string& name, Shape shape, const ParameterStore::Local& l) {
    if (name != "embed_out.weight" && name != "gpt_neox.embed_in.weight") return;
    ASSERT_EQ(shape[0], 128);
    const auto g = values(l.grad);
    for (size_t i = 19 * 16; i < g.size(); ++i) ASSERT_EQ(g[i], 0) << name << ' ' << i;
  });
}

}  // namespace
}  // namespace octet::BACKEND
