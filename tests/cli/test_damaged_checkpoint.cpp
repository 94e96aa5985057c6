// A checkpoint that is no longer what was saved is not resumed: whichever bit flipped, on any number of ranks. The
// message names the file and the older checkpoint.
#include "cli/tiny_run.h"
#include "data/safetensors.h"

namespace octet {
namespace {
namespace fs = std::filesystem;

class DamagedCheckpoint : public testing::Test {
 protected:
  DamagedCheckpoint() { expect_done(tiny_.train()); }  // saves steps 5 and 10

  std::string newest(const std::string& file) const { return tiny_.path("run/step-00000010/" + file); }
  std::string older() const { return tiny_.path("run/step-00000005"); }
  Ran resume(std::vector<std::string> more = {}) const {
    more.push_back("training.steps=12");
    return tiny_.train(std::move(more));
  }
  // Flips one bit for as long as `f` runs.
  template <class F>
  void with_flipped(const std::string& file, size_t byte, int bit, F&& f) const {
    const std::string whole = read_file(newest(file));
    std::string other = whole;
    other.at(byte) = char(other[byte] ^ (1 << bit));
    write_file(newest(file), other);
    SCOPED_TRACE(concat(file, " byte ", byte, " bit ", bit));
    f();
    write_file(newest(file), whole);
  }
  void expect_damaged(const Ran& r, const std::string& file, const std::string& what) const {
    expect_refused(r, {newest(file), what, "octet inspect " + older()});
    EXPECT_FALSE(fs::exists(tiny_.path("run/step-00000012"))) << r;
  }
  // The last byte of a tensor, but for its sign and exponent: any value there is a fine number.
  size_t byte_of(const std::string& file, const std::string& tensor) const {
    const SafetensorsFile weights(newest(file));
    const auto& e = weights.at(tensor);
    return e.offset + e.bytes - 3;
  }

