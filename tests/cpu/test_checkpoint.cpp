// Checkpoints: what is incomplete, foreign or of other sizes is refused or read as documented, and a save that fails
// harms nothing that was saved before. That 5 + 5 steps are 10 is test_training.cpp.
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <thread>

#include "base/json.h"
#include "cpu/tiny_model.h"
#include "data/checksums.h"
#include "data/safetensors.h"
#include "data/scratch.h"
#include "host/attempts.h"
#include "ranks.h"

namespace octet::BACKEND {
namespace {
namespace fs = std::filesystem;

class Checkpoint : public testing::Test {
 protected:
  RunConfig config(const Changes& changes = {}) const {
    return tiny_config(with({concat("checkpoint.dir=", dir().string())}, changes));
  }
  fs::path dir() const { return folder_ / "run"; }
  std::vector<std::string> saved() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(dir())) names.push_back(entry.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }
  static std::string refused(const RunConfig& c, const fs::path& checkpoint) {
    TinyTrainer t(c);
    return error_of<InputError>([&] { load_checkpoint(t, checkpoint); });
  }

 private:
  const Threads one_{1};
  Scratch folder_;
};

const Changes kFp8{"precision.param_dtype=bf16", "fp8.enabled=true"};

TEST_F(Checkpoint, HoldsWhatItSays) {
  TinyTrainer t(config());
  t.run(2);
  const fs::path at = t.save();
  EXPECT_EQ(at, dir() / "step-00000002");
  for (const char* file : {"COMPLETE", "model.safetensors", "optimizer.safetensors", "state.json", "config.json"})
    EXPECT_TRUE(fs::exists(at / file)) << file;
  EXPECT_EQ(saved(), std::vector<std::string>{"step-00000002"});  // no rest of the staging
  const SafetensorsFile model(at / "model.safetensors");
  EXPECT_EQ(model.at("model.embed_tokens.weight").shape, (std::vector<int64_t>{120, 32}));  // without padding
  EXPECT_EQ(model.at("lm_head.weight").shape, (std::vector<int64_t>{120, 32}));
  EXPECT_EQ(model.at("model.layers.1.self_attn.k_proj.weight").shape, (std::vector<int64_t>{16, 32}));
  EXPECT_EQ(load_model_config((at / "config.json").string()).hidden_size, 32);
  EXPECT_EQ(read_json((at / "state.json").string())["config"]["training"]["seq_len"], 16);
}

TEST_F(Checkpoint, OnlyCompleteOnesCount) {
  EXPECT_FALSE(newest_checkpoint(dir()));  // no such folder
  TinyTrainer t(config({"checkpoint.keep=0"}));
  std::vector<fs::path> all;
  for (int i = 0; i < 3; ++i) t.run(1), all.push_back(t.save());
  EXPECT_EQ(newest_checkpoint(dir()), all[2]);
  fs::remove(all[2] / "COMPLETE");
  EXPECT_EQ(newest_checkpoint(dir()), all[1]);
  fs::create_directory(dir() / ".saving-00000009");
  fs::create_directory(dir() / "step-final");
  std::ofstream(dir() / "step-00000008") << "a file";
  EXPECT_EQ(newest_checkpoint(dir()), all[1]);
  const std::string said = refused(config(), all[2]);
  EXPECT_TRUE(has(said, all[2].string()) && has(said, "COMPLETE")) << said;
  EXPECT_TRUE(has(refused(config(), dir() / "step-00000007"), "step-00000007"));
  fs::create_directory(dir() / "other");
  EXPECT_TRUE(has(refused(config(), dir() / "other"), "no checkpoint"));
  fs::copy_file(all[1] / "config.json", dir() / "other/config.json");  // as transformers saves a model
  EXPECT_TRUE(has(refused(config(), dir() / "other"), "octet import"));
}

TEST_F(Checkpoint, TheNewestIsOfTheLargestStepWhateverItsDigits) {
  for (const char* name : {"step-99999999", "step-100000000", "step-00000007"}) {
    fs::create_directories(dir() / name);
    std::ofstream(dir() / name / "COMPLETE");
  }
  EXPECT_EQ(newest_checkpoint(dir()), dir() / "step-100000000");
}

TEST_F(Checkpoint, TheSameStepIsSavedAgain) {
  TinyTrainer t(config());
  t.run(1);
  const fs::path at = t.save();
  fs::remove(at / "COMPLETE");  // as if it had been cut short
  EXPECT_EQ(t.save(), at);
  EXPECT_EQ(t.save(), at);
  TinyTrainer other(config());
  EXPECT_EQ(load_checkpoint(other, at).done.step, 1);
}

TEST_F(Checkpoint, KeepsTheNewest) {
  TinyTrainer t(config({"checkpoint.keep=2"}));
  for (int i = 0; i < 4; ++i) t.run(1), t.save();
  EXPECT_EQ(saved(), (std::vector<std::string>{"step-00000003", "step-00000004"}));
  TinyTrainer all(config({"checkpoint.keep=0"}));
  all.run(6);
  all.save();
  EXPECT_EQ(saved(), (std::vector<std::string>{"step-00000003", "step-00000004", "step-00000006"}));
}

TEST_F(Checkpoint, AnOldOneThatCannotBeRemovedEndsNoRun) {
  TinyTrainer t(config({"checkpoint.keep=1"}));
  t.run(1);
  const fs::path old = t.save();
  fs::remove(old / "COMPLETE");
  fs::create_directories(old / "COMPLETE/held");  // as the user's permissions would hold it
  t.run(1);
  EXPECT_EQ(t.save(), dir() / "step-00000002");
  EXPECT_EQ(saved(), (std::vector<std::string>{"step-00000001", "step-00000002"}));
}

TEST_F(Checkpoint, WithoutMomentsTheOptimizerStartsFresh) {
  TinyTrainer t(config());
  t.run(3);
  const fs::path at = t.save();
  fs::remove(at / "optimizer.safetensors");
  fs::remove(at / "checksums.json");  // it goes on purpose
  TinyTrainer other(config());
  load_checkpoint(other, at);
  const Bits ours = weight_bits(t.session.params), theirs = weight_bits(other.session.params);
  for (const auto& [name, bytes] : theirs) {
    const bool moment = name.ends_with(".m") || name.ends_with(".v");
    if (moment) EXPECT_EQ(std::count(bytes.begin(), bytes.end(), 0), std::ptrdiff_t(bytes.size())) << name;
    else EXPECT_TRUE(bytes == ours.at(name)) << name;
  }
  EXPECT_LT(other.run(7).back(), std::log(120.) - 0.2);
}

// A link to itself stands for a file whose state the machine cannot tell: the run would go on without it, or without
// the newest checkpoint.
TEST_F(Checkpoint, WhatCannotBeLookedAtIsNotTakenForMissing) {
  TinyTrainer t(config(kFp8));
  t.run(1);
  const fs::path at = t.save();
  const auto expect = [&](const char* name) {
    fs::rename(at / name, dir() / "kept");
    fs::create_symlink(name, at / name);
    EXPECT_THROW(load_checkpoint(t, at), fs::filesystem_error) << name;
    fs::rename(dir() / "kept", at / name);
  };
  expect("checksums.json");
  for (const bool checksums : {true, false}) {
    for (const char* name : {"fp8.safetensors", "optimizer.safetensors"}) expect(name);
    if (checksums) fs::remove(at / "checksums.json");
  }
  load_checkpoint(t, at);
  fs::remove(at / "COMPLETE");
  fs::create_symlink("COMPLETE", at / "COMPLETE");
  EXPECT_THROW(newest_checkpoint(dir()), fs::filesystem_error);
}

TEST_F(Checkpoint, AModelOfAnotherShapeIsRefusedByTensorWhereNoConfigTells) {
  TinyTrainer t(config());
  const fs::path at = t.save();
  fs::remove(at / "config.json");  // else by option: test_resume.cpp
  fs::remove(at / "checksums.json");
  std::string said = refused(config({"model.intermediate_size=64"}), at);
  EXPECT_TRUE(has(said, "mlp.gate_proj.weight") && has(said, "[48, 32]") && has(said, "model.safetensors")) << said;
  said = refused(config({"model.num_hidden_layers=3"}), at);
  EXPECT_TRUE(has(said, "model.layers.2.")) << said;
  said = refused(config({"model.num_hidden_layers=1"}), at);
  EXPECT_TRUE(has(said, "model.layers.1.")) << said;
  said = refused(config({"model.vocab_size=121"}), at);  // the same once padded
  EXPECT_TRUE(has(said, "model.embed_tokens.weight") && has(said, "[120, 32]")) << said;
}

TEST_F(Checkpoint, DamagedFilesAreRefusedByName) {
  TinyTrainer t(config(kFp8));
  const fs::path at = t.save();
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "fp8.safetensors", "state.json"}) {
    const std::string whole = read_file(at / file);
    for (const size_t length : {size_t(0), size_t(4), whole.size() / 2, whole.size() - 3}) {
      write_file(at / file, whole.substr(0, length));
      EXPECT_TRUE(has(refused(config(kFp8), at), file)) << file << " cut to " << length << " bytes";
    }
    write_file(at / file, whole);
  }
  const json state = read_json((at / "state.json").string());
  for (const auto& [key, wrong] : std::vector<std::pair<const char*, json>>{{"format", 99},
                                                                            {"step", "three"},
                                                                            {"step", -3},
                                                                            {"step", UINT64_MAX},
                                                                            {"samples", INT64_MAX},
                                                                            {"updates", int64_t{1} << 32},
                                                                            {"samples", nullptr},
                                                                            {"updates", 1.5},
                                                                            {"data", "12x"},
                                                                            {"tokenizer", 7.5}}) {
    json changed = state;
    changed[key] = wrong;
    write_file(at / "state.json", changed.dump());
    const std::string said = refused(config(kFp8), at);
    EXPECT_TRUE(has(said, "state.json") && has(said, key)) << said;
  }
}

