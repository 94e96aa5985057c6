// Ranks as processes train the model of one rank: every stage of sharding on 2, 3 and 4 of them, hybrid sharding within
// machines, the same bits from run to run.
#define BACKEND cpu
#include "cpu/tiny_model.h"
#include "mpi/mpirun.h"
#include "train/agreement.h"

namespace octet::cpu {
namespace {

constexpr int64_t kSteps = 20;

TEST_F(Mpi, RanksTrainTheModelOfOne) {
  for (const int ranks : {2, 3, 4}) EXPECT_EQ(under_mpirun(ranks, "Stages"), 0) << ranks << " ranks: mpi_Stages.log";
}
TEST_F(Mpi, MachinesShardWithinAndReplicateAcross) {
  EXPECT_EQ(under_mpirun(4, "Machines", "OCTET_LOCAL_SIZE=2"), 0) << "mpi_Machines.log";
}
TEST_F(Mpi, ExpertsAreSpreadOverRanks) {
  for (const int ranks : {2, 4}) EXPECT_EQ(under_mpirun(ranks, "Experts"), 0) << ranks << " ranks: mpi_Experts.log";
}

// 12 sequences a step: 1, 2, 3 and 4 ranks can share them.
RunConfig config_of(const Changes& changes) {
  return tiny_config(with({"training.steps=20", "training.global_batch_size=12", "training.micro_batch_size=1",
                           "schedule.lr=3e-3", "parallel.check_every=1"},
                          changes));
}
struct Trained {
  std::vector<double> losses;
  Bits bits;
};
Trained train(Host& host, const Changes& changes) {
  const Threads one{1};
  TinyTrainer t(config_of(changes), host);
  Trained r{t.run(kSteps), bits_of(t)};
  check_agreement(t.session);
  return r;
}
void expect_the_model_of_one(Host& host, const Changes& changes, const std::vector<double>& losses) {
  const Trained a = train(host, changes), b = train(host, changes);
  expect_near_all(a.losses, losses, 1e-6);
  EXPECT_EQ(a.losses, b.losses) << changes[0];
  expect_same(a.bits, b.bits);
}
std::vector<double> losses_of_one() {
  LoneHost alone;
  const std::vector<double> losses = train(alone, {}).losses;
  EXPECT_LT(losses.back(), losses.front() - 0.2);
  return losses;
}

// ---- what the started processes do
TEST(Child, DISABLED_Stages) {
  const auto host = started();
  const std::vector<double> losses = losses_of_one();
  for (const char* stage : {"0", "1", "2", "3"})
    expect_the_model_of_one(*host, {concat("parallel.zero_stage=", stage)}, losses);
}
TEST(Child, DISABLED_Machines) {
  const auto host = started();
  ASSERT_EQ(host->local_size(), 2);
  const std::vector<double> losses = losses_of_one();
  for (const char* stage : {"1", "2", "3"}) {
    const Changes hybrid{concat("parallel.zero_stage=", stage), concat("parallel.shard_degree=", host->local_size())};
    expect_the_model_of_one(*host, hybrid, losses);
    TinyTrainer t(config_of(hybrid), *host);
    EXPECT_EQ(t.session.shard->rank(), host->local_rank());  // shards stay on the machine
    EXPECT_EQ(t.session.replica->rank(), host->rank() / 2);  // replicas are the machines
    EXPECT_EQ(options_for(t.session.config, *host).index, host->local_rank());
  }
}
// One micro-batch a step: accumulation would cut the balancing loss otherwise on other numbers of ranks.
TEST(Child, DISABLED_Experts) {
  const auto host = started();
  const auto changes = [](int ranks, const Changes& more) {
    return with({"model.model_type=mixtral", "model.num_local_experts=4", "training.global_batch_size=4",
                 concat("training.micro_batch_size=", 4 / ranks)},
                more);
  };
  LoneHost alone;
  const std::vector<double> losses = train(alone, changes(1, {})).losses;
  for (const Changes& how : {Changes{"parallel.expert_parallel=2", "parallel.zero_stage=1", "parallel.expert_buffer=1"},
                             Changes{concat("parallel.expert_parallel=", host->size()), "parallel.zero_stage=3"}})
    expect_the_model_of_one(*host, changes(host->size(), how), losses);
}

}  // namespace
}  // namespace octet::cpu
