// The way back from a checkpoint's files to a trainer, each rank its own slices; train/checkpoint.h says what is in
// them.
#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <utility>

#include "base/json.h"
#include "base/log.h"
#include "data/checkpoints.h"
#include "data/ordered_parallel.h"
#include "ops/tune.h"
#include "train/checkpoint.h"
#include "train/checkpoint_files.h"
#include "train/integrity.h"
#include "train/same_run.h"

namespace octet::BACKEND {
namespace {
namespace fs = std::filesystem;
constexpr int64_t kChunk = int64_t{1} << 20;  // elements at once: they are still in the cache when they are copied
constexpr int kReaders = 6;                   // threads

uint64_t whole_number(const std::string& text, const std::string& where) {
  uint64_t n = 0;
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, n);
  if (error != std::errc() || end != last)
    bad_input(where, " is '", text.substr(0, 40), "', not a whole number; the checkpoint is damaged");
  return n;
}

// A name in the file may be longer than the parameter's (".m"): padding is found by the parameter's.
void read_slice(Session& s, const SafetensorsModel& model, const std::string& stored, const NamedShape& ours, Tensor t,
                Integrity::Read& sum) {
  const auto [file, entry] = model.at(stored);
  const HfLayout layout = hf_layout(s.config.model);
  if (const std::vector<int64_t> shape = stored_shape(ours, layout); entry->shape != shape)
    bad_input(file->path().string(), ": ", stored, " has the shape ", to_string(entry->shape), "; this model's is ",
              to_string(shape));
  const size_t element = size_t(stored_size(entry->dtype));
  struct Chunk {
    int64_t at = 0, count = 0;  // elements of t
    int64_t held = 0;           // those of them that the file has: the vocabulary's padding comes after
    std::span<const std::byte> bytes{};
    uint64_t sum = 0;
  };
  int64_t at = 0;
  const auto next = [&](Chunk& c) {
    if (at >= t.numel()) return false;
    const int64_t count = std::min(kChunk, t.numel() - at), held = stored_count(ours, layout, sum.first + at, count);
    const std::byte* from = file->data(*entry) + size_t(held ? sum.first + at : 0) * element;
    c = {.at = std::exchange(at, at + count), .count = count, .held = held, .bytes = {from, size_t(held) * element}};
    return true;
  };
  const auto read = [&](Chunk c) {  // the first look at the bytes: threads wait for the disk side by side
    c.sum = checksum(c.bytes, element, sum.first + c.at);
    return c;
  };
  std::vector<double> values;
  const auto take = [&](const Chunk& c) {
    sum.sum += c.sum, sum.count += c.held;
    ++s.pulse;
    const Tensor part = t.part(c.at, {c.count});
    if (c.held == c.count && entry->dtype == stored_name(t.dtype)) {
      copy_to_device(s.stream, part.data, c.bytes.data(), part.bytes());
      s.stream.synchronize();  // the mapping may end
      return;
    }
    values.assign(size_t(c.count), 0.);  // the padding is zero
    if (c.held > 0) file->read(*entry, sum.first + c.at, c.held, values.data());
    from_host(s.stream, part, values);
  };
  const int threads = int(std::clamp<int64_t>(t.numel() / kChunk, 1, kReaders));
  ordered_parallel<Chunk, Chunk>(threads, next, read, take);
}

// A file of tensors; where it is none, or no whole one, an InputError says what to take instead.
template <class File>
File opened(const fs::path& path) {
  try {
    return File(path);
  } catch (const InputError& e) { bad_input(e.what(), "; or ", instead_of(path.parent_path())); }
}

// One file of tensors that lie in slices on all ranks.
template <class ForEach>
void read_slices(Session& s, const SafetensorsModel& model, Integrity& integrity, ForEach&& for_each) {
  const std::string file = model.path().filename();
  for_each(s.params, [&](const std::string& stored, const NamedShape& ours, Tensor t, int64_t first, bool counts) {
    Integrity::Read read{.first = first, .counts = counts};
    read_slice(s, model, stored, ours, t, read);
    integrity.add(file, stored, read);
  });
}

void read_scales(Session& s, const fs::path& folder, const Integrity& integrity) {
  if (s.scaling.size() == 0) return;
  const bool there = rank_0_sees(s.host, folder / "fp8.safetensors");
  fs::path path = folder / scales_file(s);
  if (has_own_scales(s) && !fs::exists(path) && there) {
    path = folder / "fp8.safetensors";
    log_warning(folder.string(), " has no FP8 state of rank ", s.host.rank(), ": it starts with rank 0's");
  }
  if (!there) {
    if (s.host.rank() == 0)
      log_warning(folder.string(), " has no FP8 state: ",
                  s.scaling.options().cold_scale_one ? "scales that come from a history start at 1 (fp8.cold_start)"
                                                     : "every scale starts cold, measured on its first use");
    return;
  }
  const auto file = opened<SafetensorsFile>(path);
  const auto read = [&](const std::string& kind, DelayedScaling& scales) {
    const auto& meta = file.metadata();
    if (!meta.contains(kind + ".names") || !meta.contains(kind + ".updates"))
      bad_input(path.string(), ": no names of ", kind, "; it was not written by octet");
    DelayedScaling::Snapshot snapshot;
    for (const json& name : parse_json(meta.at(kind + ".names"), path.string()))
      snapshot.names.push_back(name.is_string() ? name.get<std::string>() : "");
    snapshot.updates = int64_t(whole_number(meta.at(kind + ".updates"), concat(path.string(), ": ", kind, ".updates")));
    snapshot.scale = file.read_all<float>(kind + ".scale");
    snapshot.rows = file.read_all<float>(kind + ".history");
    if (file.find(kind + ".largest")) snapshot.largest = file.read_all<float>(kind + ".largest");
    const std::vector<int64_t>& shape = file.at(kind + ".history").shape;
    snapshot.history = shape.empty() ? -1 : shape[0];
    for (int32_t n : file.read_all<int32_t>(kind + ".nonfinite")) snapshot.nonfinite.push_back(uint32_t(n));
    if (file.find(kind + ".cold"))
      for (int32_t n : file.read_all<int32_t>(kind + ".cold")) snapshot.cold.push_back(n != 0);
    const size_t S = snapshot.names.size();
    if (snapshot.history < 0 || snapshot.scale.size() != S || snapshot.nonfinite.size() != S ||
        snapshot.rows.size() != S * size_t(snapshot.history) ||
        (!snapshot.largest.empty() && snapshot.largest.size() != S) ||
        (!snapshot.cold.empty() && snapshot.cold.size() != S))
      bad_input(path.string(), ": its tensors of ", kind, " do not agree in size");
    for (const std::vector<float>* values : {&snapshot.scale, &snapshot.largest})  // a history may hold infinities
      for (size_t i = 0; i < values->size(); ++i)
        if (const float x = (*values)[i]; !(x > 0) || !std::isfinite(x))
          bad_input(path.string(), ": ", kind, " of ", snapshot.names[i], " have the scale ", x,
                    "; the checkpoint is damaged: take another one");
    const int found = scales.load(s.stream, snapshot);
    if (found < scales.size() && s.host.rank() == 0)
      log_warning(path.string(), ": ", scales.size() - found, " of ", scales.size(), " FP8 scales of ", kind,
                  " are missing and start cold");
  };
  read("activations", s.scaling);
  read("weights", s.params.weight_scales());
  integrity.compare_file(path.filename());
}

// What of the model is not as it was saved, under the names of the config's options. Empty where no whole config.json
// tells.
std::vector<std::string> changes_of_model(const ModelConfig& now, const fs::path& folder) try {
  if (!fs::exists(folder / "config.json")) return {};
  const auto fields = [](ModelConfig m) {
    const int64_t window = std::exchange(m.sliding_window, 0);  // with one, transformers' Llama has another name
    json all = write_model_config(m, 4);
    all["sliding_window"] = window;
    return all;
  };
  const json saved = fields(load_model_config(folder));
  json ours = fields(now);
  for (const auto& [key, value] : saved.items())
    if (!ours.contains(key)) ours[key] = nullptr;  // such as rope_scaling, which a model without has not
  constexpr std::array kOthers{
      "architectures",       "max_position_embeddings", "initializer_range", "router_aux_loss_coef",
      "router_jitter_noise", "output_router_logits",    "bos_token_id",      "eos_token_id"};
  std::vector<std::string> changes;
  for (const auto& [key, value] : ours.items()) {
    const bool computes = std::find(kOthers.begin(), kOthers.end(), key) == kOthers.end();
    const json before = saved.value(key, json());
    if (!computes || before == value) continue;
    const std::string change = concat("model.", key, " was ", show(before), " and is ", show(value));
    if (key == "model_type") return {change};  // which says it all
    changes.push_back(change);
  }
  return changes;
} catch (const InputError&) { return {}; }  // there are no checksums that would have told so

// Weights of the same shapes may be another model's: of other heads, of another rotary base. On purpose maybe, for a
// longer context; if not, the loss jumps, and nothing says why. Those of other shapes cannot go on: then the config is
// to blame, not the checkpoint, of which check_names() thinks.
void check_model(const Session& s, const SafetensorsModel& model, const fs::path& folder) {
  const bool first = s.host.rank() == 0;
  const std::vector<std::string> changes =
      first ? changes_of_model(s.config.model, folder) : std::vector<std::string>{};
  std::string all;
  for (const std::string& change : changes) all += (all.empty() ? "" : ", ") + change;
  all = of_rank_0(s.host, all);
  try {
    check_names(names_of(s.params), model, hf_layout(s.config.model));
  } catch (const InputError&) {
    if (all.empty()) throw;
    bad_input(folder.string(), " holds another model than this run's: ", all,
              ". Give the model that was saved; or --resume none, and a checkpoint.dir of its own, to train this one");
  }
  for (const std::string& change : changes)
    log_warning(folder.string(), ": ", change, " now: the weights go on as another model");
}

// A dynamic loss scale goes on where it stood; a static one is the config's.
void read_loss_scale(const Session& s, const json& state, const std::string& where, StepState& counters) {
  counters.loss_scale = first_loss_scale(s.config.precision);
  if (!has_dynamic_loss_scale(s) || !state.contains("loss_scale")) return;
  const json &scale = state["loss_scale"], good = state.value("good_steps", json());
  if (!scale.is_number() || !(scale.get<float>() > 0) || !std::isfinite(scale.get<float>()) ||
      !good.is_number_unsigned())
    bad_input(where,
              ": 'loss_scale' is not a positive number, or 'good_steps' not a whole one; the checkpoint is damaged");
  counters.loss_scale = scale.get<float>();
  counters.good_steps = good.get<uint32_t>();
}

}  // namespace

