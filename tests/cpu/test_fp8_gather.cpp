// FP8 weights between ranks: the bytes that are gathered are the codes of the gathered master under the one scale of
// its largest value, whoever owns that; and scales of activations are the same on all ranks, however far apart the
// ranks' activations are.
#include "cpu/tiny_model.h"
#include "ranks.h"

namespace octet::BACKEND {
namespace {

struct Sharing {
  int ranks, stage, degree;
};
std::ostream& operator<<(std::ostream& o, const Sharing& s) {
  return o << s.ranks << "_ranks_stage_" << s.stage << (s.degree ? "_hybrid" : "");
}
class Gathered : public testing::TestWithParam<Sharing> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Gathered,
                         testing::Values(Sharing{1, 1, 0}, Sharing{2, 1, 0}, Sharing{3, 1, 0}, Sharing{3, 2, 0},
                                         Sharing{2, 3, 0}, Sharing{3, 3, 0}, Sharing{4, 3, 0}, Sharing{4, 1, 2},
                                         Sharing{4, 3, 2}),
                         testing::PrintToStringParamName());

// What q and its transpose must hold, from the definition alone: code(master * 448 / max |master|).
void expect_codes(const Operand& v, const std::vector<double>& master, int64_t rows, int64_t cols) {
  float amax = 0;
  for (double m : master) amax = std::max(amax, std::abs(float(m)));
  const float scale = 448.f / amax;
  EXPECT_EQ(*v.slot.scale, scale);
  EXPECT_EQ(*v.scale_inv, 1 / scale);
  for (int64_t i = 0; i < rows * cols; ++i) {
    const e4m3 code(float(master[size_t(i)]) * scale);
    ASSERT_EQ(std::memcmp(v.q.ptr<e4m3>() + i, &code, 1), 0) << i;
    if (!v.q_t) continue;
    ASSERT_EQ(std::memcmp(v.q_t.ptr<e4m3>() + i % cols * rows + i / cols, &code, 1), 0) << i;
  }
}

TEST_P(Gathered, BytesAreTheCodesOfTheGatheredMaster) {
  const auto [ranks, stage, degree] = GetParam();
  run_ranks(ranks, [&, stage = stage, degree = degree](Host& host) {
    const Threads one{1};
    Device device{{.poison = true}};
    Stream stream(device), side(device);
    MemoryPlan room;
    room.bytes.fill(size_t{1} << 18);
    const Arenas arenas(stream, room);
    const auto inner = degree ? host.split(host.rank() / degree, degree) : nullptr,
               outer = degree ? host.split(host.rank() % degree, host.size() / degree) : nullptr;
    const auto shard = make_comm(device, inner ? *inner : host), replica = outer ? make_comm(device, *outer) : nullptr;
    ParameterStore params(
        *shard, replica.get(), side,
        {.plain = DType::bf16, .zero_stage = stage, .weight_scaling = {.history = 2, .most_recent = true}});
    std::vector<Param> matrices;
    const int64_t rows = 21, cols = 48;
    for (int u = 0; u < 4; ++u) {
      params.begin_unit(concat("unit ", u), Buffers::rotating);
      params.add({{concat(u, ".norm"), {5}}}, {.mean = 1});
      matrices.push_back(params.add({{concat(u, ".up"), {13, cols}}, {concat(u, ".gate"), {8, cols}}}, {.std = 0.5},
                                    {.q = true, .q_t = true}));
    }
    params.materialise(stream, arenas, 7);
    for (const int round : {0, 1}) {
      if (round) {  // other masters, the largest in the last element of all, which the last rank owns
        params.for_each([&](const std::string& name, Shape shape, const ParameterStore::Local& l) {
          for (int64_t i = 0; i < l.master.numel(); ++i)
            l.master.ptr<float>()[i] *= l.first + i + 1 == shape.numel() && name.ends_with("gate") ? 1000.f : 3.f;
        });
        params.publish(stream, ParameterStore::Masters::changed);
      }
      std::map<std::string, std::vector<double>> masters;
      params.for_each([&](const std::string& name, Shape shape, const ParameterStore::Local& l) {
        std::vector<double> mine(size_t(shape.numel()), std::nan("")), all(mine.size() * size_t(host.size()));
        const auto part = values(l.master);
        std::copy(part.begin(), part.end(), mine.begin() + (part.empty() ? 0 : l.first));
        host.all_gather(all.data(), mine.data(), mine.size() * sizeof(double));
        for (size_t i = 0; i < all.size(); ++i)
          if (!std::isnan(all[i])) mine[i % mine.size()] = all[i];
        masters[name] = mine;
      });
      for (const auto& [u, use] : std::vector<std::pair<int, Use>>{{0, Use::forward},
                                                                   {1, Use::forward},
                                                                   {2, Use::forward},
                                                                   {3, Use::forward},
                                                                   {3, Use::backward},
                                                                   {2, Use::backward},
                                                                   {1, Use::backward},
                                                                   {0, Use::backward}}) {
        const auto lease = params.acquire(stream, u, use);
        std::vector<double> whole = masters.at(concat(u, ".up"));
        for (double m : masters.at(concat(u, ".gate"))) whole.push_back(m);
        const Operand v = params.value(matrices[size_t(u)]);
        EXPECT_EQ(bool(v.q_t), use == Use::backward);
        expect_codes(v, whole, rows, cols);
      }
    }
  });
}

// The scales of all slots, by a rank whose norms' weights are 10^rank as large as the first's.
std::vector<std::vector<float>> scales_of_ranks(int ranks, const Changes& changes) {
  std::vector<std::vector<float>> all(static_cast<size_t>(ranks));
  run_ranks(ranks, [&](Host& host) {
    const Threads one{1};
    TinyTrainer t(tiny_config(with({"precision.param_dtype=bf16", "fp8.enabled=true", "fp8.amax_history_len=4",
                                    "training.global_batch_size=12", "training.micro_batch_size=1"},
                                   changes)),
                  host);
    t.run(1);
    t.session.params.for_each_common(t.session.stream, [&](const std::string& name, Tensor x, int) {
      if (!name.ends_with("layernorm.weight")) return;
      for (int64_t i = 0; i < x.numel(); ++i)
        x.ptr<bf16>()[i] = bf16(float(x.ptr<bf16>()[i]) * std::pow(10.f, float(host.rank())));
    });
    t.run(1);
    all[size_t(host.rank())] = t.session.scaling.save(t.session.stream).scale;
  });
  return all;
}

TEST(Fp8Scales, AreTheSameOnAllRanksWhenActivationsDifferByPowersOfTen) {
  for (const char* stage : {"parallel.zero_stage=0", "parallel.zero_stage=1", "parallel.zero_stage=2"})
    for (const int ranks : {2, 4}) {
      const auto agreed = scales_of_ranks(ranks, {stage, "fp8.reduce_group=world"}),
                 own = scales_of_ranks(ranks, {stage, "fp8.reduce_amax=false"});
      ASSERT_FALSE(agreed[0].empty());
      int apart = 0;
      for (size_t i = 0; i < agreed[0].size(); ++i) {
        for (const auto& of_rank : agreed) EXPECT_EQ(of_rank[i], agreed[0][i]) << stage << " slot " << i;
        apart += own[0][i] >= 5 * own[1][i];
      }
      EXPECT_GE(apart, 2) << stage;  // left to themselves they differ: the inputs of the first products do by 10
    }
}

}  // namespace
}  // namespace octet::BACKEND
