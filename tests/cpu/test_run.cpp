// A run does what its config says: which samples it trains and evaluates on, and when; whether it waits for a save;
// what it says of experts. The references are a loader and a trainer that are driven by hand.
#include <algorithm>

#include "base/memory.h"
#include "cpu/whole_run.h"
#include "host_wrapper.h"
#include "train/saves.h"

namespace octet::BACKEND {
namespace {

class Run : public WholeRun {};

TEST_F(Run, TrainsOnTheSamplesThatItsConfigNames) {
  struct Case {
    Changes changes;
    std::function<void(LoaderConfig&)> loader;
  };
  const std::vector<Case> cases{
      {{}, [](LoaderConfig&) {}},
      {{"data.shuffle=false"}, [](LoaderConfig& l) { l.shuffle = false; }},
      {{"data.weights=[1,9]"},
       [](LoaderConfig& l) {
         l.weights = {1, 9};
       }},
      {{"data.document_loss_mask=true"}, [](LoaderConfig& l) { l.ignore_document_starts = true; }},
      {{"data.intra_document_mask=true"}, [](LoaderConfig& l) { l.documents = Bounds::of_documents; }},
      {{"data.validation_fraction=0.4"}, [](LoaderConfig& l) { l.split = Split::train, l.held_out = 0.4; }},
      {{"training.seed=8"}, [](LoaderConfig& l) { l.seed = 8; }}};
  std::set<std::vector<double>> seen;
  for (const auto& [changes, change] : cases) {
    const RunConfig c = config(changes);
    LoaderConfig l = loader({a_, b_});
    change(l);
    const Loader data(l);
    train(c);
    const std::vector<double> found = losses();
    EXPECT_EQ(found, TinyTrainer(c).run(5, samples_of(data))) << json(changes);
    EXPECT_TRUE(seen.insert(found).second) << json(changes) << " changes nothing";
  }
  train(config({"data.validation_fraction=0.4", concat("data.validation=[\"", b_, "\"]")}));
  EXPECT_TRUE(seen.contains(losses())) << "where files to evaluate on are named, nothing is held out";
}

TEST_F(Run, EvaluatesOnWhatItsConfigNamesWhenItSays) {
  LoaderConfig held_out = loader({a_, b_}), named = loader({b_});
  held_out.split = Split::held_out, held_out.held_out = 0.4;
  for (LoaderConfig* l : {&held_out, &named}) l->shuffle = false;
  const std::string fraction = "data.validation_fraction=0.4", files = concat("data.validation=[\"", b_, "\"]");
  for (const auto& [changes, l, count] :
       {std::tuple{Changes{fraction, "training.eval_sequences=7"}, held_out, 7},
        {Changes{files, "training.eval_sequences=7"}, named, 7},
        {Changes{files, fraction, "training.eval_sequences=1000000"}, named, 32}}) {  // as many as there are
    const RunConfig c = config(with(changes, {"training.eval_every=2"}));
    const TrainResult result = train(c);
    LoaderConfig own = loader({a_, b_});
    if (changes[0] == fraction) own.split = Split::train, own.held_out = 0.4;
    const Loader data(own), validation(l);
    TinyTrainer t(c);
    const std::vector<json> found = logged("validation_loss");
    ASSERT_EQ(found.size(), 3u);
    for (size_t i = 0; i < 3; ++i) {
      t.run(i < 2 ? 2 : 1, samples_of(data));
      EXPECT_EQ(found[i]["step"], t.steps_done());
      EXPECT_EQ(found[i]["validation_loss"], t.evaluate(samples_of(validation), count)) << json(changes) << " " << i;
    }
    EXPECT_EQ(result.validation_loss, found[2]["validation_loss"]);
  }
}

// Between two steps ranks tell one another in three bytes whether to end, whether to save, and what is written. Then a
// save of the step before has its name if training has waited for it, and none if not.
TEST_F(Run, WaitsForASaveOnlyWithoutABuffer) {
  struct Watching : HostWrapper {
    Watching(Host& host, fs::path dir) : HostWrapper(host), dir_(std::move(dir)) {}
    void all_gather(void* all, const void* mine, size_t bytes) override {
      if (bytes == 3) there.push_back(fs::exists(dir_ / concat("step-0000000", there.size())));
      HostWrapper::all_gather(all, mine, bytes);
    }
    std::vector<bool> there;
    const fs::path dir_;
  };
  for (const bool waits : {true, false}) {
    LoneHost lone;
    const fs::path dir = folder_ / (waits ? "waits" : "goes on");
    Watching host(lone, dir);
    const TrainResult result =
        train(config({"checkpoint.every=1", "checkpoint.keep=0", concat("checkpoint.dir=", dir.string()),
                      concat("checkpoint.buffer_gib=", waits ? "0" : "0.001")}),
              host);
    EXPECT_EQ(host.there, (std::vector<bool>{false, waits, waits, waits, waits}));
    EXPECT_EQ(result.checkpoint, dir / "step-00000005");
  }
}

TEST_F(Run, ASaveTakesTheHostMemoryThatIsGivenOrAShareOfWhatIsFree) {
  struct OneOfFour : HostWrapper {
    using HostWrapper::HostWrapper;
    int local_size() const override { return 4; }
  };
  LoneHost lone;
  const OneOfFour host(lone);
  const auto room = [&](const char* gib) {
    return checkpoint_room(config({concat("checkpoint.buffer_gib=", gib)}), host);
  };
  EXPECT_EQ(room("0"), 0);
  EXPECT_EQ(room("0.5"), int64_t{1} << 29);
  EXPECT_EQ(room("3"), int64_t{3} << 30);
  const double share = double(available_memory()) / 2 / 4;
  EXPECT_NEAR(double(room("-1")), share, share / 3);  // others use the machine, too
}

TEST_F(Run, ComparesRanksAsOftenAsItIsTold) {
  struct Counting : HostWrapper {
    using HostWrapper::HostWrapper;
    void all_gather(void* all, const void* mine, size_t bytes) override {
      calls += bytes > 2;
      HostWrapper::all_gather(all, mine, bytes);
    }
    int calls = 0;
  };
  const auto calls = [&](const Changes& changes) {
    LoneHost lone;
    Counting host(lone);
    train(config(changes), host);
    return host.calls;
  };
  EXPECT_EQ(calls({"parallel.check_every=2"}), calls({}) + 2);
}

TEST_F(Run, SaysHowItsExpertsAreUsed) {
  const RunConfig c = config({"model.model_type=mixtral", "model.num_local_experts=3", "training.steps=2"});
  train(c);
  TinyTrainer t(c);
  const Loader data(loader({a_, b_}));
  for (const json& record : logged("expert_load")) {
    t.step(samples_of(data));
    const StepReport report = t.report(t.steps_done());
    EXPECT_EQ(record["aux"], report.state.aux);
    EXPECT_EQ(record["z"], report.state.z);
    for (size_t l = 0; l < 2; ++l) {
      const double* tokens = &report.expert_load[3 * l];
      double entropy = 0;
      for (size_t e = 0; e < 3; ++e) {
        const double share = tokens[e] / (4 * 16 * 2);  // of a step's tokens, each of which chooses two
        EXPECT_DOUBLE_EQ(record["expert_load"][l][e].get<double>(), share);
        if (share > 0) entropy -= share * std::log(share);
      }
      EXPECT_DOUBLE_EQ(record["expert_entropy"][l].get<double>(), entropy);
      EXPECT_DOUBLE_EQ(record["expert_imbalance"][l].get<double>(),
                       *std::max_element(tokens, tokens + 3) / (4 * 16 * 2) * 3);
    }
  }
  EXPECT_EQ(t.steps_done(), 2);
}

}  // namespace
}  // namespace octet::BACKEND
