#include "train/checkpoint.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "config/config_file.h"
#include "data/checkpoints.h"
#include "data/checksums.h"
#include "data/run_folder.h"
#include "data/safetensors_writer.h"
#include "ops/tune.h"
#include "train/weights.h"

namespace octet::BACKEND {
namespace {
namespace fs = std::filesystem;
constexpr int64_t kChunk = int64_t{1} << 24;  // elements on the host at once

uint64_t whole_number(const std::string& text, const std::string& where) {
  uint64_t n = 0;
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, n);
  if (error != std::errc() || end != last)
    bad_input(where, " is '", text.substr(0, 40), "', no whole number; the checkpoint is damaged");
  return n;
}

HfLayout layout_of(const ModelConfig& m) { return {.vocab_size = m.vocab_size, .tied_head = m.tie_embeddings}; }

// f(name in the file, tensor name, shape, local slice, first, whether this rank is to write it)
template <class F>
void for_each_moment(const ParameterStore& params, F&& f) {
  params.for_each([&](const std::string& name, Shape shape, const ParameterStore::Local& l) {
    f(name + ".m", NamedShape{name, shape}, l.m, l.first, l.counts);
    f(name + ".v", NamedShape{name, shape}, l.v, l.first, l.counts);
  });
}
template <class F>
void for_each_master(const ParameterStore& params, F&& f) {
  params.for_each([&](const std::string& name, Shape shape, const ParameterStore::Local& l) {
    f(name, NamedShape{name, shape}, l.master, l.first, l.counts);
  });
}

// One file of tensors that lie in slices on all ranks.
template <class ForEach>
void write_slices(Session& s, const fs::path& path, const std::map<std::string, std::string>& metadata,
                  Checksums& checksums, ForEach&& for_each) {
  const HfLayout layout = layout_of(s.config.model);
  std::vector<StoredTensor> tensors;
  for_each(s.params, [&](const std::string& stored, const NamedShape& ours, Tensor t, int64_t, bool) {
    tensors.push_back({stored, t.dtype, stored_shape(ours, layout)});
  });
  const bool creates = s.host.rank() == 0;
  if (!creates) s.host.barrier();
  SafetensorsWriter writer(path, tensors, metadata, creates ? WriterRole::create : WriterRole::join);
  if (creates) s.host.barrier();
  std::vector<uint64_t> sums(tensors.size());  // of what this rank writes
  auto sum = sums.begin();
  std::vector<std::byte> bytes;
  for_each(s.params, [&](const std::string& stored, const NamedShape& ours, Tensor t, int64_t first, bool writes) {
    const int64_t count = writes ? stored_count(ours, layout, first, t.numel()) : 0;
    for (int64_t i = 0; i < count; i += kChunk) {
      const Tensor part = t.part(i, {std::min(kChunk, count - i)});
      bytes.resize(part.bytes());
      copy_to_host(s.stream, bytes.data(), part.data, part.bytes());
      s.stream.synchronize();
      writer.write_bytes(stored, first + i, bytes);
      *sum += checksum(bytes, size_of(t.dtype), first + i);
      ++s.pulse;
    }
    ++sum;
  });
  writer.close();
  std::vector<uint64_t> all(sums.size() * size_t(s.host.size()));
  s.host.all_gather(all.data(), sums.data(), sums.size() * sizeof(uint64_t));
  for (size_t i = 0; i < all.size(); ++i) checksums.add(path.filename(), tensors[i % sums.size()].name, all[i]);
}

// A name in the file may be longer than the parameter's (".m"): padding is found by the parameter's.
void read_slice(Session& s, const SafetensorsModel& model, const std::string& stored, const NamedShape& ours, Tensor t,
                int64_t first) {
  const SafetensorsModel::Place place = model.at(stored);
  const std::vector<int64_t> shape = stored_shape(ours, layout_of(s.config.model));
  if (place.entry->shape != shape)
    bad_input(place.file->path().string(), ": ", stored, " has the shape ", to_string(place.entry->shape),
              "; this model's is ", to_string(shape));
  std::vector<double> values;
  for (int64_t i = 0; i < t.numel(); i += kChunk) {
    const int64_t count = std::min(kChunk, t.numel() - i);
    const int64_t held = stored_count(ours, layout_of(s.config.model), first + i, count);
    values.assign(size_t(count), 0.);  // the vocabulary's padding is zero
    if (held > 0) model.read(place, first + i, held, values.data());
    from_host(s.stream, t.part(i, {count}), values);
  }
}

// Ranks that do not share maxima have scales of their own: fp8.safetensors is rank 0's, the others' files bear their
// rank.
bool has_own_scales(const Session& s) { return s.host.rank() > 0 && s.amax_group() != s.world.get(); }
fs::path scales_file(const Session& s, const fs::path& folder) {
  return folder / (has_own_scales(s) ? concat("fp8.rank-", s.host.rank(), ".safetensors") : "fp8.safetensors");
}

void write_scales(Session& s, const fs::path& path) {
  std::vector<StoredTensor> tensors;
  std::map<std::string, std::string> metadata;
  std::vector<std::pair<std::string, DelayedScaling::Snapshot>> all;
  all.emplace_back("activations", s.scaling.save(s.stream));
  all.emplace_back("weights", s.params.weight_scales().save(s.stream));
  for (const auto& [kind, snapshot] : all) {
    const int64_t S = int64_t(snapshot.names.size());
    if (S == 0) return;
    tensors.push_back({kind + ".scale", DType::f32, {S}});
    tensors.push_back({kind + ".history", DType::f32, {snapshot.history, S}});
    tensors.push_back({kind + ".nonfinite", DType::i32, {S}});
    tensors.push_back({kind + ".largest", DType::f32, {S}});
    metadata[kind + ".names"] = json(snapshot.names).dump();
    metadata[kind + ".updates"] = std::to_string(snapshot.updates);
  }
  SafetensorsWriter writer(path, tensors, metadata, WriterRole::create);
  for (const auto& [kind, snapshot] : all) {
    writer.write(kind + ".scale", 0, std::span<const float>(snapshot.scale));
    writer.write(kind + ".history", 0, std::span<const float>(snapshot.rows));
    writer.write(kind + ".largest", 0, std::span<const float>(snapshot.largest));
    const std::vector<int32_t> counts(snapshot.nonfinite.begin(), snapshot.nonfinite.end());
    writer.write(kind + ".nonfinite", 0, std::span<const int32_t>(counts));
  }
  writer.close();
}

void read_scales(Session& s, const fs::path& folder) {
  if (s.scaling.size() == 0) return;
  fs::path path = scales_file(s, folder);
  if (has_own_scales(s) && !fs::exists(path) && fs::exists(folder / "fp8.safetensors")) {
    path = folder / "fp8.safetensors";
    log_warning(folder.string(), " has no FP8 state of rank ", s.host.rank(), ": it starts with rank 0's");
  }
  if (!fs::exists(path)) {
    if (s.host.rank() == 0)
      log_warning(path.parent_path().string(), " has no FP8 state: every scale starts cold, measured on its first use");
    return;
  }
  const SafetensorsFile file(path);
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
    const size_t S = snapshot.names.size();
    if (snapshot.history < 0 || snapshot.scale.size() != S || snapshot.nonfinite.size() != S ||
        snapshot.rows.size() != S * size_t(snapshot.history) ||
        (!snapshot.largest.empty() && snapshot.largest.size() != S))
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
}

bool has_dynamic_loss_scale(const Session& s) { return loss_scaling(s.config.precision) == LossScaling::dynamic; }

// A dynamic loss scale goes on where it stood; a static one is the config's.
void read_loss_scale(const Session& s, const json& state, const std::string& where, StepState& counters) {
  counters.loss_scale = first_loss_scale(s.config.precision);
  if (!has_dynamic_loss_scale(s) || !state.contains("loss_scale")) return;
  const json &scale = state["loss_scale"], good = state.value("good_steps", json());
  if (!scale.is_number() || !(scale.get<float>() > 0) || !std::isfinite(scale.get<float>()) ||
      !good.is_number_unsigned())
    bad_input(where, ": 'loss_scale' is no positive number, or 'good_steps' no whole one; the checkpoint is damaged");
  counters.loss_scale = scale.get<float>();
  counters.good_steps = good.get<uint32_t>();
}

void write_state(Session& s, const fs::path& folder, const RunState& r) {
  json state{{"format", kCheckpointFormat},
             {"step", r.step},
             {"samples", r.samples},
             {"updates", r.counters.updates},
             {"skipped", r.counters.skipped},
             {"data", std::to_string(r.data)},
             {"tokenizer", std::to_string(r.tokenizer)},
             {"ranks", s.host.size()},
             {"fallbacks", r.fallbacks},
             {"config", resolved(s.config)}};
  if (has_dynamic_loss_scale(s)) {
    state["loss_scale"] = r.counters.loss_scale;
    state["good_steps"] = r.counters.good_steps;
  }
  write_file(folder / "state.json", state.dump(2) + "\n");
  const json model =
      write_config_file(s.config.model, s.config.precision.master_dtype == DType::bf16 ? "bfloat16" : "float32");
  write_file(folder / "config.json", model.dump(2) + "\n");
  if (const std::string plans = export_plans(s.device); !plans.empty()) write_file(folder / "plans.jsonl", plans);
  const std::string tokenizer = s.config.data.tokenizer;
  if (!tokenizer.empty() && fs::exists(tokenizer))
    fs::copy_file(tokenizer, folder / "tokenizer.model", fs::copy_options::overwrite_existing);
}
}  // namespace

