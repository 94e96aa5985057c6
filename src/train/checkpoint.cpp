#include "train/checkpoint.h"

#include <algorithm>
#include <atomic>
#include <functional>

#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "config/config_file.h"
#include "data/checkpoints.h"
#include "data/checksums.h"
#include "data/run_folder.h"
#include "data/tokenizer.h"
#include "ops/tune.h"
#include "train/agreement.h"
#include "train/checkpoint_files.h"

namespace octet::BACKEND {
namespace {
namespace fs = std::filesystem;

// A small file of a checkpoint that is still to be written: what it needs of the device and the run is taken before.
using Deferred = std::function<void()>;

using Scales = std::vector<std::pair<std::string, DelayedScaling::Snapshot>>;  // by what they are of
// Of this rank; where ranks share them, the same on all.
Scales scales_of(Session& s) {
  if (s.scaling.size() == 0) return {};  // weights may have none where activations do: wgrad alone in FP8
  const Scales all{{"activations", s.scaling.save(s.stream)}, {"weights", s.params.weight_scales().save(s.stream)}};
  if (s.amax_group() == s.world.get())
    for (const auto& [kind, snapshot] : all) check_scales(s.host, kind, snapshot);
  return all;
}

Deferred scales_to_write(const Scales& all, const fs::path& path) {
  if (all.empty()) return [] {};
  return [all, path] {
    std::vector<StoredTensor> tensors;
    std::map<std::string, std::string> metadata;
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
  };
}

Deferred state_to_write(Session& s, const fs::path& folder, const RunState& r) {
  json state{{"format", kCheckpointFormat},
             {"step", r.done.step},
             {"samples", r.done.samples},
             {"tokens", r.done.tokens},
             {"updates", r.counters.updates},
             {"skipped", r.counters.skipped},
             {"data", std::to_string(r.data)},
             {"validation", std::to_string(r.validation)},
             {"tokenizer", std::to_string(r.tokenizer)},
             {"ranks", s.host.size()},
             {"fallbacks", r.fallbacks},
             {"config", resolved(s.config)}};
  if (has_dynamic_loss_scale(s)) {
    state["loss_scale"] = r.counters.loss_scale;
    state["good_steps"] = r.counters.good_steps;
  }
  if (!r.alarms.empty()) state["alarms"] = r.alarms;
  const json model =
      write_config_file(s.config.model, s.config.precision.master_dtype == DType::bf16 ? "bfloat16" : "float32");
  return [=, plans = export_plans(s.device), tokenizer = std::string(*s.config.data.tokenizer)] {
    write_file(folder / "state.json", state.dump(2) + "\n");
    write_file(folder / "config.json", model.dump(2) + "\n");
    if (!plans.empty()) write_file(folder / "plans.jsonl", plans);
    if (!tokenizer.empty()) copy_tokenizer(tokenizer, folder);
  };
}
}  // namespace

// Of those up to this step: later ones are another run's, which went on in the same folder before this one.
static void drop_old(const fs::path& dir, int64_t step, int64_t keep, const fs::path& repeated) try {
  std::vector<fs::path> all = complete_checkpoints(dir);
  std::erase_if(all, [&](const fs::path& p) { return checkpoint_step(p) > step; });
  std::error_code none;
  if (!repeated.empty())
    std::ranges::stable_partition(all, [&](const fs::path& p) { return fs::equivalent(p, repeated, none); });
  for (size_t i = 0; keep > 0 && i + size_t(keep) < all.size(); ++i) {
    if (const std::error_code error = remove_checkpoint(all[i]))
      log_warning("cannot remove the old checkpoint ", all[i].string(), ": ", error.message());
  }
} catch (const fs::filesystem_error& e) {  // the new one stands all the same
  log_warning("cannot remove old checkpoints below ", dir.string(), ": ", e.code().message());
}

CheckpointWriter::Staged::~Staged() {
  std::error_code none;
  if (!path.empty()) fs::remove_all(path, none);
}

template <class ForEach>
void CheckpointWriter::open(Session& s, Attempts& files, const std::string& name,
                            const std::map<std::string, std::string>& metadata, ForEach&& for_each) {
  SlicedFile& f = save_->files.emplace_back();
  f.path = save_->staged / name;
  const HfLayout layout = hf_layout(s.config.model);
  for_each(s.params, [&](const std::string& stored, const NamedShape& ours, Tensor t, int64_t, bool) {
    f.tensors.push_back({stored, t.dtype, stored_shape(ours, layout)});
  });
  f.sums.resize(f.tensors.size());
  const auto open = [&](WriterRole role) { files([&] { f.writer.emplace(f.path, f.tensors, metadata, role); }); };
  if (s.host.rank() == 0) open(WriterRole::create);
  files.agree();
  if (s.host.rank() != 0) open(WriterRole::join);
}

template <class ForEach>
void CheckpointWriter::snapshot(Session& s, SlicedFile& f, ForEach&& for_each) {
  const HfLayout layout = hf_layout(s.config.model);
  uint64_t* sum = f.sums.data();
  for_each(s.params, [&](const std::string& stored, const NamedShape& ours, Tensor t, int64_t first, bool writes) {
    const int64_t count = writes ? stored_count(ours, layout, first, t.numel()) : 0;
    const auto write = [&f, stored, first, element = size_of(t.dtype), sum](int64_t at, std::span<const std::byte> x) {
      f.writer->write_bytes(stored, first + at, x);
      std::atomic_ref(*sum) += checksum(x, element, first + at);
    };
    background_.add(s.stream, t.part(0, {count}), write, s.pulse);
    ++sum;
  });
}

// What fails leaves nothing of the save behind.
template <class F>
void CheckpointWriter::or_drop(Session& s, F&& f) {
  try {
    f();
  } catch (const AttemptFailed&) {
    save_->files.clear();  // on all ranks, before rank 0 removes what some may hold open
    s.host.barrier();
    save_.reset();
    throw;
  }
}

void CheckpointWriter::reserve(const Session& s) {
  int64_t bytes = 0;
  const auto count = [&](const std::string&, const NamedShape&, Tensor t, int64_t, bool writes) {
    if (writes) bytes += int64_t(t.bytes());
  };
  for_each_master(s.params, count);
  for_each_moment(s.params, count);
  background_.reserve(bytes);
}

void CheckpointWriter::begin(Trainer& trainer, const RunState& state, fs::path repeated) {
  CHECK(!under_way() && rests(), "two saves at once");
  Session& s = trainer.session;
  const Scales scales = scales_of(s);
  const bool first = s.host.rank() == 0;
  const fs::path dir = *s.config.checkpoint.dir;
  std::string digits = std::to_string(state.done.step);
  digits.insert(0, size_t(std::max<int64_t>(0, 8 - int64_t(digits.size()))), '0');
  save_.emplace(state.done.step, dir / (".saving-" + digits), dir / ("step-" + digits), std::move(repeated));
  if (first) save_->removed.path = save_->staged;
  const auto masters = [](auto& p, auto&& f) { for_each_master(p, f); };
  const auto moments = [](auto& p, auto&& f) { for_each_moment(p, f); };
  or_drop(s, [&] {
    Attempts files(s.host);
    if (first)
      files([&] {
        std::error_code none;  // what hinders it hinders making it, and is told there
        fs::remove_all(save_->staged, none);
        make_folders(save_->staged);
      });
    open(s, files, "model.safetensors", {{"format", "pt"}}, masters);
    open(s, files, "optimizer.safetensors", {}, moments);
    files.agree();
  });
  std::vector<Deferred> small;
  if (first || has_own_scales(s)) small.push_back(scales_to_write(scales, save_->staged / scales_file(s)));
  if (first) small.push_back(state_to_write(s, save_->staged, state));
  snapshot(s, save_->files[0], masters);
  snapshot(s, save_->files[1], moments);
  background_.end(s.stream, [this, small] {
    for (const Deferred& write : small) write();
    for (SlicedFile& f : save_->files) f.writer->close();
  });
}

// Every rank's ranges are durable: with all their checksums rank 0 makes a checkpoint of them.
void CheckpointWriter::complete(Session& s) {
  Checksums sums;
  for (const SlicedFile& f : save_->files) {
    std::vector<uint64_t> all(f.sums.size() * size_t(s.host.size()));
    s.host.all_gather(all.data(), f.sums.data(), f.sums.size() * sizeof(uint64_t));
    for (size_t i = 0; i < all.size(); ++i) sums.add(f.path.filename(), f.tensors[i % f.tensors.size()].name, all[i]);
  }
  save_->completes = true;
  if (s.host.rank() != 0) return;
  background_.end(s.stream, [this, sums, keep = int64_t(s.config.checkpoint.keep)]() mutable {
    const fs::path& staged = save_->staged;
    for (const auto& entry : fs::directory_iterator(staged))
      if (!sums.has(entry.path().filename())) sums.add_file(entry.path());
    sums.write(staged);
    write_file(staged / "COMPLETE", "");
    sync_path(staged);
    replace_folder(staged, save_->final);
    save_->removed.path.clear();
    drop_old(save_->final.parent_path(), save_->step, keep, save_->repeated);
  });
}

std::optional<std::string> CheckpointWriter::advance(Session& s) {
  or_drop(s, [&] {
    Attempts files(s.host);
    files([&] { background_.wait(s.pulse); });
    files.agree();
  });
  if (!save_->completes) {
    complete(s);
    return {};
  }
  const std::string folder = save_->final.string();
  save_.reset();
  return folder;
}

std::string CheckpointWriter::finish(Session& s) {
  for (;;)
    if (const std::optional<std::string> folder = advance(s)) return *folder;
}

std::optional<std::filesystem::path> newest_checkpoint(const std::filesystem::path& dir) {
  const std::vector<fs::path> all = complete_checkpoints(dir);
  if (all.empty()) return {};
  return all.back();
}

}  // namespace octet::BACKEND
