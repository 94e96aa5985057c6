// The balancing loss of routers over ranks: that of all ranks together, or with model.router_aux_loss_per_rank the mean
// of each rank's own. In f64, against one rank that has the whole batch, or its halves one after the other.
#include "cpu/tiny_model.h"
#include "ranks.h"

namespace octet::BACKEND {
namespace {

constexpr int64_t kSequences = 4;  // of a batch
RunConfig mixtral(int64_t parts, const Changes& changes) {
  return tiny_config(with({"model.model_type=mixtral", "model.num_local_experts=4", "model.num_experts_per_tok=2",
                           "model.router_aux_loss_coef=0.5", "model.router_z_loss_coef=0.05",
                           "precision.param_dtype=fp64", concat("training.micro_batch_size=", kSequences / parts)},
                          changes));
}

struct Slice {
  int64_t first;  // within the parameter
  std::vector<double> values;
};
using Gradients = std::map<std::string, Slice>;
struct Found {
  Gradients gradients;
  double balance = 0, z = 0;  // what is reported
};
// Forward and backward of a micro-batch that begins at sequence `first` and is `share` of a step.
Found differentiate(const RunConfig& config, Host& host, int64_t first, double share) {
  Session s(config, host, plan_of(config, host.size()), Purpose::train, options_for(config, host));
  s.params.publish(s.stream, ParameterStore::Masters::changed);
  s.params.zero_gradients(s.stream);
  fill_zero(s.stream, s.loss_total());
  const Samples samples = tiny_samples(config);
  double losses[2] = {};
  Context c = s.context(Pass::train);
  c.routers.losses = {losses, DType::f64, {2}};
  c.routers.share = share;
  s.model.train(c, s.upload(samples.batch(first, config.training.micro_batch_size)), s.loss_total(),
                1 / double(samples.valid_targets(0, kSequences)));
  s.params.wait_for_gradients(s.stream);
  Found found{{}, losses[0], losses[1]};
  s.params.for_each([&](const std::string& name, Shape, const ParameterStore::Local& l) {
    found.gradients[name] = {l.first, values(l.grad)};
  });
  return found;
}
Found alone(const RunConfig& config, int64_t first, double share) {
  LoneHost host;
  return differentiate(config, host, first, share);
}

Gradients sum_of(Gradients a, const Gradients& b) {
  for (auto& [name, slice] : a)
    for (size_t i = 0; i < slice.values.size(); ++i) slice.values[i] += b.at(name).values[i];
  return a;
}
// |a - b| / |b|, of what a has of b
double distance(const Slice& a, const Slice& b) {
  double apart = 0, size = 0;
  for (size_t i = 0; i < a.values.size(); ++i) {
    const double want = b.values.at(size_t(a.first) + i);
    apart += (a.values[i] - want) * (a.values[i] - want), size += want * want;
  }
  return apart == 0 ? 0 : std::sqrt(apart / size);
}
bool is_router(const std::string& name) { return name.ends_with(".gate.weight"); }

constexpr const char *kPerRank = "model.router_aux_loss_per_rank=true",
                     *kAllLayers = "model.router_aux_loss_per_layer=false",
                     *kPerLayer = "model.router_aux_loss_per_layer=true";

TEST(RouterRanks, OnOneRankThereIsNoDifference) {
  for (const char* layers : {kAllLayers, kPerLayer}) {
    const Found together = alone(mixtral(1, {layers}), 0, 1), own = alone(mixtral(1, {layers, kPerRank}), 0, 1);
    EXPECT_EQ(own.balance, together.balance);
    for (const auto& [name, slice] : together.gradients) EXPECT_EQ(own.gradients.at(name).values, slice.values) << name;
  }
}

TEST(RouterRanks, TwoRanksHaveTheGradientsOfTheWholeBatchOrOfEachHalfByItself) {
  for (const char* layers : {kAllLayers, kPerLayer}) {
    const Found whole = alone(mixtral(1, {layers}), 0, 1);
    const std::vector<Found> halves{alone(mixtral(2, {layers}), 0, 0.5), alone(mixtral(2, {layers}), 2, 0.5)};
    const Gradients of_halves = sum_of(halves[0].gradients, halves[1].gradients);
    int routers = 0;
    for (const auto& [name, slice] : of_halves) {
      if (!is_router(name)) continue;
      EXPECT_GT(distance(slice, whole.gradients.at(name)), 1e-3) << name;
      ++routers;
    }
    EXPECT_EQ(routers, 2);
    for (const Changes& spread : {Changes{"parallel.zero_stage=0"}, Changes{"parallel.zero_stage=3"},
                                  Changes{"parallel.zero_stage=1", "parallel.expert_parallel=2"}})
      for (const bool per_rank : {false, true})
        run_ranks(2, [&](Host& host) {
          const Threads one{1};
          Changes changes = with({layers}, spread);
          if (per_rank) changes.push_back(kPerRank);
          const Found mine = differentiate(mixtral(2, changes), host, 2 * host.rank(), 1);
          for (const auto& [name, slice] : mine.gradients)
            EXPECT_LT(distance(slice, (per_rank ? of_halves : whole.gradients).at(name)), 1e-12)
                << name << ' ' << spread[0] << ' ' << per_rank;
          const Found& same = per_rank ? halves[size_t(host.rank())] : whole;  // per rank: its part of the mean
          EXPECT_NEAR(mine.balance, same.balance, 1e-12);
          EXPECT_NEAR(mine.z, same.z, 1e-12);
        });
  }
}

// Of two micro-batches of two ranks.
TEST(RouterRanks, AStepReportsTheMeanOfAllPartsAndTheLoadOfAllRanks) {
  const Changes long_steps{"training.global_batch_size=8"};
  double balance = 0, z = 0;
  for (int64_t part = 0; part < 4; ++part) {
    const Found found = alone(mixtral(2, long_steps), 2 * part, 0.25);
    balance += found.balance, z += found.z;
  }
  run_ranks(2, [&](Host& host) {
    const Threads one{1};
    TinyTrainer together(mixtral(2, long_steps), host), own(mixtral(2, with(long_steps, {kPerRank})), host);
    together.run(1), own.run(1);
    const StepReport a = together.report(1), b = own.report(1);
    EXPECT_NEAR(b.state.aux, balance, 1e-12);
    EXPECT_GT(std::abs(a.state.aux - balance), 1e-4);
    EXPECT_NEAR(b.state.z, z, 1e-12);
    EXPECT_NEAR(a.state.z, z, 1e-12);
    EXPECT_EQ(b.expert_load, a.expert_load);
  });
}

}  // namespace
}  // namespace octet::BACKEND
