// The plan is the truth: every arena of a run peaks at the byte that the plan engine found, and with one byte less it
// does not run. The plan's FLOPs and parameters are tests/plan/test_plan_run.cpp.
#include "cpu/tiny_model.h"
#include "ranks.h"

namespace octet::BACKEND {
namespace {

struct Planned {
  const char* name;
  int ranks;
  Changes changes;
};
std::ostream& operator<<(std::ostream& o, const Planned& p) { return o << p.name << "_on_" << p.ranks; }

std::vector<Planned> all_runs() {
  std::vector<Planned> all;
  for (const Format& f : all_formats()) {
    all.push_back({f.name, 1, f.changes});
    all.push_back({f.name, 2, with(f.changes, {"parallel.zero_stage=1"})});
    all.push_back({f.name, 3, with(f.changes, {"parallel.zero_stage=3", "memory.recompute_blocks=1"})});
  }
  const Changes fp8{"precision.param_dtype=bf16", "fp8.enabled=true"};
  all.push_back({"fp8_but_wgrad", 1, with(fp8, {"fp8.override_linear_precision=[false,false,true]"})});
  all.push_back({"fp8_but_last", 1, with(fp8, {"fp8.bf16_last_layers=1", "memory.recompute_blocks=2"})});
  all.push_back({"recompute", 1, {"memory.recompute_blocks=2"}});
  all.push_back({"recompute_some", 1, {"memory.recompute_blocks=1", "precision.param_dtype=bf16"}});
  all.push_back({"chunks", 1, {"memory.head_chunk=7"}});
  all.push_back({"tied", 1, {"model.tie_word_embeddings=true"}});
  all.push_back({"tied_stage_3", 2, {"model.tie_word_embeddings=true", "parallel.zero_stage=3"}});
  all.push_back({"stage_2", 2, {"parallel.zero_stage=2"}});
  all.push_back({"hybrid", 4, {"parallel.zero_stage=2", "parallel.shard_degree=2"}});
  all.push_back({"fp64", 1, {"precision.param_dtype=fp64"}});
  all.push_back({"intra_document", 1, {"data.intra_document_mask=true", "memory.recompute_blocks=1"}});
  return all;
}

class PlannedRun : public testing::TestWithParam<Planned> {
 protected:
  const Threads one_{1};
  RunConfig config_ =
      tiny_config(with({"training.global_batch_size=12", "training.micro_batch_size=1"}, GetParam().changes));

  // Evaluations and two steps, which is all that a run does; every rank's arenas.
  std::vector<MemoryPlan> peaks(const PlanResult& plan) const {
    std::vector<MemoryPlan> all(size_t(GetParam().ranks));
    run_ranks(GetParam().ranks, [&](Host& host) {
      const Threads one{1};
      Trainer t(config_, host, plan, options_for(config_, host));
      const Samples samples = tiny_samples(config_);
      t.evaluate(samples, 2);
      t.step(samples);
      t.step(samples);
      t.evaluate(samples, 2);
      all[size_t(host.rank())] = t.session.arenas.peak();
    });
    return all;
  }
};
INSTANTIATE_TEST_SUITE_P(Runs, PlannedRun, testing::ValuesIn(all_runs()), testing::PrintToStringParamName());

TEST_P(PlannedRun, IsThatOfThePlanToTheByteAndNotAByteLess) {
  const PlanResult plan = plan_of(config_, GetParam().ranks);
  for (const MemoryPlan& peak : peaks(plan))
    for (size_t m = 0; m < kMemoryNames.size(); ++m) EXPECT_EQ(peak.bytes[m], plan.memory.bytes[m]) << kMemoryNames[m];
  for (size_t m = 0; m < kMemoryNames.size(); ++m) {
    if (plan.memory.bytes[m] == 0) continue;
    PlanResult less = plan;
    --less.memory.bytes[m];
    EXPECT_THROW(peaks(less), Error) << kMemoryNames[m];
  }
}

TEST(Memory, ARunThatDoesNotFitIsRefusedItemByItem) {
  RunConfig config = tiny_config();
  PlanResult plan = plan_of(config, 1);
  plan.memory[Memory::saved] = size_t{1} << 50;
  LoneHost host;
  try {
    Trainer(config, host, plan, options_for(config, host));
    FAIL() << "a petabyte was there";
  } catch (const InputError& e) {
    for (const char* part : {"activations", "optimizer", "memory.recompute_blocks", "training.micro_batch_size"})
      EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << part << " is not in " << e.what();
  }
}

}  // namespace
}  // namespace octet::BACKEND
