#pragma once
// A Llama of seconds on the cpu engine: its config, its data, and everything that training changes, as bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "base/rng.h"
#include "cli/ranks.h"
#include "cpu/lab.h"
#include "train/checkpoint.h"

namespace octet::BACKEND {

using Changes = std::vector<std::string>;  // section.key=value
inline Changes with(Changes a, const Changes& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Vocabulary 120 is padded to 128. Poison: what is read before it is written is NaN.
inline RunConfig tiny_config(const Changes& changes = {}) {
  return parse_config(R"({
    "device": "cpu",
    "model": {"model_type": "llama", "vocab_size": 120, "hidden_size": 32, "intermediate_size": 48,
              "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
              "max_position_embeddings": 64, "initializer_range": 0.1},
    "training": {"steps": 10, "global_batch_size": 4, "micro_batch_size": 2, "seq_len": 16, "seed": 3},
    "schedule": {"lr": 1e-2, "warmup_steps": 2},
    "precision": {"param_dtype": "fp32"},
    "checkpoint": {"dir": ""},
    "memory": {"plan_cache": "", "poison": true}})",
                      "tiny", changes);
}

inline PlanResult plan_of(const RunConfig& config, int ranks) {
  return planner_for(target_of(BACKEND::engine(), config), ranks)(config);
}

inline int64_t count_valid(const std::vector<int32_t>& targets) {
  return std::count_if(targets.begin(), targets.end(), [](int32_t t) { return t >= 0; });
}

// Every sequence counts up by a step of its own, which a model can learn. Of sample g the first g % 5 targets and a few
// others have no loss: the micro-batches and the ranks have different numbers of valid targets.
inline Samples tiny_samples(const RunConfig& config) {
  const int64_t T = config.training.seq_len, V = config.model.vocab_size;
  const Bounds documents = bounds_of(config);
  const auto batch = [=](int64_t first, int64_t count) {
    Batch b = blank_batch(count, T, documents);
    b.tokens.clear(), b.targets.clear();
    for (int64_t g = first; g < first + count; ++g) {
      if (documents == Bounds::of_documents)
        set_bounds(b.bounds().row(g - first, T), std::array{1 + g % 3, T / 2, T - 1});
      const uint64_t begin = random_bits(1, 1, uint64_t(g)), by = 1 + random_bits(1, 2, uint64_t(g)) % 3;
      for (int64_t t = 0; t < T; ++t) {
        const bool ignored = t < g % 5 || random_bits(1, 3, uint64_t(g * T + t)) % 8 == 0;
        b.tokens.push_back(int32_t((begin % 1000 + by * uint64_t(t)) % uint64_t(V)));
        b.targets.push_back(ignored ? kIgnore : int32_t((begin % 1000 + by * uint64_t(t + 1)) % uint64_t(V)));
      }
    }
    return b;
  };
  return {batch, [=](int64_t first, int64_t count) { return count_valid(batch(first, count).targets); }};
}
// The same sequences without any target: no loss, and no gradients.
inline Samples without_targets(const RunConfig& config) {
  Samples s = tiny_samples(config);
  s.batch = [batch = s.batch](int64_t first, int64_t count) {
    Batch b = batch(first, count);
    std::fill(b.targets.begin(), b.targets.end(), kIgnore);
    return b;
  };
  s.valid_targets = [](int64_t, int64_t) { return int64_t{0}; };
  return s;
}

struct OwnConfig {  // a session refers to its config
  RunConfig own_config;
};
class TinyTrainer : private OwnConfig, public Trainer {
 public:
  explicit TinyTrainer(const RunConfig& config, Host& host = alone())
      : OwnConfig{config}, Trainer(own_config, host, plan_of(config, host.size()), options_for(config, host)) {}