TEST_F(Checkpoint, ForeignFp8StateIsRefused) {
  TinyTrainer t(config(kFp8));
  const fs::path at = t.save(), file = at / "fp8.safetensors";
  const std::string whole = read_file(file);
  for (const auto& [from, to] : std::vector<std::pair<std::string, std::string>>{
           {R"("activations.updates":"0")", R"("activations.updates":"x")"},
           {R"("activations.updates":)", R"("activations.updated":)"},
           {R"("activations.names":"[)", R"("activations.names":"{)"}}) {
    std::string changed = whole;
    const size_t place = changed.find(from);
    ASSERT_NE(place, std::string::npos) << from;
    write_file(file, changed.replace(place, from.size(), to));
    EXPECT_TRUE(has(refused(config(kFp8), at), "fp8.safetensors")) << to;
  }
}

TEST_F(Checkpoint, AnFp8ScaleThatIsNoneIsRefused) {
  TinyTrainer t(config(kFp8));
  t.run(2);
  const fs::path at = t.save(), file = at / "fp8.safetensors";
  const std::string whole = read_file(file);
  size_t place = 0;
  {
    const SafetensorsFile scales(file);
    const auto& e = scales.at("activations.scale");
    place = whole.find(std::string(reinterpret_cast<const char*>(scales.data(e)), e.bytes));
    ASSERT_NE(place, std::string::npos);
  }
  fs::remove(at / "checksums.json");  // which would tell of any other bit
  for (const float wrong : {0.f, -1.f, INFINITY, NAN}) {
    std::string changed = whole;
    std::memcpy(changed.data() + place, &wrong, sizeof wrong);
    write_file(file, changed);
    EXPECT_TRUE(has(refused(config(kFp8), at), "fp8.safetensors: activations of ")) << wrong;
  }
}

// Row 0 of a history is no record: H in the config are H - 1 rows.
TEST_F(Checkpoint, AnotherHistoryLengthKeepsTheNewestRows) {
  TinyTrainer five(config(with(kFp8, {"fp8.amax_history_len=5"})));
  five.run(4);
  const fs::path at = five.save();
  const auto rows_of = [](Trainer& t) { return t.session.scaling.save(t.session.stream); };
  const auto from = rows_of(five);
  const size_t S = from.names.size();
  ASSERT_EQ(from.rows.size(), 4 * S);
  for (const int64_t length : {3, 9}) {
    TinyTrainer other(config(with(kFp8, {concat("fp8.amax_history_len=", length)})));
    load_checkpoint(other, at);
    const auto to = rows_of(other);
    ASSERT_EQ(to.history, length - 1);
    for (int64_t row = 0; row < std::max<int64_t>(4, to.history); ++row) {  // counted from the newest
      for (size_t i = 0; i < S && row < to.history; ++i) {
        const float want = row < 4 ? from.rows[(3 - size_t(row)) * S + i] : 0;
        ASSERT_EQ(to.rows[size_t(to.history - 1 - row) * S + i], want) << length << ' ' << row << ' ' << from.names[i];
      }
    }
    EXPECT_EQ(to.scale, from.scale);
    EXPECT_TRUE(std::isfinite(other.run(2).back()));
  }
}

TEST_F(Checkpoint, Fp8AndBf16RunsReadOneAnothers) {
  const RunConfig fp8 = config(kFp8), bf16 = config({"precision.param_dtype=bf16"});
  TinyTrainer a(fp8);
  a.run(3);
  TinyTrainer b(bf16);
  load_checkpoint(b, a.save());
  expect_same(weight_bits(b.session.params), weight_bits(a.session.params));
  const std::vector<double> in_fp8 = a.run(2), in_bf16 = b.run(2);
  expect_near_all(in_fp8, in_bf16, 2e-2);
  EXPECT_NE(in_fp8, in_bf16);
  TinyTrainer c(fp8);
  load_checkpoint(c, b.save());  // no FP8 state: it starts cold
  expect_same(weight_bits(c.session.params), weight_bits(b.session.params));
  EXPECT_EQ(c.session.scaling.updates(), 0);
  expect_near_all(c.run(3), b.run(3), 2e-2);
}

TEST_F(Checkpoint, OtherStorageTypesAreConverted) {
  TinyTrainer wide(config());
  wide.run(2);
  TinyTrainer narrow(config({"precision.master_dtype=bf16", "precision.moment_dtype=bf16"}));
  load_checkpoint(narrow, wide.save());
  narrow.session.params.for_each([&](const std::string& name, Shape, const ParameterStore::Local& l) {
    wide.session.params.for_each([&](const std::string& other, Shape, const ParameterStore::Local& o) {
      if (name != other) return;
      const auto x = values(l.master), y = values(o.master);
      for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(float(x[i]), float(bf16(float(y[i])))) << name << ' ' << i;
    });
  });
}

// ---- saves that fail

class FileLimit {  // no file of this process may be longer: what a full disk does, without one
 public:
  explicit FileLimit(int64_t bytes) : before_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &limit_);
    rlimit some = limit_;
    some.rlim_cur = rlim_t(bytes);
    ::setrlimit(RLIMIT_FSIZE, &some);
  }
  ~FileLimit() {
    ::setrlimit(RLIMIT_FSIZE, &limit_);
    std::signal(SIGXFSZ, before_);
  }
  FileLimit(const FileLimit&) = delete;

 private:
  rlimit limit_{};
  void (*before_)(int);
};

