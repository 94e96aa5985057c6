// The parameter store: the same initial values for any number of ranks, parts that stand adjacent are one matrix, whole
// weights are the masters of all ranks, gradients are the sum over ranks, and padding is nobody's.
#include <numeric>

#include "cpu/tiny_model.h"
#include "ranks.h"

namespace octet::BACKEND {
namespace {

// A store of four units, of which the middle ones share buffers where they are sharded.
class Store {
 public:
  Store(Host& host, const ParameterOptions& options, int shard_degree = 0)
      : shard_host_(shard_degree ? host.split(host.rank() / shard_degree, shard_degree) : nullptr),
        replica_host_(shard_degree ? host.split(host.rank() % shard_degree, host.size() / shard_degree) : nullptr),
        shard_(make_comm(device_, shard_host_ ? *shard_host_ : host)),
        replica_(replica_host_ ? make_comm(device_, *replica_host_) : nullptr),
        params(*shard_, replica_.get(), side_, options) {
    for (int u = 0; u < 4; ++u) {
      params.begin_unit(concat("unit ", u), u == 0 ? Buffers::own : Buffers::rotating);
      norms.push_back(params.add({{concat(u, ".norm"), {5}}}, {.mean = 1}));
      matrices.push_back(
          params.add({{concat(u, ".q"), {6, 7}}, {concat(u, ".k"), {2, 7}}, {concat(u, ".v"), {3, 7}}}, {.std = 0.5}));
    }
    params.materialise(stream, arenas, 11);
  }

 private:
  Device device_{{.poison = true}};
  Stream side_{device_};  // of collectives
  std::unique_ptr<Host> shard_host_, replica_host_;
  static MemoryPlan room() {
    MemoryPlan m;
    m.bytes.fill(size_t{1} << 20);
    return m;
  }

 public:
  Stream stream{device_};
  Arenas arenas{stream, room()};

 private:
  std::unique_ptr<Comm> shard_, replica_;