  std::vector<double> run(int64_t steps) { return run(steps, tiny_samples(session.config)); }
  std::vector<double> run(int64_t steps, const Samples& samples) {  // the loss of each
    std::vector<double> losses;
    for (int64_t i = 0; i < steps; ++i) {
      step(samples);
      losses.push_back(report(steps_done()).loss);
    }
    return losses;
  }
  RunState run_state() { return {.done = done(), .counters = state()}; }
  std::string save() { return save(run_state()); }
  std::string save(const RunState& state) {  // -> the folder, once complete
    CheckpointWriter writer(/*room=*/0);
    writer.begin(*this, state);
    return writer.finish(session);
  }

 private:
  static Host& alone() {
    static LoneHost host;
    return host;
  }
};

using Bits = std::map<std::string, std::vector<uint8_t>>;  // of this rank

template <class T>
void keep(Bits& bits, const std::string& name, const std::vector<T>& values) {
  bits[name].resize(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(bits[name].data(), values.data(), bits[name].size());
}
inline void keep(Bits& bits, const std::string& name, Tensor t) {
  const uint8_t* p = static_cast<const uint8_t*>(t.data);
  bits[name].assign(p, p + t.bytes());
}
// Masters and moments.
inline Bits weight_bits(const ParameterStore& params) {
  Bits bits;
  params.for_each([&](const std::string& name, Shape, const ParameterStore::Local& l) {
    keep(bits, name, l.master);
    keep(bits, name + ".m", l.m);
    keep(bits, name + ".v", l.v);
  });
  return bits;
}
inline void keep_scales(Bits& bits, const std::string& kind, Stream& stream, const DelayedScaling& scales) {
  const DelayedScaling::Snapshot s = scales.save(stream);
  keep(bits, kind + ".scale", s.scale);
  keep(bits, kind + ".history", s.rows);
  keep(bits, kind + ".nonfinite", s.nonfinite);
}
// All that the next step depends on: also scales and histories, of a Trainer the loss scale too.
inline Bits bits_of(Session& s) {
  Bits bits = weight_bits(s.params);
  keep_scales(bits, "activations", s.stream, s.scaling);
  keep_scales(bits, "weights", s.stream, s.params.weight_scales());
  return bits;
}
inline Bits bits_of(Trainer& t) {
  Bits bits = bits_of(t.session);
  const StepState state = t.state();
  keep(bits, "loss_scale", std::vector<float>{state.loss_scale, float(state.good_steps)});
  return bits;
}

inline void expect_same(const Bits& a, const Bits& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, bytes] : a) {
    ASSERT_TRUE(b.contains(name)) << name;
    EXPECT_TRUE(bytes == b.at(name)) << name << " differs";
  }
}
inline void expect_near_all(const std::vector<double>& a, const std::vector<double>& b, double relative) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], relative * std::abs(b[i])) << "of number " << i;
}

// Number formats of a run, for tests of what must hold in each.
struct Format {
  const char* name;
  Changes changes;
};
inline std::ostream& operator<<(std::ostream& o, const Format& f) { return o << f.name; }
inline std::vector<Format> all_formats() {
  const Changes bf16{"precision.param_dtype=bf16"}, fp8{"precision.param_dtype=bf16", "fp8.enabled=true"};
  return {{"fp32", {}},
          {"bf16", bf16},
          {"fp16", {"precision.param_dtype=fp16", "precision.loss_scale=64", "precision.loss_scale_growth_every=2"}},
          {"bf16_moments", with(bf16, {"precision.master_dtype=bf16", "precision.moment_dtype=bf16"})},
          {"fp8_delayed", with(fp8, {"fp8.amax_history_len=4"})},
          {"fp8_current", with(fp8, {"fp8.recipe=current"})},
          {"fp8_evaluated", with(fp8, {"fp8.eval=true"})},
          {"fp8_smp", with(fp8, {"fp8.preset=smp", "fp8.amax_history_len=3"})},
          {"fp8_interval", with(fp8, {"fp8.preset=te", "fp8.amax_history_len=3", "fp8.interval=3"})}};
}

}  // namespace octet::BACKEND