  const TinyRun tiny_;
};

TEST_F(DamagedCheckpoint, AChangedBitOfAWeightOrAMomentIsFound) {
  for (const auto& [file, tensor] : std::vector<std::pair<std::string, std::string>>{
           {"model.safetensors", "model.embed_tokens.weight"},
           {"model.safetensors", "model.norm.weight"},
           {"optimizer.safetensors", "model.layers.1.mlp.down_proj.weight.m"},
           {"optimizer.safetensors", "lm_head.weight.v"}})
    for (const int bit : {0, 7})
      with_flipped(file, byte_of(file, tensor), bit, [&] { expect_damaged(resume(), file, tensor); });
  expect_done(resume(), {"resumed from " + tiny_.path("run/step-00000010")});
}

TEST_F(DamagedCheckpoint, AChangedBitIsFoundOnManyRanks) {
  const std::string file = "model.safetensors", tensor = "model.layers.0.self_attn.q_proj.weight";
  for (const char* stage : {"parallel.zero_stage=3", "parallel.zero_stage=0"})  // slices of it; the whole on each
    with_flipped(file, byte_of(file, tensor), 3, [&] {
      expect_damaged(resume({"--ranks", "2", stage}), file, tensor);
    });
  for (const char* stage : {"parallel.zero_stage=3", "parallel.zero_stage=0"})
    expect_done(resume({"--ranks", "2", stage, "--resume", tiny_.path("run/step-00000010"), "checkpoint.dir="}),
                {"step 12/12"});
}

// Where ranks share no maxima each has a file of scales, which it reads alone.
TEST_F(DamagedCheckpoint, AChangedBitOfAnotherRanksScalesIsFound) {
  const std::vector<std::string> own{"--ranks",
                                     "2",
                                     "precision.param_dtype=bf16",
                                     "fp8.enabled=true",
                                     "fp8.reduce_group=none",
                                     "checkpoint.resume=none"};
  expect_done(tiny_.train(own));
  const std::vector<std::string> more(own.begin(), own.end() - 1);
  for (const std::string file : {"fp8.safetensors", "fp8.rank-1.safetensors"})
    with_flipped(file, byte_of(file, "activations.history"), 3,
                 [&] { expect_damaged(resume(more), file, "checksum"); });
  expect_done(resume(more), {"resumed from " + tiny_.path("run/step-00000010")});
}

TEST_F(DamagedCheckpoint, AChangedSmallFileIsFound) {
  const std::string state = read_file(newest("state.json"));
  const size_t samples = state.find(':', state.find("\"samples\"")) + 2;  // a digit: it stays a fine number
  with_flipped("state.json", samples, 0, [&] { expect_damaged(resume(), "state.json", "checksums.json"); });
  with_flipped("state.json", state.find('{'), 0, [&] { expect_damaged(resume(), "state.json", "damaged"); });
}

TEST_F(DamagedCheckpoint, ATruncatedFileIsFound) {
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    const std::string whole = read_file(newest(file));
    for (const size_t size : {size_t(0), whole.size() / 2, whole.size() - 1}) {
      write_file(newest(file), whole.substr(0, size));
      SCOPED_TRACE(size);
      expect_damaged(resume(), file, "damaged, incomplete");
    }
    write_file(newest(file), whole);
  }
}

// Also of what a resume does without, and of what only readers after it would miss.
TEST_F(DamagedCheckpoint, AnyFileThatIsMissingOrAnotherIsFound) {
  for (const char* file :
       {"config.json", "tokenizer.model", "state.json", "model.safetensors", "optimizer.safetensors"}) {
    SCOPED_TRACE(file);
    const std::string whole = read_file(newest(file));
    fs::remove(newest(file));
    expect_damaged(resume({"--ranks", "2"}), file, "damaged");
    write_file(newest(file), whole);
  }
  for (const char* file : {"config.json", "tokenizer.model"}) {
    SCOPED_TRACE(file);
    const std::string whole = read_file(newest(file));
    for (const std::string& other : {std::string(), whole.substr(0, whole.size() / 2), whole + " "}) {
      write_file(newest(file), other);
      expect_damaged(resume(), file, "its checksum is not that in checksums.json");
    }
    write_file(newest(file), whole);
  }
  fs::remove(newest("optimizer.safetensors"));
  fs::remove(newest("checksums.json"));  // on purpose, then
  const Ran r = resume();
  expect_done(r, {"step 12/12"});
  EXPECT_TRUE(has(r.err, "the optimizer starts without its moments")) << r;
}

TEST_F(DamagedCheckpoint, DamagedChecksumsAreFound) {
  const std::string sums = read_file(newest("checksums.json"));
  const std::string tensor = "lm_head.weight";
  const size_t digit = sums.find(':', sums.find("\"" + tensor + "\"")) + 3;
  for (const int bit : {0, 6}) {  // another digit, or no digit
    with_flipped("checksums.json", digit, bit, [&] {
      const Ran r = resume();
      expect_refused(r, {newest(""), "checksums.json", "copy", "octet inspect " + older()});
    });
  }
  const size_t name = sums.find(tensor);
  with_flipped("checksums.json", name, 0, [&] { expect_damaged(resume(), "", tensor); });
  with_flipped("checksums.json", sums.find('{'), 0, [&] { expect_damaged(resume(), "checksums.json", "copy"); });
  write_file(newest("checksums.json"), "[]");
  expect_refused(resume(), {newest("checksums.json"), "octet inspect " + older()});
  fs::remove(newest("checksums.json"));
  const Ran r = resume();
  expect_done(r, {"step 12/12"});
  EXPECT_TRUE(has(r.err, "has no checksums.json")) << r;
}

TEST_F(DamagedCheckpoint, TheOlderOneThatIsNamedContinues) {
  with_flipped("model.safetensors", byte_of("model.safetensors", "model.norm.weight"), 1, [&] {
    expect_done(resume({"--resume", older(), "checkpoint.dir="}), {"resumed from " + older(), "step 12/12"});
    fs::remove_all(older());
    expect_refused(resume(), {"model.norm.weight", "no older one"});
  });
}

}  // namespace
}  // namespace octet
