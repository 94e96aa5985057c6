// Models from config.json of transformers 4 and 5, presets and overrides; what cannot be trained is refused with why.
#include <gtest/gtest.h>

#include "base/json.h"
#include "config/model_options.h"
#include "config/refusal.h"
#include "golden.h"

namespace octet {
namespace {

json llama() {
  return parse_json(R"({"model_type": "llama", "vocab_size": 128, "hidden_size": 32, "intermediate_size": 80,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1})",
                    "llama");
}
json with(json fields, const char* more) {
  fields.update(parse_json(more, "more"));
  return fields;
}
std::string refusal_of(const json& fields) {
  return refusal([&] { read_model_config(fields, "config.json"); });
}
ModelConfig section(const json& fields, const std::vector<Override>& overrides = {}) {
  return read_model_section(fields, overrides, "run.json", {});
}

TEST(Model, GoldenConfigsAreReadAsTheyAre) {
  const ModelConfig gqa = load_model_config(golden("llama-gqa"));
  EXPECT_EQ(gqa.arch, Arch::llama);
  EXPECT_EQ(gqa.vocab_size, 128);
  EXPECT_EQ(gqa.hidden_size, 32);
  EXPECT_EQ(gqa.num_layers, 2);
  EXPECT_EQ(gqa.num_heads, 2);
  EXPECT_EQ(gqa.num_kv_heads, 1);
  EXPECT_EQ(gqa.head_dim, 16);
  EXPECT_EQ(gqa.intermediate_size, 80);
  EXPECT_EQ(gqa.max_positions, 128);
  EXPECT_EQ(gqa.norm_eps, 1e-5);
  EXPECT_EQ(gqa.rotary_dims(), 16);
  EXPECT_EQ(gqa.bos_id, 1);
  const ModelConfig tied = load_model_config(golden("llama-tied/config.json"));
  EXPECT_TRUE(tied.tie_embeddings);
  EXPECT_EQ(tied.rope_theta, 500000);
  const ModelConfig neox = load_model_config(golden("neox-parallel"));
  EXPECT_EQ(neox.arch, Arch::neox);
  EXPECT_EQ(neox.rotary_pct, 0.25);
  EXPECT_EQ(neox.rotary_dims(), 4);
  EXPECT_TRUE(neox.parallel_residual && neox.attention_bias);
  EXPECT_EQ(neox.hidden_act, "gelu");
  EXPECT_EQ(neox.num_kv_heads, 2);
  EXPECT_EQ(neox.bos_id, 0);
  const ModelConfig sequential = load_model_config(golden("neox-sequential"));
  EXPECT_FALSE(sequential.parallel_residual);
  EXPECT_EQ(sequential.rotary_pct, 1);
  const ModelConfig mixtral = load_model_config(golden("mixtral-8x2"));
  EXPECT_EQ(mixtral.arch, Arch::mixtral);
  EXPECT_EQ(mixtral.num_experts, 8);
  EXPECT_EQ(mixtral.experts_per_token, 2);
  EXPECT_EQ(mixtral.router_aux_loss_coef, 0.02);
  EXPECT_EQ(mixtral.head_dim, 16);  // null there
  EXPECT_EQ(mixtral.sliding_window, 0);
}

TEST(Model, Transformers4And5FormsAreTheSameModel) {
  for (const char* name :
       {"llama-gqa", "llama-tied", "neox-parallel", "neox-sequential", "mixtral-8x2", "mixtral-4x1"}) {
    const ModelConfig model = load_model_config(golden(name));
    const json four = write_model_config(model, 4), five = write_model_config(model, 5);
    EXPECT_FALSE(four.contains("rope_parameters")) << name;
    EXPECT_TRUE(five.contains("rope_parameters")) << name;
    EXPECT_EQ(read_model_config(four, "4"), model) << name;
    EXPECT_EQ(read_model_config(five, "5"), model) << name;
    EXPECT_EQ(section(write_model_section(model)), model) << name;
    // What transformers itself wrote holds every field that we write, with the same value.
    const json original = read_json(golden(name) + "/config.json");
    for (const auto& [key, value] : five.items())
      EXPECT_TRUE(key == "head_dim" || original.value(key, json()) == value) << name << " " << key;
  }
}

TEST(Model, NeoxOfTransformers4NamesItsRotaryOptionsInItsOwnWay) {
  const json neox = parse_json(R"({"architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "vocab_size": 128,
    "hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "rotary_pct": 0.5,
    "rotary_emb_base": 20000, "torch_dtype": "float16", "rope_scaling": null, "classifier_dropout": 0.1})",
                               "neox");
  const ModelConfig model = read_model_config(neox, "neox");
  EXPECT_EQ(model.rotary_pct, 0.5);
  EXPECT_EQ(model.rope_theta, 20000);
  EXPECT_TRUE(model.parallel_residual);
  EXPECT_EQ(model.max_positions, 2048);
  // Late versions of transformers 4 write both names.
  EXPECT_EQ(read_model_config(with(neox, R"({"rope_theta": 20000, "partial_rotary_factor": 0.5})"), "neox"), model);
  EXPECT_EQ(refusal_of(with(neox, R"({"rope_theta": 10000})")),
            "config.json: rope_theta: 10000 contradicts 20000, given for the same option before");
}