static void write_checkpoint(Session& s, const fs::path& staged, const RunState& state) {
  if (s.host.rank() == 0) {
    std::error_code none;  // what hinders it hinders making it, and is told there
    fs::remove_all(staged, none);
    make_folders(staged);
  }
  Checksums checksums;
  write_slices(s, staged / "model.safetensors", {{"format", "pt"}}, checksums,
               [](auto& p, auto&& f) { for_each_master(p, f); });
  write_slices(s, staged / "optimizer.safetensors", {}, checksums, [](auto& p, auto&& f) { for_each_moment(p, f); });
  if (s.host.rank() == 0 || has_own_scales(s)) write_scales(s, scales_file(s, staged));
  if (s.host.rank() == 0) write_state(s, staged, state);
  s.host.barrier();  // every rank's ranges are durable
  if (s.host.rank() != 0) return;
  for (const auto& entry : fs::directory_iterator(staged))
    if (!checksums.has(entry.path().filename())) checksums.add_file(entry.path());
  checksums.write(staged);
  write_file(staged / "COMPLETE", "");
  sync_path(staged);
}

// Of those up to this step: later ones are another run's, which went on in the same folder before this one.
static void drop_old(const fs::path& dir, int64_t step, int64_t keep) {
  std::vector<fs::path> all = complete_checkpoints(dir);
  std::erase_if(all, [&](const fs::path& p) { return checkpoint_step(p) > step; });
  for (size_t i = 0; keep > 0 && i + size_t(keep) < all.size(); ++i) {
    fs::remove(all[i] / "COMPLETE");  // first: half removed it is none
    fs::remove_all(all[i]);
  }
}