// Of a checkpoint, as rank 0 reads it: nodes that see another one must not go on from another step.
static json state_of_rank_0(Host& host, const fs::path& folder) {
  constexpr auto kReplace = json::error_handler_t::replace;  // names that are no UTF-8 are none of ours
  const std::string text =
      of_rank_0(host, host.rank() == 0 ? read_checkpoint_state(folder).dump(-1, ' ', false, kReplace) : "");
  return parse_json(text, (folder / "state.json").string());
}

static std::vector<std::string> fallbacks_in(const json& state, const fs::path& folder) {
  const json names = state.value("fallbacks", json::array());
  std::vector<std::string> layers;
  for (const json& name : names) {
    if (!name.is_string()) bad_input((folder / "state.json").string(), ": 'fallbacks' is not a list of names");
    layers.push_back(name.get<std::string>());
  }
  return layers;
}

static std::map<std::string, int64_t> alarms_in(const json& state, const fs::path& folder) {
  const json counts = state.value("alarms", json::object());
  std::map<std::string, int64_t> alarms;
  for (const auto& [layer, count] : counts.items()) {
    if (!count.is_number_unsigned())
      bad_input((folder / "state.json").string(), ": 'alarms' does not count those of layers");
    alarms[layer] = count.get<int64_t>();
  }
  return alarms;
}

