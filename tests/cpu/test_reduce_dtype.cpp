// precision.reduce_dtype: gradients travel in that type, half the bytes in bf16; memory is as planned; the sum is right
// but for the rounding.
#include "cpu/tiny_model.h"
#include "ranks.h"

namespace octet::BACKEND {
namespace {

const Changes kBf16{"precision.reduce_dtype=bf16"};

RunConfig config_of(const Changes& changes) {
  return tiny_config(with({"training.global_batch_size=12", "training.micro_batch_size=1"}, changes));
}

struct Sharding {
  int ranks;
  const char* name;
  Changes changes;
};
std::ostream& operator<<(std::ostream& o, const Sharding& s) { return o << s.name; }
class Reduced : public testing::TestWithParam<Sharding> {
 protected:
  struct Outcome {
    std::vector<double> gradients, losses;  // of the last rank; gradients of the first step
  };
  static Outcome train(const Changes& changes) {
    const RunConfig config = config_of(with(GetParam().changes, changes));
    Outcome r;
    run_ranks(GetParam().ranks, [&](Host& host) {
      const Threads one{1};
      TinyTrainer t(config, host);
      const bool last = host.rank() + 1 == host.size();
      std::vector<double> losses = t.run(1);
      t.session.params.for_each_gradient([&](Tensor g) {
        for (double v : values(g))
          if (last) r.gradients.push_back(v);
      });
      for (double loss : t.run(2)) losses.push_back(loss);
      const MemoryPlan used = t.session.arenas.peak(), planned = plan_of(config, host.size()).memory;
      EXPECT_EQ(used[Memory::communication], planned[Memory::communication]);
      if (last) r.losses = losses;
    });
    return r;
  }
};
INSTANTIATE_TEST_SUITE_P(Stages, Reduced,
                         testing::Values(Sharding{2, "stage_0", {"parallel.zero_stage=0"}},
                                         Sharding{3, "stage_1", {"parallel.zero_stage=1"}},
                                         Sharding{2, "stage_2", {"parallel.zero_stage=2"}},
                                         Sharding{2, "stage_3", {"parallel.zero_stage=3"}},
                                         Sharding{4, "hybrid_2", {"parallel.zero_stage=2", "parallel.shard_degree=2"}}),
                         testing::PrintToStringParamName());

TEST_P(Reduced, InBf16TheSumIsThatOfFp32ButForRounding) {
  const Outcome exact = train({}), rounded = train(kBf16), again = train(kBf16);
  EXPECT_EQ(rounded.gradients, again.gradients);
  ASSERT_EQ(exact.gradients.size(), rounded.gradients.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < exact.gradients.size(); ++i) {
    difference += std::pow(exact.gradients[i] - rounded.gradients[i], 2);
    norm += std::pow(exact.gradients[i], 2);
  }
  const double relative = std::sqrt(difference / norm);
  EXPECT_GT(relative, 1e-4);
  EXPECT_LT(relative, 0x1p-8);  // bf16 rounds by 2^-9 at most: before the sum and after it
  expect_near_all(rounded.losses, exact.losses, 2e-3);
  EXPECT_EQ(rounded.losses[0], exact.losses[0]);
}

TEST_P(Reduced, HalfTheBytesTravel) {
  const auto bytes = [](const Changes& changes) {
    const WorkLog w = plan_of(config_of(with(GetParam().changes, changes)), GetParam().ranks).work;
    return w[size_t(Kernel::reduce_scatter)].bytes + w[size_t(Kernel::all_reduce)].bytes;
  };
  const double wide = bytes({}), half = bytes(kBf16);
  EXPECT_GE(half, 0.5 * wide);
  EXPECT_LT(half, 0.502 * wide);  // a few scalars travel as ever
}

TEST(ReduceDtype, FollowsBf16GradientsUnlessSaid) {
  EXPECT_EQ(config_of({"precision.grad_dtype=bf16"}).precision.reduce_dtype, DType::bf16);
  EXPECT_EQ(config_of({"precision.grad_dtype=bf16", "precision.reduce_dtype=fp32"}).precision.reduce_dtype, DType::f32);
  EXPECT_EQ(config_of({}).precision.reduce_dtype, DType::f32);
}

}  // namespace
}  // namespace octet::BACKEND