TEST(Model, ShapesOfPresetsAreThePublishedOnes) {
  const ModelConfig m = section(R"({"preset": "llama2-7b"})"_json);
  EXPECT_EQ(m.hidden_size, 4096);
  EXPECT_EQ(m.num_kv_heads, 32);
  EXPECT_EQ(m.head_dim, 128);
  EXPECT_EQ(m.norm_eps, 1e-5);
  for (const std::string& preset : model_presets())
    EXPECT_GT(section(json{{"preset", preset}}).num_layers, 0) << preset;
  EXPECT_EQ(section(R"({"preset": "llama2-70b"})"_json).num_kv_heads, 8);
  EXPECT_EQ(section(R"({"preset": "neox-20b"})"_json).rotary_dims(), 24);
  EXPECT_EQ(section(R"({"preset": "mixtral-8x7b"})"_json).rope_theta, 1e6);
}

// What help lists as a model's default is what a model gets that does not give it, or help says what it gets.
TEST(Model, DefaultsAreThoseOfHelp) {
  ModelOptions defaults("");
  for (const std::string arch : {"llama", "gpt_neox", "mixtral"}) {
    json given = R"({"vocab_size": 128, "hidden_size": 512, "intermediate_size": 80, "num_hidden_layers": 2,
      "num_attention_heads": 16, "head_dim": 32})"_json;
    given["model_type"] = arch;
    const json got = write_model_section(section(given));
    for (const auto& [key, value] : got.items()) {
      const OptionBase* option = defaults.find(key);
      if (!option || given.contains(key) || value.is_null()) continue;
      const std::string help = option->help();
      if (help.starts_with("gpt_neox: ") && arch != "gpt_neox") continue;
      EXPECT_TRUE(value == option->value() || help.find("default") != std::string::npos)
          << arch << ": " << key << " is " << value << ", not " << option->value() << ": " << help;
    }
  }
}

TEST(Model, LaterSourcesWin) {
  const json file{{"config", golden("llama-tied")}, {"rope_theta", 1000}, {"num_hidden_layers", 5}};
  const ModelConfig m = section(file, {{"num_hidden_layers", "7"}, {"attention", "native"}, {"scaled_init", "true"}});
  EXPECT_EQ(m.rope_theta, 1000);
  EXPECT_EQ(m.num_layers, 7);
  EXPECT_TRUE(m.tie_embeddings && m.scaled_init);
  EXPECT_EQ(m.attention, AttentionKind::native);
  EXPECT_EQ(section(json(golden("llama-tied"))), load_model_config(golden("llama-tied")));  // a string is a path
  EXPECT_EQ(section(R"({"preset": "llama2-7b"})"_json, {{"preset", "llama2-13b"}}).hidden_size, 5120);
  EXPECT_EQ(section(write_model_section(m)), m);
  const ModelConfig balanced = section(R"({"preset": "mixtral-8x7b", "router_aux_loss_per_rank": true})"_json);
  EXPECT_TRUE(balanced.router_aux_loss_per_rank && !balanced.router_aux_loss_per_layer);
  EXPECT_EQ(section(write_model_section(balanced)), balanced);
}