TEST_F(Checkpoint, AFailedSaveHarmsNothing) {
  for (const int ranks : {1, 2}) {
    run_ranks(ranks, [&](Host& host) {
      const Threads one{1};
      TinyTrainer t(config(), host);
      t.run(1);
      t.save();
    });
    const fs::path at = dir() / "step-00000001";
    const int64_t model = int64_t(fs::file_size(at / "model.safetensors"));
    const std::string before = read_file(at / "model.safetensors");
    for (const int64_t bytes : {int64_t(0), int64_t(100), model - 1, 2 * model - 10000}) {  // where the writing stops
      try {
        const FileLimit limit(bytes);
        run_ranks(ranks, [&](Host& host) {
          const Threads one{1};
          TinyTrainer t(config(), host);
          load_checkpoint(t, at);
          t.run(1);
          t.save();
        });
        FAIL() << "saved within " << bytes << " bytes a file";
      } catch (const AttemptFailed& e) {
        EXPECT_EQ(e.exit_code(), 3);
        EXPECT_TRUE(has(e.what(), "00000002")) << e.what();
      }
      EXPECT_EQ(newest_checkpoint(dir()), at);
      EXPECT_TRUE(read_file(at / "model.safetensors") == before);
    }
    TinyTrainer t(config());
    EXPECT_EQ(load_checkpoint(t, at).done.step, 1);
    t.run(1);
    EXPECT_EQ(newest_checkpoint(dir()), fs::path(t.save()));  // over what the failed one left
    fs::remove_all(dir());
  }
}

