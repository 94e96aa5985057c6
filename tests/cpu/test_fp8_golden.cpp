// Whole models in FP8 train as transformers' models do whose products are quantised by another program
// (scripts/golden-fp8): losses, gradient norms and every scale, while histories roll over.
#include <omp.h>

#include <algorithm>

#include "base/files.h"
#include "base/json.h"
#include "cpu/fp8_model.h"
#include "golden.h"
#include "ranks.h"
#include "train/weights.h"

namespace octet::BACKEND {
namespace {

Samples batches_of(const std::string& file, int64_t& G, int64_t& T) {
  const SafetensorsFile in(file);
  const auto& shape = in.at("batches").shape;  // (n,G,T+1)
  const int64_t n = shape[0];
  G = shape[1], T = shape[2] - 1;
  const auto batch = [=, ids = in.read_all<int32_t>("batches")](int64_t first, int64_t count) {
    Batch b{.batch = count, .seq_len = T};
    for (int64_t i = first; i < first + count; ++i) {
      const int32_t* row = ids.data() + (i / G % n * G + i % G) * (T + 1);
      b.tokens.insert(b.tokens.end(), row, row + T);
      b.targets.insert(b.targets.end(), row + 1, row + T + 1);
    }
    return b;
  };
  return {batch, [=](int64_t, int64_t count) { return count * T; }};
}

RunConfig config_of(const std::string& model, const json& run, const json& h, const Changes& more) {
  Changes changes{
      "device=cpu",       "memory.poison=true",     "precision.param_dtype=fp32", "precision.reduce_dtype=fp32",
      "fp8.enabled=true", "schedule.kind=constant", "training.steps=100"};
  for (const auto& [key, value] : run["fp8"].items())
    changes.push_back(concat("fp8.", key, "=", value.is_string() ? value.get<std::string>() : value.dump()));
  for (const auto& [key, of] : {std::pair{"schedule.lr", "lr"},
                                {"optimizer.beta1", "beta1"},
                                {"optimizer.beta2", "beta2"},
                                {"optimizer.eps", "eps"},
                                {"optimizer.weight_decay", "weight_decay"},
                                {"optimizer.clip", "clip"}})
    changes.push_back(concat(key, "=", h[of].dump()));
  changes.push_back(concat("training.micro_batch_size=", run["micro_batch_size"].dump()));
  changes = changes + more;
  return parse_config(R"({"model": {"config": ")" + golden(model) + R"("}, "checkpoint": {"dir": ""}})", model,
                      changes);
}

class Fp8Golden : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, Fp8Golden,
                         testing::Values("llama-gqa", "neox-parallel", "neox-sequential", "mixtral-8x2", "mixtral-4x1"),
                         [](const auto& model) {
                           std::string name = model.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ptrdiff_t(values.size() / 2), values.end());
  return values[values.size() / 2];
}

// The runs of a model's reference whose options include `which`, on some ranks.
// Most values agree as far as fp32 goes. But where it rounds a value to the other side of a tie, one code is its
// neighbour, which the loss feels a little, gradients and their maxima more.
void expect_reference(const std::string& model, const std::string& which, int ranks, const Changes& more) {
  const json reference = read_json(golden(model + "/fp8.json"));
  int64_t G = 0, T = 0;
  const Samples samples = batches_of(golden(model + "/trajectory.safetensors"), G, T);
  const Changes sizes{concat("training.global_batch_size=", G), concat("training.seq_len=", T)};
  int count = 0;
  for (const json& run : reference["runs"]) {
    if (!which.empty() && !run["fp8"].contains(which)) continue;
    ++count;
    const RunConfig config = config_of(model, run, reference["hyper_parameters"], sizes + more);
    run_ranks(ranks, [&](Host& host) {
      if (ranks > 1) omp_set_num_threads(1);  // each rank is a thread already
      SCOPED_TRACE(concat(model, ", ", run["case"].get<std::string>(), ", rank ", host.rank()));
      TinyTrainer trainer(config, host);
      Session& s = trainer.session;
      read_masters(s.stream, s.params, SafetensorsModel(golden(model)),
                   {.vocab_size = config.model.vocab_size, .tied_head = config.model.tie_embeddings});
      std::vector<double> losses, norms, scales;  // relative errors
      const auto compare = [](std::vector<double>& errors, double got, const json& want, double most) {
        errors.push_back(std::abs(got / want.get<double>() - 1));
        EXPECT_LT(errors.back(), most);
      };
      for (size_t i = 0; i < run["loss"].size(); ++i) {
        SCOPED_TRACE(concat("step ", i));
        trainer.step(samples);
        const StepReport r = trainer.report(int64_t(i) + 1);
        compare(losses, r.loss, run["loss"][i], 1e-4);
        compare(norms, double(r.state.norm), run["grad_norm"][i], 5e-3);
      }
      const ScaleMap all = scales_of(s);
      EXPECT_EQ(all.size(), run["scales"].size());
      for (const auto& [name, scale] : run["scales"].items()) {
        SCOPED_TRACE(name);
        ASSERT_TRUE(all.contains(name));
        compare(scales, double(all.at(name)), scale, name.ends_with(".dy") ? 3e-2 : 1e-3);
      }
      EXPECT_LT(median(losses), 1e-6);
      EXPECT_LT(median(norms), 1e-3);
      EXPECT_LT(median(scales), 1e-5);
    });
  }
  EXPECT_GT(count, 0);
}

TEST_P(Fp8Golden, LossesNormsAndScalesAreThoseOfTheReference) { expect_reference(GetParam(), "", 1, {}); }

// Two ranks share each micro-batch. Of casts without history the scales are each rank's own: the preset has none.
TEST(Fp8GoldenRanks, ThatShareMaximaAreOne) {
  const Changes two{"training.micro_batch_size=2", "parallel.zero_stage=3", "memory.recompute_blocks=1"};
  for (const char* model : {"llama-gqa", "neox-parallel", "mixtral-8x2"}) expect_reference(model, "preset", 2, two);
  expect_reference("mixtral-8x2", "preset", 2, two + Changes{"parallel.expert_parallel=2"});
}

}  // namespace
}  // namespace octet::BACKEND
