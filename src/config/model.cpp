#include "config/model.h"

#include <filesystem>
#include <set>

#include "base/json.h"
#include "config/model_options.h"

namespace octet {
namespace {

// Fields of a config.json that do not affect training.
bool is_ignored(const std::string& field) {
  static const std::set<std::string> kIgnored{"architectures",
                                              "transformers_version",
                                              "torch_dtype",
                                              "dtype",
                                              "use_cache",
                                              "pad_token_id",
                                              "pretraining_tp",
                                              "is_decoder",
                                              "chunk_size_feed_forward",
                                              "classifier_dropout",
                                              "output_router_logits",
                                              "output_attentions",
                                              "output_hidden_states",
                                              "return_dict",
                                              "return_dict_in_generate",
                                              "torchscript",
                                              "id2label",
                                              "label2id",
                                              "problem_type",
                                              "unk_token_id",
                                              "sep_token_id",
                                              "tokenizer_class",
                                              "max_sequence_length",
                                              "is_llama_config",
                                              "transformers.js_config",
                                              "unsloth_fixed",
                                              "unsloth_version",
                                              "custom_pipelines",
                                              "finetuning_task",
                                              "task_specific_params",
                                              "max_length",
                                              "min_length",
                                              "do_sample",
                                              "temperature",
                                              "top_k",
                                              "top_p",
                                              "attn_implementation",
                                              "use_bfloat16",
                                              "gradient_checkpointing"};
  return field.starts_with("_") || kIgnored.contains(field);
}

class FieldReader {  // maps the fields of one source to options, and sets them
 public:
  FieldReader(ModelOptions& options, const std::string& where, bool from_transformers)
      : options_(options), where_(where), from_transformers_(from_transformers) {}

  void read(const json& given, const std::vector<std::string>& others = {}) {
    const json fields = as_octet(given);
    if (!fields.is_object()) {
      const std::string name = *options_.name() ? concat(options_.name(), ": ") : "";
      bad_input(where_, ": ", name, "expected an object, got ", show(fields));
    }
    for (const auto& [key, value] : fields.items()) {
      if (key == "rope_parameters" || key == "rope_scaling") {
        read_rope(key, value);
      } else if (options_.find(key)) {
        put(key, value);
      } else if (!is_ignored(key)) {
        unknown(key, value, others);
      }
    }
    options_.read(flat_, where_, others);
  }

 private:
  [[noreturn]] void refuse(const std::string& key, const json& value, const char* why) {
    bad_input(where_, ": ", options_.path(key), ": ", show(value), " is not supported: ", why);
  }

  void unknown(const std::string& key, const json& value, const std::vector<std::string>& others) {
    if (!from_transformers_) options_.require(key, where_, others);
    // transformers also writes fields of newer features that are switched off.
    const bool off = value.is_null() || value == false || (value.is_structured() && value.empty());
    if (!off && key == "quantization_config")
      refuse(key, value, "its weights are quantised; take the model in bf16, fp16 or fp32");
    if (!off)
      bad_input(where_, ": ", options_.path(key), ": unknown field with the value ", show(value),
                "; remove it if the model is the same without it");
  }

  // Mistral is Llama with a window; these are the defaults of its class that are not Llama's. The classes of Llama do
  // not look at a window.
  json as_octet(json fields) const {
    if (!fields.is_object() || !fields.contains("model_type")) return fields;
    if (from_transformers_ && fields["model_type"] == "llama") fields.erase("sliding_window");
    if (fields["model_type"] != "mistral") return fields;
    fields["model_type"] = "llama";
    for (const auto& [key, value] :
         {std::pair{"num_key_value_heads", 8}, {"max_position_embeddings", 131072}, {"sliding_window", 4096}})
      if (!fields.contains(key)) fields[key] = value;
    return fields;
  }

  void read_rope(const std::string& key, const json& rope) {
    if (rope.is_null()) return;
    if (!rope.is_object()) bad_input(where_, ": ", options_.path(key), ": expected an object, got ", show(rope));
    for (const auto& [name, value] : rope.items()) {
      const std::string flat = "rope_" + (name == "type" ? "type" : name);
      if (name == "rope_type" || name == "rope_theta" || name == "partial_rotary_factor") {
        put(name, value);
      } else if (flat != "rope_theta" && options_.find(flat)) {
        put(flat, value);
      } else if (!value.is_null()) {
        refuse(key + "." + name, value, "rotary embeddings have no such option here");
      }
    }
  }