TEST(Model, FieldsWithoutMeaningForTrainingAreIgnoredInAConfigJson) {
  const json more = with(llama(), R"({"architectures": ["LlamaForCausalLM"], "transformers_version": "4.31.0",
    "torch_dtype": "float16", "dtype": "float32", "use_cache": true, "pretraining_tp": 1, "_name_or_path": "x",
    "rope_scaling": null, "attention_bias": false, "mlp_bias": false, "attention_dropout": 0.0, "new_feature": false,
    "other_feature": null, "eos_token_id": [2, 5], "tokenizer_class": "LlamaTokenizer", "max_sequence_length": 2048,
    "is_llama_config": true, "rope_interleaved": false, "transformers.js_config": {"dtype": "q4"}})");
  EXPECT_EQ(read_model_config(more, "config.json"), read_model_config(llama(), "config.json"));
  EXPECT_EQ(refusal_of(with(llama(), R"({"qk_norm": true})")),
            "config.json: qk_norm: unknown field with the value true; remove it if the model is the same without it");
}

// config.json of EleutherAI/gpt-neox-20b, of before transformers had GPT-NeoX.
TEST(Model, TheFirstGptNeoxIsRead) {
  const json fields = R"({"architectures": ["GPTNeoXForCausalLM"], "attention_probs_dropout_prob": 0, "bos_token_id": 0,
    "eos_token_id": 0, "hidden_act": "gelu_fast", "hidden_dropout_prob": 0, "hidden_size": 6144,
    "initializer_range": 0.02, "intermediate_size": 24576, "layer_norm_eps": 1e-05, "max_position_embeddings": 2048,
    "model_type": "gpt_neox", "num_attention_heads": 64, "num_hidden_layers": 44, "rotary_emb_base": 10000,
    "rotary_pct": 0.25, "tie_word_embeddings": false, "torch_dtype": "float16", "use_cache": true,
    "transformers_version": "4.19.0.dev0", "vocab_size": 50432})"_json;
  EXPECT_EQ(read_model_config(fields, "config.json"), section(R"({"preset": "neox-20b"})"_json));
  EXPECT_EQ(refusal_of(with(fields, R"({"hidden_dropout_prob": 0.1})")).find("config.json: hidden_dropout: 0.1 is not"),
            0u);
}

TEST(Model, ATypingErrorInARunsConfigIsRefusedWithASuggestion) {
  EXPECT_EQ(refusal([] { section(with(llama(), R"({"hiden_size": 64})")); }),
            "run.json: model.hiden_size: unknown option; did you mean model.hidden_size?");
  EXPECT_EQ(refusal([] {
              section(llama(), {{"num_layers", "3"}});
            }).find("command line: model.num_layers: unknown option"),
            0u);
  EXPECT_EQ(refusal([] {
              section(R"({"preset": "llama2-7B"})"_json);
            }).find(R"(run.json: model.preset: there is no preset "llama2-7B"; did you mean llama2-7b?)"),
            0u);
}

// Mistral is Llama with a window, which transformers' Llama does not know.
TEST(Model, MistralIsLlamaWithAWindow) {
  const ModelConfig plain = read_model_config(llama(), "config.json");
  const json mistral = with(llama(), R"({"model_type": "mistral"})");
  const ModelConfig m = read_model_config(mistral, "config.json");
  EXPECT_EQ(m.arch, Arch::llama);
  EXPECT_EQ(m.sliding_window, 4096);  // the defaults of MistralConfig
  EXPECT_EQ(m.max_positions, 131072);
  EXPECT_EQ(read_model_config(with(mistral, R"({"sliding_window": null, "max_position_embeddings": 2048})"), ""),
            plain);
  EXPECT_EQ(write_model_config(plain, 5)["model_type"], "llama");
  const json written = write_model_config(m, 5);
  EXPECT_EQ(written["model_type"], "mistral");
  EXPECT_EQ(written["architectures"][0], "MistralForCausalLM");
  EXPECT_EQ(written["sliding_window"], 4096);
  EXPECT_EQ(read_model_config(written, "config.json"), m);
  EXPECT_EQ(section(write_model_section(m)), m);
  // In a config.json of transformers its Llama ignores the field; in ours it is an option.
  EXPECT_EQ(read_model_config(with(llama(), R"({"sliding_window": 4096})"), "config.json"), plain);
  EXPECT_EQ(section(with(llama(), R"({"sliding_window": 4096})")).sliding_window, 4096);
}

