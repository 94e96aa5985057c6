// Rotary frequencies and their scalings are transformers' (golden/rope.json, made by scripts/golden-rope), from both of
// its layouts; a config of ours brings them back.
#include <gtest/gtest.h>

#include "base/json.h"
#include "config/config_file.h"
#include "config/rope.h"

namespace octet {
namespace {

json cases() { return read_json(std::string(GOLDEN) + "/rope.json")["cases"]; }

TEST(Rope, FrequenciesAndScaleAreThoseOfTransformers) {
  ASSERT_EQ(cases().size(), 14u);
  for (const json& one : cases()) {
    const ModelConfig m = read_model_config(one["config"], "config.json");
    const std::vector<double> got = rotary_frequencies(m);
    ASSERT_EQ(got.size(), one["frequencies"].size());
    for (size_t i = 0; i < got.size(); ++i) {
      const double want = one["frequencies"][i];
      EXPECT_NEAR(got[i], want, 1e-6 * want) << one["config"] << ", dimension " << i;  // theirs are computed in fp32
    }
    EXPECT_NEAR(rotary_scale(m), one["scale"], 1e-12) << one["config"];
  }
}

TEST(Rope, BothLayoutsAndOurOwnFilesSayTheSame) {
  for (const json& one : cases()) {
    const ModelConfig m = read_model_config(one["config"], "config.json");
    json four = one["config"];  // transformers 4
    json scaling = four["rope_parameters"];
    const bool neox = four["model_type"] == "gpt_neox";
    four[neox ? "rotary_emb_base" : "rope_theta"] = scaling["rope_theta"];
    if (neox) four["rotary_pct"] = scaling["partial_rotary_factor"];
    scaling.erase("rope_theta"), scaling.erase("partial_rotary_factor");
    scaling["type"] = scaling["rope_type"], scaling.erase("rope_type");
    four["rope_scaling"] = scaling;
    four.erase("rope_parameters");
    EXPECT_EQ(read_model_config(four, "config.json"), m) << four;
    for (const json& ours : {write_model_config(m, 4), write_model_config(m, 5), write_config_file(m, "float32")})
      EXPECT_EQ(read_model_config(ours, "ours"), m) << ours;
    EXPECT_EQ(read_model_section(write_model_section(m), {}, "ours"), m);
  }
}

}  // namespace
}  // namespace octet
