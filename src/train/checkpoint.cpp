#include "train/checkpoint.h"

#include <algorithm>
#include <optional>

#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "config/config_file.h"
#include "data/checkpoints.h"
#include "data/checksums.h"
#include "data/run_folder.h"
#include "data/safetensors_writer.h"
#include "data/tokenizer.h"
#include "host/attempts.h"
#include "ops/tune.h"
#include "train/checkpoint_files.h"

namespace octet::BACKEND {
namespace {
namespace fs = std::filesystem;
constexpr int64_t kChunk = int64_t{1} << 24;  // elements on the host at once

// One file of tensors that lie in slices on all ranks.
template <class ForEach>
void write_slices(Session& s, Attempts& files, const fs::path& path, const std::map<std::string, std::string>& metadata,
                  Checksums& checksums, ForEach&& for_each) {
  const HfLayout layout = layout_of(s.config.model);
  std::vector<StoredTensor> tensors;
  for_each(s.params, [&](const std::string& stored, const NamedShape& ours, Tensor t, int64_t, bool) {
    tensors.push_back({stored, t.dtype, stored_shape(ours, layout)});
  });
  std::optional<SafetensorsWriter> writer;
  const auto open = [&](WriterRole role) { files([&] { writer.emplace(path, tensors, metadata, role); }); };
  if (s.host.rank() == 0) open(WriterRole::create);
  files.agree();
  if (s.host.rank() != 0) open(WriterRole::join);
  std::vector<uint64_t> sums(tensors.size());  // of what this rank writes
  auto sum = sums.begin();
  std::vector<std::byte> bytes;
  for_each(s.params, [&](const std::string& stored, const NamedShape& ours, Tensor t, int64_t first, bool writes) {
    const int64_t count = writes ? stored_count(ours, layout, first, t.numel()) : 0;
    for (int64_t i = 0; i < count && !files.failed(); i += kChunk) {
      const Tensor part = t.part(i, {std::min(kChunk, count - i)});
      bytes.resize(part.bytes());
      copy_to_host(s.stream, bytes.data(), part.data, part.bytes());
      s.stream.synchronize();
      files([&] { writer->write_bytes(stored, first + i, bytes); });
      *sum += checksum(bytes, size_of(t.dtype), first + i);
      ++s.pulse;
    }
    ++sum;
  });
  files([&] { writer->close(); });
  writer.reset();  // of a failed one nobody holds the file when it is removed
  files.agree();
  std::vector<uint64_t> all(sums.size() * size_t(s.host.size()));
  s.host.all_gather(all.data(), sums.data(), sums.size() * sizeof(uint64_t));
  for (size_t i = 0; i < all.size(); ++i) checksums.add(path.filename(), tensors[i % sums.size()].name, all[i]);
}

void write_scales(Session& s, Attempts& files, const fs::path& path) {
  std::vector<StoredTensor> tensors;
  std::map<std::string, std::string> metadata;
  std::vector<std::pair<std::string, DelayedScaling::Snapshot>> all;
  if (s.scaling.size() == 0) return;  // weights may have none where activations do: wgrad alone in FP8
  all.emplace_back("activations", s.scaling.save(s.stream));
  all.emplace_back("weights", s.params.weight_scales().save(s.stream));
  for (const auto& [kind, snapshot] : all) {
    const int64_t S = int64_t(snapshot.names.size());
    tensors.push_back({kind + ".scale", DType::f32, {S}});
    tensors.push_back({kind + ".history", DType::f32, {snapshot.history, S}});
    tensors.push_back({kind + ".nonfinite", DType::i32, {S}});
    tensors.push_back({kind + ".largest", DType::f32, {S}});
    tensors.push_back({kind + ".cold", DType::i32, {S}});
    metadata[kind + ".names"] = json(snapshot.names).dump();
    metadata[kind + ".updates"] = std::to_string(snapshot.updates);
  }
  files([&] {
    SafetensorsWriter writer(path, tensors, metadata, WriterRole::create);
    for (const auto& [kind, snapshot] : all) {
      writer.write(kind + ".scale", 0, std::span<const float>(snapshot.scale));
      writer.write(kind + ".history", 0, std::span<const float>(snapshot.rows));
      writer.write(kind + ".largest", 0, std::span<const float>(snapshot.largest));
      const std::vector<int32_t> counts(snapshot.nonfinite.begin(), snapshot.nonfinite.end()),
          cold(snapshot.cold.begin(), snapshot.cold.end());
      writer.write(kind + ".cold", 0, std::span<const int32_t>(cold));
      writer.write(kind + ".nonfinite", 0, std::span<const int32_t>(counts));
    }
    writer.close();
  });
}

void write_state(Session& s, const fs::path& folder, const RunState& r) {
  json state{{"format", kCheckpointFormat},    {"step", r.done.step},
             {"samples", r.done.samples},      {"tokens", r.done.tokens},
             {"updates", r.counters.updates},  {"skipped", r.counters.skipped},
             {"data", std::to_string(r.data)}, {"tokenizer", std::to_string(r.tokenizer)},
             {"ranks", s.host.size()},         {"fallbacks", r.fallbacks},
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
  if (!s.config.data.tokenizer->empty()) copy_tokenizer(*s.config.data.tokenizer, folder);
}
}  // namespace

static void write_checkpoint(Session& s, const fs::path& staged, const fs::path& final, const RunState& state) {
  const bool first = s.host.rank() == 0;
  Attempts files(s.host);
  if (first)
    files([&] {
      std::error_code none;  // what hinders it hinders making it, and is told there
      fs::remove_all(staged, none);
      make_folders(staged);
    });
  Checksums checksums;
  write_slices(s, files, staged / "model.safetensors", {{"format", "pt"}}, checksums,
               [](auto& p, auto&& f) { for_each_master(p, f); });
  write_slices(s, files, staged / "optimizer.safetensors", {}, checksums,
               [](auto& p, auto&& f) { for_each_moment(p, f); });
  if (first || has_own_scales(s)) write_scales(s, files, staged / scales_file(s));
  if (first) files([&] { write_state(s, staged, state); });
  files.agree();  // every rank's ranges are durable
  if (first)
    files([&] {
      for (const auto& entry : fs::directory_iterator(staged))
        if (!checksums.has(entry.path().filename())) checksums.add_file(entry.path());
      checksums.write(staged);
      write_file(staged / "COMPLETE", "");
      sync_path(staged);
      replace_folder(staged, final);
    });
  files.agree();
}

// Of those up to this step: later ones are another run's, which went on in the same folder before this one.
static void drop_old(const fs::path& dir, int64_t step, int64_t keep) try {
  std::vector<fs::path> all = complete_checkpoints(dir);
  std::erase_if(all, [&](const fs::path& p) { return checkpoint_step(p) > step; });
  for (size_t i = 0; keep > 0 && i + size_t(keep) < all.size(); ++i) {
    if (const std::error_code error = remove_checkpoint(all[i]))
      log_warning("cannot remove the old checkpoint ", all[i].string(), ": ", error.message());
  }
} catch (const fs::filesystem_error& e) {  // the new one stands all the same
  log_warning("cannot remove old checkpoints below ", dir.string(), ": ", e.code().message());
}

std::string save_checkpoint(Trainer& trainer, const RunState& state) {
  Session& s = trainer.session;
  const fs::path dir = *s.config.checkpoint.dir;
  std::string digits = std::to_string(state.done.step);
  digits.insert(0, size_t(std::max<int64_t>(0, 8 - int64_t(digits.size()))), '0');
  const fs::path final = dir / ("step-" + digits), staged = dir / (".saving-" + digits);
  try {
    write_checkpoint(s, staged, final, state);
  } catch (...) {  // of a full disk above all: half a checkpoint must not fill it
    std::error_code none;
    if (s.host.rank() == 0) fs::remove_all(staged, none);
    throw;
  }
  if (s.host.rank() == 0) drop_old(dir, state.done.step, s.config.checkpoint.keep);
  s.host.barrier();
  return final.string();
}

std::optional<std::filesystem::path> newest_checkpoint(const std::filesystem::path& dir) {
  const std::vector<fs::path> all = complete_checkpoints(dir);
  if (all.empty()) return {};
  return all.back();
}

}  // namespace octet::BACKEND