std::vector<std::string> fallbacks_of(Host& host, const fs::path& folder) {
  return fallbacks_in(state_of_rank_0(host, folder), folder);
}

// An option of the config that was saved; 0 where there is none, or another.
static int64_t saved_option(const json& state, const char* key) {
  const json config = state.value("config", json());
  const json training = config.is_object() ? config.value("training", json()) : json();
  const json value = training.is_object() ? training.value(key, json()) : json();
  return value.is_number_unsigned() && value.get<uint64_t>() <= INT32_MAX ? value.get<int64_t>() : 0;
}

RunState load_checkpoint(Trainer& trainer, const std::filesystem::path& folder) {
  Session& s = trainer.session;
  const json state = state_of_rank_0(s.host, folder);
  const auto number = [&](const char* key, uint64_t most) {
    if (!state.contains(key) || !state[key].is_number_unsigned() || state[key].get<uint64_t>() > most)
      bad_input((folder / "state.json").string(), ": '", key, "' is missing or not a whole number up to ", most);
    return state[key].get<int64_t>();
  };
  constexpr uint64_t kMost = uint64_t{1} << 53;  // room for what is counted from there
  RunState r{.done = {.step = number("step", kMost), .samples = number("samples", kMost)}};
  r.counters.updates = uint32_t(number("updates", UINT32_MAX));
  r.counters.skipped = uint32_t(number("skipped", UINT32_MAX));
  read_loss_scale(s, state, (folder / "state.json").string(), r.counters);
  const auto fingerprint = [&](const char* key) {
    const json text = state.value(key, json("0"));
    return whole_number(text.is_string() ? text.get<std::string>() : text.dump(),
                        concat((folder / "state.json").string(), ": '", key, "'"));
  };
  r.data = fingerprint("data");
  r.validation = fingerprint("validation");
  r.tokenizer = fingerprint("tokenizer");
  r.fallbacks = fallbacks_in(state, folder);
  r.alarms = alarms_in(state, folder);
  const int64_t seq_len = saved_option(state, "seq_len");
  r.tokens_per_step = saved_option(state, "global_batch_size") * seq_len;
  if (state.contains("tokens")) r.done.tokens = number("tokens", uint64_t{1} << 62);
  else if (__builtin_mul_overflow(r.done.samples, seq_len ? seq_len : s.config.training.seq_len, &r.done.tokens))
    bad_input((folder / "state.json").string(), ": more tokens than can be counted; the checkpoint is damaged");

  Integrity integrity(s.host, folder);
  const auto model = opened<SafetensorsModel>(folder / "model.safetensors");
  check_model(s, model, folder);
  read_slices(s, model, integrity, [](auto& p, auto&& f) { for_each_master(p, f); });
  if (rank_0_sees(s.host, folder / "optimizer.safetensors")) {
    const auto moments = opened<SafetensorsModel>(folder / "optimizer.safetensors");
    read_slices(s, moments, integrity, [](auto& p, auto&& f) { for_each_moment(p, f); });
  } else {
    r.counters.updates = 0;                     // moments of zero are those of a first update
    if (r.done.step > 0 && s.host.rank() == 0)  // an import is at step 0 and has none
      log_warning(folder.string(), " has no optimizer.safetensors: the optimizer starts without its moments");
  }
  integrity.compare();
  read_scales(s, folder, integrity);
  if (const fs::path plans = folder / "plans.jsonl"; rank_0_sees(s.host, plans))
    import_plans(s.device, of_rank_0(s.host, s.host.rank() == 0 ? read_file(plans) : ""));
  s.params.publish(s.stream, ParameterStore::Masters::changed);
  trainer.restore(r.done, r.counters);
  return r;
}

}  // namespace octet::BACKEND