// Written, then completed, each by threads: before the second part is done there is no checkpoint of that step, and a
// run that ends in between leaves what was there before.
TEST_F(Checkpoint, AppearsWhenItsSecondPartIsDone) {
  TinyTrainer t(config());
  t.run(1);
  const std::string before = t.save();
  t.run(1);
  const auto rests = [](const CheckpointWriter& w) {
    while (!w.rests()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  {
    CheckpointWriter writer(/*room=*/0);
    writer.begin(t, t.run_state());
    rests(writer);
    EXPECT_EQ(newest_checkpoint(dir()), fs::path(before));
  }
  EXPECT_FALSE(fs::exists(dir() / ".saving-00000002"));  // the writer went away
  EXPECT_EQ(newest_checkpoint(dir()), fs::path(before));
  CheckpointWriter writer(/*room=*/0);
  writer.begin(t, t.run_state());
  rests(writer);
  EXPECT_FALSE(writer.advance(t.session).has_value());
  EXPECT_TRUE(writer.under_way());
  rests(writer);
  const std::optional<std::string> folder = writer.advance(t.session);
  ASSERT_TRUE(folder.has_value());
  EXPECT_FALSE(writer.under_way());
  EXPECT_EQ(newest_checkpoint(dir()), fs::path(*folder));
  EXPECT_TRUE(verify_checksums(*folder).different.empty());
}

TEST_F(Checkpoint, AFolderThatCannotBeIsTheConfigsFault) {
  write_file(dir().parent_path() / "file", "");
  TinyTrainer t(tiny_config({concat("checkpoint.dir=", (dir().parent_path() / "file/run").string())}));
  t.run(1);
  try {
    t.save();
    FAIL() << "saved below a file";
  } catch (const AttemptFailed& e) {
    EXPECT_EQ(e.exit_code(), 2);
    EXPECT_TRUE(has(e.what(), "file/run")) << e.what();
  }
}

}  // namespace
}  // namespace octet::BACKEND