 public:
  ParameterStore params;
  std::vector<Param> norms, matrices;
};

using Values = std::map<std::string, std::vector<double>>;  // of whole parameters
template <class F>
Values gathered(Host& host, const Store& store, F&& field) {  // from the local slices of all ranks
  Values all;
  store.params.for_each([&](const std::string& name, Shape shape, const ParameterStore::Local& l) {
    std::vector<double> mine(size_t(shape.numel()), std::nan(""));
    const std::vector<double> part = values(field(l));
    if (!part.empty()) std::copy(part.begin(), part.end(), mine.begin() + l.first);
    std::vector<double> ranks(mine.size() * size_t(host.size()));
    host.all_gather(ranks.data(), mine.data(), mine.size() * sizeof(double));
    for (size_t i = 0; i < ranks.size(); ++i)
      if (!std::isnan(ranks[i])) mine[i % mine.size()] = ranks[i];
    all[name] = mine;
  });
  return all;
}
Values masters(Host& host, const Store& s) {
  return gathered(host, s, [](const ParameterStore::Local& l) { return l.master; });
}

struct Sharing {
  int ranks, stage, degree;
};
std::ostream& operator<<(std::ostream& o, const Sharing& s) {
  return o << s.ranks << "_ranks_stage_" << s.stage << (s.degree ? "_hybrid" : "");
}
class Shared : public testing::TestWithParam<Sharing> {
 protected:
  static void on_ranks(const std::function<void(Host&, Store&)>& body) {
    run_ranks(GetParam().ranks, [&](Host& host) {
      const Threads one{1};
      Store store(host, {.zero_stage = GetParam().stage}, GetParam().degree);
      body(host, store);
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, Shared,
                         testing::Values(Sharing{1, 0, 0}, Sharing{1, 3, 0}, Sharing{2, 1, 0}, Sharing{3, 1, 0},
                                         Sharing{3, 2, 0}, Sharing{3, 3, 0}, Sharing{4, 2, 2}, Sharing{4, 3, 2}),
                         testing::PrintToStringParamName());

TEST_P(Shared, InitialValuesAreThoseOfTheirNamesAndPlaces) {
  on_ranks([](Host& host, Store& s) {
    const Values all = masters(host, s);
    ASSERT_EQ(all.size(), 16u);
    for (const auto& [name, got] : all)
      for (size_t i = 0; i < got.size(); ++i) {
        const bool norm = name.ends_with("norm");
        ASSERT_EQ(got[i], norm ? 1. : double(float(0.5 * normal(11, hash(name), i)))) << name << ' ' << i;
      }
    EXPECT_EQ(s.params.count(), 4 * (5 + 11 * 7));
  });
}

TEST_P(Shared, WholeWeightsAreTheMastersOfAllRanks) {
  on_ranks([](Host& host, Store& s) {
    for (int round = 0; round < 2; ++round) {
      const Values all = masters(host, s);
      for (const int u : {0, 1, 2, 3, 2, 1}) {  // forward, then backward
        const Use use = u < 3 && round == 0 ? Use::forward : Use::backward;
        s.params.prefetch(s.stream, u + (round ? -1 : 1), use);
        const auto lease = s.params.acquire(s.stream, u, use);
        std::vector<double> want;
        for (const char* part : {".q", ".k", ".v"})  // one matrix: they stand one above the other
          for (double v : all.at(concat(u, part))) want.push_back(v);
        const Tensor got = s.params.value(s.matrices[size_t(u)]).plain;
        ASSERT_EQ(got.shape, (Shape{11, 7}));
        ASSERT_EQ(values(got), want) << "unit " << u;
        ASSERT_EQ(values(s.params.value(s.norms[size_t(u)]).plain), all.at(concat(u, ".norm")));
      }
      s.params.for_each([](const std::string&, Shape, const ParameterStore::Local& l) {  // as another checkpoint would
        for (int64_t i = 0; i < l.master.numel(); ++i) l.master.ptr<float>()[i] *= 3;
      });
      s.params.publish(s.stream, ParameterStore::Masters::changed);
    }
  });
}

TEST_P(Shared, GradientsAreTheSumOverRanksAndMicroBatches) {
  on_ranks([](Host& host, Store& s) {
    const auto value_at = [](int unit, int64_t i, int64_t round, int rank) {
      return double((i % 13 + unit) * (rank + 1) + round);
    };
    s.params.zero_gradients(s.stream);
    for (const int64_t round : {0, 1, 2}) {
      const auto batch = round == 2 ? ParameterStore::Batch::last : ParameterStore::Batch::more_follow;
      for (int u = 3; u >= 0; --u) {
        const auto lease = s.params.acquire(s.stream, u, Use::backward);
        s.params.prefetch(s.stream, u - 1, Use::backward);
        const Param& p = s.matrices[size_t(u)];
        if (u % 2) {  // a product, which may overwrite what lies there
          const ParameterStore::Sum sum = s.params.sum(p);
          EXPECT_EQ(sum.first_term, round == 0 || (GetParam().stage >= 2 && host.size() > 1)) << u << ' ' << round;
          if (sum.first_term) fill_zero(s.stream, sum.d);
          EXPECT_FALSE(s.params.sum(p).first_term);
        }
        const Tensor g = s.params.grad(s.stream, p);
        for (int64_t i = 0; i < g.numel(); ++i) g.ptr<float>()[i] += float(value_at(u, i, round, host.rank()));
        s.params.reduce(s.stream, u, batch);
      }
    }
    s.params.wait_for_gradients(s.stream);
    const Values all = gathered(host, s, [](const ParameterStore::Local& l) { return l.grad; });
    for (int u = 0; u < 4; ++u) {
      int64_t i = 0;
      for (const char* part : {".q", ".k", ".v"})
        for (const double got : all.at(concat(u, part))) {
          double want = 0;
          for (const int64_t round : {0, 1, 2})
            for (int r = 0; r < host.size(); ++r) want += value_at(u, i, round, r);
          ASSERT_EQ(got, want) << u << part << ' ' << i;
          ++i;
        }
      for (const double got : all.at(concat(u, ".norm"))) ASSERT_EQ(got, 0.);  // no pass added to it
    }
    double sum = 0, of_slices = 0;  // these are longer, by padding, which must be zero for the norm
    for (const auto& [name, whole] : all) sum = std::accumulate(whole.begin(), whole.end(), sum);
    s.params.for_each_gradient_once([&](Tensor g) {
      for (const double v : values(g)) of_slices += v;
    });
    std::vector<double> of_ranks(size_t(host.size()));
    host.all_gather(of_ranks.data(), &of_slices, sizeof of_slices);
    EXPECT_EQ(std::accumulate(of_ranks.begin(), of_ranks.end(), 0.), sum);
  });
}

TEST_P(Shared, SlicesHaveNoPaddingAndEveryElementOnce) {
  on_ranks([](Host& host, Store& s) {
    int64_t mine = 0;
    s.params.for_each([&](const std::string&, Shape, const ParameterStore::Local& l) { mine += l.master.numel(); });
    std::vector<int64_t> all(size_t(host.size()));
    host.all_gather(all.data(), &mine, sizeof mine);
    const int64_t copies = GetParam().stage == 0 ? host.size()
                           : GetParam().degree   ? host.size() / GetParam().degree
                                                 : 1;
    EXPECT_EQ(std::accumulate(all.begin(), all.end(), int64_t(0)), copies * s.params.count());
    double padding = 0;  // of the local slices, which are longer
    s.params.for_each_gradient([&](Tensor g) {
      for (const double v : values(g)) padding += std::abs(v);
    });
    EXPECT_EQ(padding, 0.);
  });
}

TEST(Parameters, WeightsAreReadUnderALeaseOnly) {
  LoneHost host;
  Store s(host, {});
  EXPECT_THROW(s.params.value(s.norms[1]), Error);
  {
    const auto lease = s.params.acquire(s.stream, 1, Use::forward);
    EXPECT_NO_THROW(s.params.value(s.norms[1]));
    EXPECT_THROW(s.params.value(s.norms[2]), Error);
  }
  EXPECT_THROW(s.params.value(s.norms[1]), Error);
}

// parallel.prefetch: while one unit is leased, so many may arrive.
TEST(Parameters, AsManyUnitsAsAskedForAreGatheredAheadAndLeasedBuffersAreNotGivenAway) {
  for (const int ahead : {0, 1, 2})
    run_ranks(2, [&](Host& host) {
      Store s(host, {.zero_stage = 3, .prefetch = ahead});
      const auto lease = s.params.acquire(s.stream, 1, Use::forward);
      for (int u = 2; u <= 1 + ahead; ++u) {
        EXPECT_FALSE(s.params.holds(u));
        EXPECT_NO_THROW(s.params.prefetch(s.stream, u, Use::forward)) << ahead;
        EXPECT_TRUE(s.params.holds(u));
      }
      EXPECT_TRUE(s.params.holds(1));
      if (ahead < 2) { EXPECT_THROW(s.params.prefetch(s.stream, 2 + ahead, Use::forward), Error); }  // unit 1's buffers
      EXPECT_NO_THROW(s.params.prefetch(s.stream, 9, Use::forward));  // no such unit: nothing
      EXPECT_THROW(s.params.grad(s.stream, s.matrices[2]), Error);    // it has none in a forward pass
    });
}

// By the model: when a layer's router speaks, the blocks behind it are there already. Each costs a block's memory.
TEST(Parameters, AModelGathersAheadWhatParallelPrefetchSays) {
  const auto config = [](int64_t ahead) {
    return tiny_config({"model.model_type=mixtral", "model.num_local_experts=2", "model.num_experts_per_tok=1",
                        "model.num_hidden_layers=5", "training.micro_batch_size=1", "parallel.zero_stage=3",
                        concat("parallel.prefetch=", ahead)});
  };
  size_t before = 0;
  int alone = 0;  // units that layer 0 finds without prefetching
  for (const int64_t ahead : {0, 1, 3}) {
    run_ranks(2, [&](Host& host) {
      const Threads one{1};
      TinyTrainer t(config(ahead), host);
      Session& s = t.session;
      Context c = s.context(Pass::evaluate);
      std::vector<int> held;  // units, by layer
      c.routers.observe = [&](int64_t, Tensor) {
        int n = 0;
        for (int u = 0; u < s.params.num_units(); ++u) n += s.params.holds(u);
        held.push_back(n);
      };
      s.model.logits(c, s.upload(tiny_samples(s.config).batch(0, 1)), [](int64_t, Tensor) {});
      ASSERT_EQ(held.size(), 5u);
      const int of_a_layer = (s.params.num_units() - 2) / 5;
      if (host.rank() == 0 && ahead == 0) alone = held[0];
      host.barrier();
      EXPECT_EQ(held[0], alone + ahead * of_a_layer);
      EXPECT_EQ(held[1], alone + ahead * of_a_layer);
    });
    const size_t weights = plan_of(config(ahead), 2).memory[Memory::weights];
    EXPECT_GT(weights, before) << ahead;
    before = weights;
  }
}

TEST(Parameters, PartsOfDifferentWidthAreNoMatrix) {
  LoneHost host;
  Device device{{}};
  Stream side(device);
  const auto comm = make_comm(device, host);
  ParameterStore params(*comm, nullptr, side, {});
  EXPECT_THROW(params.add({{"early", {2}}}, {}), Error);  // before any unit
  params.begin_unit("unit", Buffers::own);
  EXPECT_THROW(params.add({{"a", {2, 3}}, {"b", {2, 4}}}, {}), Error);
}

TEST(Parameters, TheVocabularysPaddingStaysZero) {
  for (const char* tied : {"model.tie_word_embeddings=true", "model.tie_word_embeddings=false"}) {
    TinyTrainer t(tiny_config({tied}));
    t.run(3);
    t.session.params.for_each([&](const std::string& name, Shape shape, const ParameterStore::Local& l) {
      if (shape[0] != 128) return;
      for (const Tensor& x : {l.master, l.m, l.v, l.grad, l.weights}) {
        const auto all = values(x);
        for (size_t i = 120 * 32; i < all.size(); ++i) ASSERT_EQ(all[i], 0.) << name << ' ' << i;
      }
    });
  }
}

}  // namespace
}  // namespace octet::BACKEND
