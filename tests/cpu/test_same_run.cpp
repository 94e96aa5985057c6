// A rank whose config or data are not rank 0's is refused before the first step, and says what differs.
#include "cpu/tiny_model.h"
#include "data/scratch.h"
#include "data/token_file.h"
#include "host/engine.h"
#include "host_wrapper.h"
#include "ranks.h"
#include "train/same_run.h"

namespace octet::BACKEND {
namespace {

std::string tokens(const Scratch& folder, const std::string& name, int32_t first) {
  const std::string path = folder / name;
  TokenFileWriter file(path, {.vocab_size = 120});
  file.begin_document();
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 400; ++i) ids.push_back((first + i * i) % 120);
  file.append(ids);
  file.finish();
  return path;
}

class SameRun : public testing::Test {
 protected:
  // What the run of two ranks says, of which the second is changed.
  std::string said(const Changes& more, const Changes& of_second) const {
    const Changes all = with({"data.train=" + tokens(folder_, "a.tokens", 0), "training.steps=3"}, more);
    const auto run = [&] {
      run_ranks(2, [&](Host& host) {
        const Threads one{1};
        const RunConfig c = tiny_config(host.rank() == 0 ? all : with(all, of_second));
        BACKEND::engine().train(c, host, [&](const RunConfig& own) { return plan_of(own, 2); });
      });
      throw InputError("nothing");
    };
    return error_of<InputError>(run);
  }
  const Scratch folder_;
};

TEST_F(SameRun, TwoRanksOfOneConfigTrain) { EXPECT_EQ(said({}, {}), "nothing"); }

TEST_F(SameRun, AnotherConfigIsRefusedByItsOption) {
  const std::string lr = said({}, {"schedule.lr=0.002"});
  EXPECT_TRUE(has(lr, "schedule.lr is 0.002 here and 0.01 on rank 0")) << lr;
  const std::string steps = said({}, {"training.steps=5"});
  EXPECT_TRUE(has(steps, "training.steps is 5 here and 3 on rank 0")) << steps;
}

TEST_F(SameRun, OtherDataUnderTheSameNameAreRefused) {
  const std::string other = folder_ / "there/a.tokens", same = folder_ / "again/a.tokens";
  std::filesystem::create_directories(folder_ / "there");
  std::filesystem::create_directories(folder_ / "again");
  tokens(folder_, "there/a.tokens", 1);
  tokens(folder_, "again/a.tokens", 0);
  const auto loaded = [&](const std::string& file) {
    return Loader({.files = {file}, .seq_len = 16, .vocab_size = 120}).fingerprint();
  };
  tokens(folder_, "a.tokens", 0);
  for (const bool differs : {false, true}) {
    const auto run = [&] {
      run_ranks(2, [&](Host& host) {
        const std::string file = host.rank() == 0 ? (folder_ / "a.tokens").string() : differs ? other : same;
        require_same_run(host, tiny_config(), {.train = loaded(file)});
      });
      throw InputError("nothing");
    };
    const std::string text = error_of<InputError>(run);
    if (differs) {
      EXPECT_TRUE(has(text, "the fingerprint of the training data is ")) << text;
    } else {
      EXPECT_EQ(text, "nothing");
    }
  }
}

// What rank 0 tells of itself at the start is what the others compare.
TEST_F(SameRun, RanksCompareTheirValidationDataToo) {
  struct Listening : HostWrapper {
    using HostWrapper::HostWrapper;
    void broadcast(void* data, size_t bytes, int root) override {
      HostWrapper::broadcast(data, bytes, root);
      said += std::string(static_cast<const char*>(data), bytes);
    }
    std::string said;
  };
  const std::string train = tokens(folder_, "a.tokens", 0), validation = tokens(folder_, "b.tokens", 5);
  const RunConfig c =
      tiny_config({"data.train=" + train, concat("data.validation=[\"", validation, "\"]"), "training.steps=1"});
  std::string said;
  run_ranks(2, [&](Host& host) {
    const Threads one{1};
    Listening listens(host);
    BACKEND::engine().train(c, listens, [&](const RunConfig& own) { return plan_of(own, 2); });
    if (host.rank() == 0) said = listens.said;
  });
  const Loader loader({.files = {validation}, .seq_len = 16, .vocab_size = 120, .seed = 3, .shuffle = false});
  EXPECT_TRUE(has(said, concat("\"the fingerprint of the validation data\":", loader.fingerprint()))) << said;
  const auto differs = [&] {
    run_ranks(2, [](Host& host) { require_same_run(host, tiny_config(), {.validation = uint64_t(host.rank())}); });
  };
  EXPECT_TRUE(has(error_of<InputError>(differs), "the fingerprint of the validation data is 1 here and 0 on rank 0"));
}

}  // namespace
}  // namespace octet::BACKEND