  void put(const std::string& key, json value) {
    OptionBase& option = *options_.find(key);
    if (&option == &options_.model_type && value.is_null()) return;
    if (&option == &options_.eos_id && value.is_array() && !value.empty())
      value = json(value[0]);                                          // the others end turns of a chat
    if (value.is_null()) value = ModelOptions("").find(key)->value();  // none, or derived
    if (&option == &options_.hidden_act && value == "swish") value = "silu";
    if (&option == &options_.hidden_act && value == "gelu_pytorch_tanh") value = "gelu_new";  // the same formula
    const json before = flat_.value(option.name(), json());
    if (!before.is_null() && before != value)
      bad_input(where_, ": ", options_.path(key), ": ", show(value), " contradicts ", show(before),
                ", given for the same option before");
    flat_[option.name()] = value;
  }

  ModelOptions& options_;
  const std::string& where_;
  bool from_transformers_;
  json flat_ = json::object();
};

class ModelMaker {  // makes a ModelConfig of the collected options; rejects what the engines cannot train
 public:
  ModelMaker(ModelOptions& options, const std::string& where) : o_(options), where_(where) {}

  ModelConfig make() {
    if (!o_.model_type.was_given())
      bad_input(where_, ": ", o_.path("model_type"), " is missing; give ", o_.model_type.type(),
                ", or a preset or config");
    defaults();
    for (const Option<int64_t>* size :
         {&o_.vocab_size, &o_.hidden_size, &o_.intermediate_size, &o_.num_layers, &o_.num_heads})
      if (*size == 0) bad_input(where_, ": ", o_.path(size->name()), " is missing or 0");
    refuse_unsupported();
    const bool neox = o_.model_type == Arch::neox, mixtral = o_.model_type == Arch::mixtral;
    ModelConfig m{.arch = o_.model_type,
                  .vocab_size = o_.vocab_size,
                  .hidden_size = o_.hidden_size,
                  .num_layers = o_.num_layers,
                  .num_heads = o_.num_heads,
                  .num_kv_heads = o_.num_kv_heads ? o_.num_kv_heads : o_.num_heads,
                  .head_dim = o_.head_dim,
                  .intermediate_size = o_.intermediate_size,
                  .max_positions = o_.max_positions,
                  .norm_eps = neox ? o_.layer_norm_eps : o_.rms_norm_eps,
                  .rope_theta = o_.rope_theta,
                  .rope_scaling = rope_scaling(),
                  .rotary_pct = o_.rotary_pct,
                  .tie_embeddings = o_.tie_embeddings,
                  .initializer_range = o_.initializer_range,
                  .hidden_act = o_.hidden_act,
                  .parallel_residual = o_.parallel_residual,
                  .attention_bias = o_.attention_bias,
                  .num_experts = mixtral ? *o_.num_experts : 0,
                  .experts_per_token = mixtral ? *o_.experts_per_token : 0,
                  .router_aux_loss_coef = mixtral ? *o_.router_aux_loss_coef : 0,
                  .router_aux_loss_per_layer = mixtral && o_.router_aux_loss_per_layer,
                  .router_aux_loss_per_rank = mixtral && o_.router_aux_loss_per_rank,
                  .router_z_loss_coef = mixtral ? *o_.router_z_loss_coef : 0,
                  .router_jitter = mixtral ? *o_.router_jitter : 0,
                  .sliding_window = o_.sliding_window,
                  .bos_id = o_.bos_id,
                  .eos_id = o_.eos_id,
                  .attention = o_.attention,
                  .scaled_init = o_.scaled_init};
    check_shape(m);
    return m;
  }

 private:
  template <class... Parts>
  [[noreturn]] void refuse(const OptionBase& option, const Parts&... why) {
    bad_input(where_, ": ", o_.path(option.name()), ": ", show(option.value()), " ", why...);
  }

