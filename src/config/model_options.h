#pragma once
// The fields of a model under Hugging Face's names, as options of the section "model": model.cpp fills them
// from presets, files and command lines and makes a ModelConfig of them. A size of 0 was not given.
#include "config/model.h"

namespace octet {

inline Range size_up_to(double largest) { return between(0, largest); }
inline constexpr double kMostTokens = 2147483647;  // positions are 32-bit

struct ModelOptions : Section {
  using Section::Section;
  Option<std::string> preset{this, "preset", "", "a published shape; the other fields override it"};
  Option<std::string> config{this, "config", "", "path of a config.json; the other fields override it"};
  Choice<Arch> model_type{this,
                          "model_type",
                          Arch::llama,
                          "architecture, where no preset or config says it (mistral: llama with a sliding_window)",
                          {{"llama", Arch::llama}, {"gpt_neox", Arch::neox}, {"mixtral", Arch::mixtral}}};
  Option<int64_t> vocab_size{this, "vocab_size", 0, "entries of the vocabulary", size_up_to(1 << 24)};
  Option<int64_t> hidden_size{this, "hidden_size", 0, "width of the residual stream", size_up_to(1 << 20)};
  Option<int64_t> intermediate_size{this, "intermediate_size", 0, "width inside the MLP, or inside an expert",
                                    size_up_to(1 << 22)};
  Option<int64_t> num_layers{this, "num_hidden_layers", 0, "transformer blocks", size_up_to(10000)};
  Option<int64_t> num_heads{this, "num_attention_heads", 0, "query heads", size_up_to(65536)};
  Option<int64_t> num_kv_heads{this, "num_key_value_heads", 0,
                               "key and value heads (0: num_attention_heads; default for mixtral: 8)",
                               size_up_to(65536)};
  Option<int64_t> head_dim{this, "head_dim", 0, "size of a head (0: hidden_size / num_attention_heads)",
                           size_up_to(4096)};
  Option<int64_t> max_positions{this, "max_position_embeddings", 2048, "longest sequence (default for mixtral: 131072)",
                                between(1, kMostTokens)};
  Option<double> rms_norm_eps{this, "rms_norm_eps", 1e-6,
                              "llama, mixtral: added to the mean square (default for mixtral: 1e-5)", more_than(0)};
  Option<double> layer_norm_eps{this, "layer_norm_eps", 1e-5, "gpt_neox: added to the variance", more_than(0)};
  Option<double> rope_theta{this,         "rope_theta",
                            10000,        "base of the rotary frequencies (default for mixtral: 1e6)",
                            more_than(0), Aliases{"rotary_emb_base"}};
  Choice<RopeKind> rope_type{
      this,
      "rope_type",
      RopeKind::unscaled,
      "how rotary frequencies are scaled for longer sequences (dynamic: unscaled within the range)",
      {{"default", RopeKind::unscaled},
       {"linear", RopeKind::linear},
       {"dynamic", RopeKind::dynamic},
       {"llama3", RopeKind::llama3},
       {"yarn", RopeKind::yarn}}};
  Option<double> rope_factor{this, "rope_factor", 1, "factor by which rope_type extends the range", at_least(1)};
  Option<int64_t> rope_original_max_positions{this, "rope_original_max_position_embeddings", 0,
                                              "rope_type llama3, yarn: the original range (0: max_position_embeddings)",
                                              size_up_to(kMostTokens)};
  Option<double> rope_low_freq_factor{this, "rope_low_freq_factor", 1, "rope_type llama3", more_than(0)};
  Option<double> rope_high_freq_factor{this, "rope_high_freq_factor", 4, "rope_type llama3", more_than(0)};
  Option<double> rope_attention_factor{this, "rope_attention_factor", 0, "rope_type yarn (0: from the factor)",
                                       at_least(0)};
  Option<double> rope_beta_fast{this, "rope_beta_fast", 32, "rope_type yarn", more_than(0)};
  Option<double> rope_beta_slow{this, "rope_beta_slow", 1, "rope_type yarn", more_than(0)};
  Option<bool> rope_truncate{this, "rope_truncate", true, "rope_type yarn: round the bounds to whole dimensions"};
  Option<double> rotary_pct{this,
                            "rotary_pct",
                            0.25,
                            "gpt_neox: share of a head that is rotated",
                            Range{.low = 0, .high = 1, .low_open = true},
                            Aliases{"partial_rotary_factor"}};
  Option<bool> tie_embeddings{this, "tie_word_embeddings", false, "the head's weight is the embedding's"};
  Option<double> initializer_range{this, "initializer_range", 0.02, "standard deviation of the initial weights",
                                   at_least(0)};
  Option<std::string> hidden_act{this, "hidden_act", "silu",
                                 "activation: silu; for gpt_neox gelu (its default), gelu_new or gelu_fast"};
  Option<bool> parallel_residual{this, "use_parallel_residual", true, "gpt_neox: attention and MLP in parallel"};
  Option<bool> attention_bias{this, "attention_bias", true, "gpt_neox: biases in the attention projections"};
  Option<bool> mlp_bias{this, "mlp_bias", false, "not supported", Hidden{}};
  Option<int64_t> num_experts{
      this, "num_local_experts", 8, "mixtral: experts of a layer", between(1, 1024), Aliases{"num_experts"}};
  Option<int64_t> experts_per_token{this, "num_experts_per_tok", 2, "mixtral: experts that a token visits",
                                    between(1, 1024)};
  Option<double> router_aux_loss_coef{
      this, "router_aux_loss_coef", 0.001,
      "mixtral: weight of the load-balancing loss over all layers and ranks of a micro-batch", at_least(0)};
  Option<bool> router_aux_loss_per_layer{
      this, "router_aux_loss_per_layer", false,
      "mixtral: balance each layer by itself; the loss is the mean over layers (false: all layers together)"};
  Option<bool> router_aux_loss_per_rank{
      this, "router_aux_loss_per_rank", false,
      "mixtral: balance each rank's tokens by themselves, as transformers does on several GPUs; the loss is the mean "
      "over ranks (false: the tokens of all ranks together)"};
  Option<double> router_z_loss_coef{this, "router_z_loss_coef", 0,
                                    "mixtral: weight of each layer's mean squared logsumexp of router logits",
                                    at_least(0)};
  Option<double> router_jitter{this, "router_jitter_noise", 0, "mixtral: relative noise on the router's input",
                               from_below(0, 1)};
  Option<int64_t> sliding_window{this, "sliding_window", 0, "keys that a query attends to (0: all up to its own)",
                                 size_up_to(kMostTokens)};
  Option<int64_t> bos_id{this, "bos_token_id", -1, "beginning of a document (-1: none; default: 1, for gpt_neox 0)",
                         between(-1, kMostTokens)};
  Option<int64_t> eos_id{this, "eos_token_id", -1, "end of a document (-1: none; default: 2)",
                         between(-1, kMostTokens)};
  Option<double> attention_dropout{
      this, "attention_dropout", 0, "not supported", Hidden{}, Aliases{"attention_probs_dropout_prob"}};
  Option<double> hidden_dropout{this, "hidden_dropout", 0, "not supported", Hidden{}, Aliases{"hidden_dropout_prob"}};
  Choice<AttentionKind> attention{
      this,
      "attention",
      AttentionKind::automatic,
      "implementation on a GPU; auto takes the faster",
      {{"auto", AttentionKind::automatic}, {"native", AttentionKind::native}, {"cudnn", AttentionKind::cudnn}}};
  Option<bool> scaled_init{this, "scaled_init", false,
                           "initialise residual projections smaller by sqrt(2 layers), as in GPT-2"};
};

}  // namespace octet
