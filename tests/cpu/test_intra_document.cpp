// data.intra_document_mask: whole models of each architecture learn from a packed sequence what they learn from each of
// its documents by itself. f64: losses and gradients differ by rounding alone, although rotary positions run on.
#include "cpu/whole_model.h"

namespace octet::BACKEND {
namespace {

using Lengths = std::vector<std::vector<int64_t>>;  // of the documents of each sequence
const Lengths kLengths{{5, 1, 6}, {2, 2, 8}};
constexpr int64_t kTokens = 12;

struct Family {
  const char *name, *model;
};
std::ostream& operator<<(std::ostream& o, const Family& f) { return o << f.name; }
constexpr Family kFamilies[] = {
    {"llama", R"({"model_type": "llama", "vocab_size": 23, "hidden_size": 16, "intermediate_size": 24,
       "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2})"},
    {"neox", R"({"model_type": "gpt_neox", "vocab_size": 23, "hidden_size": 16, "intermediate_size": 24,
       "num_hidden_layers": 2, "num_attention_heads": 2, "rotary_pct": 0.5})"},
    {"mixtral", R"({"model_type": "mixtral", "vocab_size": 23, "hidden_size": 16, "intermediate_size": 24,
       "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4,
       "num_experts_per_tok": 2, "router_aux_loss_coef": 0})"},
};

class IntraDocument : public testing::TestWithParam<Family> {
 protected:
  static RunConfig config(int64_t B, int64_t T, std::vector<std::string> changes) {
    for (const auto& [option, value] : {std::pair{"seq_len", T}, {"micro_batch_size", B}, {"global_batch_size", B}})
      changes.push_back(concat("training.", option, "=", value));
    return tiny_config(GetParam().model, changes);
  }
  static RunConfig packed_config(std::vector<std::string> changes = {}) {
    changes.push_back("data.intra_document_mask=true");
    return config(2, kTokens, changes);
  }
  static Batch packed() {
    Batch b = random_batch(packed_config());
    b.begins.resize(b.tokens.size()), b.ends.resize(b.tokens.size());
    for (size_t i = 0; i < kLengths.size(); ++i) {
      std::vector<int64_t> starts;
      for (size_t d = 0, at = 0; d + 1 < kLengths[i].size(); ++d)
        starts.push_back(int64_t(at += size_t(kLengths[i][d])));
      set_bounds(b.bounds().row(int64_t(i), kTokens), starts);
    }
    return b;
  }

 private:
  const Threads one_{1};
};
INSTANTIATE_TEST_SUITE_P(Models, IntraDocument, testing::ValuesIn(kFamilies), testing::PrintToStringParamName());

TEST_P(IntraDocument, PackedDocumentsHaveTheLossesAndGradientsOfEachAlone) {
  const Batch all = packed();
  WholeModel whole(packed_config(), all);
  const std::vector<double> losses = whole.token_losses();
  const double mean = whole.train();
  const auto gradients = whole.gradients();
  double sum = 0;
  std::vector<std::vector<double>> sums;
  size_t at = 0;
  for (const std::vector<int64_t>& sequence : kLengths)
    for (const int64_t n : sequence) {
      SCOPED_TRACE(testing::Message() << "document at " << at << " of " << n << " tokens");
      const auto part = [&](const std::vector<int32_t>& v) {
        return std::vector<int32_t>(v.begin() + ptrdiff_t(at), v.begin() + ptrdiff_t(at) + n);
      };
      WholeModel one(config(1, n, {}),
                     {.tokens = part(all.tokens), .targets = part(all.targets), .batch = 1, .seq_len = n});
      const std::vector<double> alone = one.token_losses();
      for (size_t t = 0; t < size_t(n); ++t) EXPECT_NEAR(alone[t], losses[at + t], 1e-12) << t;
      at += size_t(n);
      if (one.valid() == 0) continue;
      sum += one.train() * one.valid();
      const auto g = one.gradients();
      sums.resize(g.size());
      for (size_t p = 0; p < g.size(); ++p) {
        sums[p].resize(g[p].size());
        for (size_t i = 0; i < g[p].size(); ++i) sums[p][i] += g[p][i] * one.valid() / whole.valid();
      }
    }
  EXPECT_NEAR(sum / whole.valid(), mean, 1e-12);
  ASSERT_EQ(sums.size(), gradients.size());
  for (size_t p = 0; p < sums.size(); ++p) {
    double largest = 0;
    for (size_t i = 0; i < sums[p].size(); ++i) {
      EXPECT_NEAR(sums[p][i], gradients[p][i], 1e-12) << p << ' ' << i;
      largest = std::max(largest, std::fabs(sums[p][i]));
    }
    EXPECT_GT(largest, 1e-6) << p;
  }
}

TEST_P(IntraDocument, WithoutItDocumentsSeeThoseBeforeThem) {
  WholeModel masked(packed_config(), packed()), plain(config(2, kTokens, {}));
  const std::vector<double> a = masked.token_losses(), b = plain.token_losses();
  for (size_t i = 0; i < 5; ++i) EXPECT_NEAR(a[i], b[i], 1e-12) << i;  // the first document has none before it
  int differ = 0;
  for (size_t i = 5; i < kTokens; ++i) differ += std::fabs(a[i] - b[i]) > 1e-6;
  EXPECT_GT(differ, 3);
}

TEST_P(IntraDocument, RecomputationChangesNoBit) {
  WholeModel kept(packed_config(), packed()), again(packed_config({"memory.recompute_blocks=2"}), packed());
  EXPECT_EQ(kept.train(), again.train());
  EXPECT_EQ(kept.gradients(), again.gradients());
}

TEST_P(IntraDocument, TheWholeModelDifferentiates) {
  WholeModel m(packed_config(), packed());
  m.freeze_choice();
  m.expect_derivatives([&] { return m.train(); }, {.samples = 8});
}

TEST_P(IntraDocument, ABatchWithoutBoundsIsRefused) {
  WholeModel m(packed_config(), random_batch(packed_config()));
  EXPECT_ANY_THROW(m.train());
}

}  // namespace
}  // namespace octet::BACKEND