std::string save_checkpoint(Trainer& trainer, const RunState& state) {
  Session& s = trainer.session;
  const fs::path dir = *s.config.checkpoint.dir;
  std::string digits = std::to_string(state.step);
  digits.insert(0, size_t(std::max<int64_t>(0, 8 - int64_t(digits.size()))), '0');
  const fs::path final = dir / ("step-" + digits), staged = dir / (".saving-" + digits);
  try {
    write_checkpoint(s, staged, state);
  } catch (...) {  // of a full disk above all: half a checkpoint must not fill it
    std::error_code none;
    if (s.host.rank() == 0) fs::remove_all(staged, none);
    throw;
  }
  if (s.host.rank() == 0) {
    replace_folder(staged, final);
    drop_old(dir, state.step, s.config.checkpoint.keep);
  }
  s.host.barrier();
  return final.string();
}

std::optional<std::filesystem::path> newest_checkpoint(const std::filesystem::path& dir) {
  const std::vector<fs::path> all = complete_checkpoints(dir);
  if (all.empty()) return {};
  return all.back();
}

std::vector<std::string> fallbacks_of(const std::filesystem::path& folder) {
  const json state = read_checkpoint_state(folder), names = state.value("fallbacks", json::array());
  std::vector<std::string> layers;
  for (const json& name : names) {
    if (!name.is_string()) bad_input((folder / "state.json").string(), ": 'fallbacks' is no list of names");
    layers.push_back(name.get<std::string>());
  }
  return layers;
}

RunState load_checkpoint(Trainer& trainer, const std::filesystem::path& folder) {
  Session& s = trainer.session;
  const json state = read_checkpoint_state(folder);
  const auto number = [&](const char* key, uint64_t most) {
    if (!state.contains(key) || !state[key].is_number_unsigned() || state[key].get<uint64_t>() > most)
      bad_input((folder / "state.json").string(), ": '", key, "' is missing or no whole number up to ", most);
    return state[key].get<int64_t>();
  };
  constexpr uint64_t kMost = uint64_t{1} << 53;  // room for what is counted from there
  RunState r{.step = number("step", kMost), .samples = number("samples", kMost)};
  r.counters.updates = uint32_t(number("updates", UINT32_MAX));
  r.counters.skipped = uint32_t(number("skipped", UINT32_MAX));
  read_loss_scale(s, state, (folder / "state.json").string(), r.counters);
  const auto fingerprint = [&](const char* key) {
    const json text = state.value(key, json("0"));
    return whole_number(text.is_string() ? text.get<std::string>() : text.dump(),
                        concat((folder / "state.json").string(), ": '", key, "'"));
  };
  r.data = fingerprint("data");
  r.tokenizer = fingerprint("tokenizer");
  r.fallbacks = fallbacks_of(folder);

  const SafetensorsModel model(folder / "model.safetensors");
  check_names(names_of(s.params), model, layout_of(s.config.model));
  for_each_master(s.params, [&](const std::string& stored, const NamedShape& ours, Tensor t, int64_t first, bool) {
    read_slice(s, model, stored, ours, t, first);
  });
  if (!fs::exists(folder / "optimizer.safetensors")) {
    if (r.step > 0 && s.host.rank() == 0)  // an import is at step 0 and has none
      log_warning(folder.string(), " has no optimizer.safetensors: the optimizer starts without its moments");
  } else {
    const SafetensorsModel moments(folder / "optimizer.safetensors");
    for_each_moment(s.params, [&](const std::string& stored, const NamedShape& ours, Tensor t, int64_t first, bool) {
      read_slice(s, moments, stored, ours, t, first);
    });
  }
  read_scales(s, folder);
  if (fs::exists(folder / "plans.jsonl")) import_plans(s.device, read_file(folder / "plans.jsonl"));
  s.params.publish(s.stream, ParameterStore::Masters::changed);
  trainer.restore(r.step, r.samples, r.counters);
  return r;
}

}  // namespace octet::BACKEND