TEST(Model, WhatCannotBeTrainedIsRefusedWithTheReason) {
  const auto expect = [](const char* more, const std::string& message) {
    EXPECT_EQ(refusal_of(with(llama(), more)).find("config.json: " + message), 0u)
        << more << ": " << refusal_of(with(llama(), more));
  };
  expect(R"({"rope_scaling": {"type": "longrope", "factor": 2}})",
         R"(rope_type: "longrope" is not one of default | linear)");
  expect(R"({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}})", R"(rope_type: "llama3" needs a factor)");
  expect(R"({"rope_scaling": {"type": "linear", "factor": 0.5}})", "rope_factor: 0.5 is out of range");
  expect(R"({"rope_scaling": {"factor": 2}})", "rope_factor: 2.0 is not used by rope_type default");
  expect(R"({"rope_scaling": {"type": "linear", "factor": 2, "beta_fast": 20}})",
         "rope_beta_fast: 20.0 is not used by rope_type linear");
  expect(R"({"rope_scaling": {"type": "yarn", "factor": 2, "mscale": 1}})", "rope_scaling.mscale: 1 is not supported");
  expect(R"({"rope_scaling": {"type": "llama3", "factor": 2, "low_freq_factor": 4}})",
         "rope_low_freq_factor: 4.0 is not below rope_high_freq_factor (4)");
  expect(R"({"rope_parameters": 3})", "rope_parameters: expected an object, got 3");
  expect(R"({"attention_bias": true})",
         "attention_bias: true is not supported for llama: its projections have no biases");
  expect(R"({"quantization_config": {"quant_method": "gptq", "bits": 4}})",
         R"(quantization_config: {"quant_method":"gptq","bits":4} is not supported: its weights are quantised)");
  expect(R"({"mlp_bias": true})", "mlp_bias: true is not supported");
  expect(R"({"hidden_act": "relu"})", R"(hidden_act: "relu" is not supported for llama; it must be silu)");
  expect(R"({"attention_dropout": 0.1})", "attention_dropout: 0.1 is not supported: there is no dropout");
  expect(R"({"partial_rotary_factor": 0.5})", "rotary_pct: 0.5 is for gpt_neox only");
  expect(R"({"num_local_experts": 4})", "num_local_experts: 4 is for mixtral only; this model is llama");
  expect(R"({"router_aux_loss_per_layer": true})", "router_aux_loss_per_layer: true is for mixtral only");
  expect(R"({"router_aux_loss_per_rank": true})", "router_aux_loss_per_rank: true is for mixtral only");
  expect(R"({"num_key_value_heads": 3})", "num_key_value_heads: 3 does not divide num_attention_heads (2)");
  expect(R"({"num_attention_heads": 3})",
         "hidden_size: 32 is not a multiple of num_attention_heads (3); give head_dim");
  expect(R"({"head_dim": 15})", "head_dim: 15 is odd");
  expect(R"({"vocab_size": null})", "vocab_size is missing or 0");
  expect(R"({"vocab_size": 2, "bos_token_id": 0})", "eos_token_id: 2 is not an id below vocab_size (2)");
  expect(R"({"vocab_size": -1})", "vocab_size: -1 is out of range");
  expect(R"({"vocab_size": 1000000000})", "vocab_size: 1000000000 is out of range; it must be between 0 and 16777216");
  expect(R"({"hidden_size": "32"})", R"(hidden_size: expected an integer, got "32")");
  expect(R"({"model_type": "gpt2"})", R"(model_type: "gpt2" is not one of llama | gpt_neox | mixtral)");
  json without = llama();
  without.erase("model_type");
  EXPECT_EQ(refusal_of(without).find("config.json: model_type is missing; give llama | gpt_neox | mixtral"), 0u);
  EXPECT_EQ(refusal_of(json::array()), "config.json: expected an object, got []");
  EXPECT_NE(refusal([] { load_model_config("absent/config.json"); }).find("absent/config.json"), std::string::npos);
}

TEST(Model, MixtralAndNeoxHaveTheirOwnLimits) {
  const json mixtral = with(llama(), R"({"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 5})");
  EXPECT_EQ(refusal_of(mixtral), "config.json: num_experts_per_tok: 5 is more than num_local_experts (4)");
  const json neox = with(llama(), R"({"model_type": "gpt_neox"})");
  EXPECT_EQ(refusal_of(neox),
            "config.json: num_key_value_heads: 1 is not supported for gpt_neox: its heads share no keys");
}

}  // namespace
}  // namespace octet