  void defaults() {  // those of transformers' configuration classes, where they differ between architectures
    const bool neox = o_.model_type == Arch::neox, mixtral = o_.model_type == Arch::mixtral;
    o_.rotary_pct.default_to(neox ? 0.25 : 1);
    o_.hidden_act.default_to(neox ? "gelu" : "silu");
    o_.parallel_residual.default_to(neox);
    o_.attention_bias.default_to(neox);
    o_.rms_norm_eps.default_to(mixtral ? 1e-5 : 1e-6);
    o_.max_positions.default_to(mixtral ? 131072 : 2048);
    o_.rope_theta.default_to(mixtral ? 1e6 : 1e4);
    if (mixtral) o_.num_kv_heads.default_to(8);
    o_.bos_id.default_to(neox ? 0 : 1);
    o_.eos_id.default_to(2);
    if (o_.head_dim == 0 && o_.num_heads > 0) {
      if (o_.hidden_size % o_.num_heads)
        refuse(o_.hidden_size, "is not a multiple of num_attention_heads (", o_.num_heads, "); give head_dim");
      o_.head_dim.set(o_.hidden_size / o_.num_heads);
    }
  }

  RopeScaling rope_scaling() {
    const RopeKind kind = o_.rope_type;
    const bool llama3 = kind == RopeKind::llama3, yarn = kind == RopeKind::yarn;
    if (kind != RopeKind::unscaled && !o_.rope_factor.was_given())
      refuse(o_.rope_type, "needs a factor: give rope_factor, or \"factor\" in rope_scaling or rope_parameters");
    const std::pair<const OptionBase*, bool> all[] = {{&o_.rope_factor, kind != RopeKind::unscaled},
                                                      {&o_.rope_low_freq_factor, llama3},
                                                      {&o_.rope_high_freq_factor, llama3},
                                                      {&o_.rope_attention_factor, yarn},
                                                      {&o_.rope_beta_fast, yarn},
                                                      {&o_.rope_beta_slow, yarn},
                                                      {&o_.rope_truncate, yarn}};
    for (const auto& [option, used] : all)
      if (option->was_given() && !used && option->value() != ModelOptions("").find(option->name())->value())
        refuse(*option, "is not used by rope_type ", o_.rope_type.chosen());
    if (kind == RopeKind::unscaled) return {};
    RopeScaling r{.kind = kind, .factor = o_.rope_factor};
    if (llama3 || yarn)
      r.original_max_positions = o_.rope_original_max_positions ? *o_.rope_original_max_positions : *o_.max_positions;
    if (llama3) r.low_freq_factor = o_.rope_low_freq_factor, r.high_freq_factor = o_.rope_high_freq_factor;
    if (llama3 && r.low_freq_factor >= r.high_freq_factor)
      refuse(o_.rope_low_freq_factor, "is not below rope_high_freq_factor (", r.high_freq_factor, ")");
    if (yarn) {
      r.attention_factor = o_.rope_attention_factor;
      r.beta_fast = o_.rope_beta_fast, r.beta_slow = o_.rope_beta_slow, r.truncate = o_.rope_truncate;
    }
    return r;
  }

  void refuse_unsupported() {
    const bool neox = o_.model_type == Arch::neox, mixtral = o_.model_type == Arch::mixtral;
    const std::string arch = o_.model_type.chosen();
    const std::string act = o_.hidden_act;
    if (neox ? act != "gelu" && act != "gelu_new" && act != "gelu_fast" : act != "silu")
      refuse(o_.hidden_act, "is not supported for ", arch, "; it must be ",
             neox ? "gelu, gelu_new or gelu_fast" : "silu");
    if (!neox && o_.attention_bias)
      refuse(o_.attention_bias, "is not supported for ", arch, ": its projections have no biases");
    if (o_.mlp_bias) refuse(o_.mlp_bias, "is not supported: the MLP has no biases to switch on");
    if (!neox && o_.parallel_residual) refuse(o_.parallel_residual, "is for gpt_neox only");
    if (!neox && o_.rotary_pct != 1) refuse(o_.rotary_pct, "is for gpt_neox only: ", arch, " rotates whole heads");
    for (const Option<double>* dropout : {&o_.attention_dropout, &o_.hidden_dropout})
      if (*dropout != 0) refuse(*dropout, "is not supported: there is no dropout; set it to 0");
    const OptionBase* of_mixtral[] = {&o_.num_experts,
                                      &o_.experts_per_token,
                                      &o_.router_aux_loss_coef,
                                      &o_.router_aux_loss_per_layer,
                                      &o_.router_aux_loss_per_rank,
                                      &o_.router_z_loss_coef,
                                      &o_.router_jitter};
    for (const OptionBase* option : of_mixtral)
      if (!mixtral && option->was_given()) refuse(*option, "is for mixtral only; this model is ", arch);
    if (neox && o_.num_kv_heads != 0 && o_.num_kv_heads != o_.num_heads)
      refuse(o_.num_kv_heads, "is not supported for gpt_neox: its heads share no keys");
    if (neox && o_.head_dim * o_.num_heads != o_.hidden_size)
      refuse(o_.head_dim, "is not hidden_size / num_attention_heads, as gpt_neox requires");
  }

  void check_shape(const ModelConfig& m) {
    if (m.num_heads % m.num_kv_heads)
      refuse(o_.num_kv_heads, "does not divide num_attention_heads (", m.num_heads, ")");
    if (m.head_dim % 2) refuse(o_.head_dim, "is odd; rotary embeddings rotate pairs");
    if (m.rotary_dims() < 2 || m.rotary_dims() % 2)
      refuse(o_.rotary_pct, "rotates ", m.rotary_dims(), " of ", m.head_dim, " dimensions; the number must be even");
    if (m.experts_per_token > m.num_experts)
      refuse(o_.experts_per_token, "is more than num_local_experts (", m.num_experts, ")");
    for (const Option<int64_t>* id : {&o_.bos_id, &o_.eos_id})
      if (*id >= m.vocab_size) refuse(*id, "is not an id below vocab_size (", m.vocab_size, ")");
  }

  ModelOptions& o_;
  const std::string& where_;
};

std::string config_file(const std::string& path) {
  namespace fs = std::filesystem;
  return fs::is_directory(path) ? (fs::path(path) / "config.json").string() : path;
}

}  // namespace

ModelConfig read_model_config(const json& fields, const std::string& where) {
  ModelOptions options("");
  FieldReader(options, where, /*from_transformers=*/true).read(fields);
  return ModelMaker(options, where).make();
}

ModelConfig load_model_config(const std::string& path) {
  const std::string file = config_file(path);
  return read_model_config(read_json(file), file);
}

ModelConfig read_model_section(const json& section, const std::vector<Override>& overrides, const std::string& where,
                               const std::vector<std::string>& others) {
  const json fields = section.is_string() ? json{{"config", section}} : section;
  const std::string command_line = "command line";
  ModelOptions own("model");  // what the file and the command line say, to find the preset and the config.json
  FieldReader(own, where, /*from_transformers=*/false).read(fields, others);
  for (const Override& o : overrides)
    own.require(o.key, command_line, others).read_text(o.value, command_line + ": " + own.path(o.key));

  ModelOptions all("model");
  const std::string& preset = own.preset;
  if (!preset.empty()) FieldReader(all, preset, false).read(preset_fields(preset, where + ": model.preset"));
  if (!own.config->empty()) {
    const std::string file = config_file(own.config);
    const json fields_there = [&] {
      try {
        return read_json(file);
      } catch (const InputError& e) { bad_input(where, ": model.config: ", e.what()); }
    }();
    FieldReader(all, file, /*from_transformers=*/true).read(fields_there);
  }
  for (const OptionBase* option : own.options())
    if (option->was_given()) all.find(option->name())->read(option->value(), where);
  return ModelMaker(all, where).make();
}

std::vector<OptionLine> model_options() {
  const ModelOptions options("model");
  std::vector<OptionLine> lines = options.lines();
  for (OptionLine& line : lines)
    if (line.path == options.path(options.model_type.name())) line.value.clear();  // it has no default
  return lines;
}

}  // namespace octet
