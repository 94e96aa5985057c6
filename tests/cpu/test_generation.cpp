// With the kv cache a model gives what it gives when each token's whole prefix is computed from scratch: the
// same logits in f64, for every architecture, in a batch of unequal prompts; and what is chosen are
// transformers' own tokens.
#include <gtest/gtest.h>

#include "base/files.h"
#include "base/json.h"
#include "cpu/lab.h"
#include "golden.h"
#include "train/generator.h"
#include "train/weights.h"

namespace octet::BACKEND {
namespace {

const std::vector<std::vector<int32_t>> kPrompts{{5, 17, 3, 99, 1, 1, 42}, {7}, {100, 2, 8}};

RunConfig config_of(const std::string& model, int64_t batch, int64_t positions,
                    const std::vector<std::string>& more = {}) {
  std::vector<std::string> changes{"device=cpu", concat("training.micro_batch_size=", batch),
                                   concat("training.global_batch_size=", batch),
                                   concat("training.seq_len=", positions)};
  changes.insert(changes.end(), more.begin(), more.end());
  return parse_config(R"({"model": {"config": ")" + golden(model) +
                          R"("}, "checkpoint": {"dir": ""}, "memory": {"plan_cache": "", "poison": true}})",
                      model, changes);
}
PlanResult plan_of(const RunConfig& config, int64_t prompt) {
  return plan::engine().plan_inference(config, cpu::engine().target(), prompt);
}

// Logits behind the last of `ids`, all of them computed in one pass without a cache.
std::vector<double> from_scratch(const std::string& model, const std::vector<int32_t>& ids,
                                 const std::vector<std::string>& more) {
  LoneHost host;
  const int64_t T = int64_t(ids.size());
  const RunConfig config = config_of(model, 1, T, more);
  Session s(config, host, plan::engine().plan(config, 1, cpu::engine().target()), Purpose::train,
            options_for(config, host));
  load_weights(s, golden(model));
  Context c = s.context(Pass::evaluate);
  std::vector<double> last;
  s.model.logits(c, s.upload({.tokens = ids, .targets = ids, .batch = 1, .seq_len = T}),
                 [&](int64_t, Tensor rows) { last = values(rows.row_range(rows.rows() - 1, 1)); });
  return last;
}

void expect_cached_equals_scratch(const std::string& model, const std::vector<std::string>& more = {}) {
  SCOPED_TRACE(model);
  const std::vector<std::string> f64 = [&] {
    std::vector<std::string> all{"precision.param_dtype=fp64"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }();
  LoneHost host;
  const int64_t B = int64_t(kPrompts.size()), steps = 6;
  const RunConfig config = config_of(model, B, 7 + steps, f64);
  Generator g(config, host, plan_of(config, 7), 7, options_for(config, host));
  load_weights(g.session, golden(model));
  std::vector<std::vector<int32_t>> ids = kPrompts;
  Tensor logits = g.read(kPrompts);
  for (int64_t step = 0; step < steps; ++step) {
    const std::vector<double> got = values(logits);
    for (int64_t b = 0; b < B; ++b) {
      const std::vector<double> want = from_scratch(model, ids[size_t(b)], f64);
      for (size_t v = 0; v < size_t(config.model.vocab_size); ++v)
        ASSERT_NEAR(got[size_t(b * logits.cols()) + v], want[v], 1e-12 + 1e-11 * std::abs(want[v]))
            << "step " << step << ", sequence " << b << ", token " << v;
      ids[size_t(b)].push_back(int32_t((31 * step + 7 * b + 3) % config.model.vocab_size));
      g.new_tokens().ptr<int32_t>()[b] = ids[size_t(b)].back();
    }
    logits = g.next(g.new_tokens());
  }
}

TEST(Generation, TheCacheChangesNothing) {
  for (const char* model :
       {"llama-mha", "llama-gqa", "llama-tied", "neox-parallel", "neox-sequential", "mixtral-8x2", "mixtral-4x1"})
    expect_cached_equals_scratch(model);
}

TEST(Generation, NorWithASlidingWindow) {  // shorter than what is attended to
  for (const char* model : {"llama-gqa", "mixtral-8x2"})
    expect_cached_equals_scratch(model, {"model.sliding_window=4"});
}

TEST(Generation, ThePlanIsToTheByteAndAFullCacheIsTheEnd) {
  LoneHost host;
  for (const char* model : {"llama-gqa", "neox-parallel", "mixtral-8x2"}) {
    const RunConfig config = config_of(model, 3, 9);
    const PlanResult plan = plan_of(config, 7);
    Generator g(config, host, plan, 7, options_for(config, host));
    load_weights(g.session, golden(model));
    g.read(kPrompts);
    fill_zero(g.session.stream, g.new_tokens());
    g.next(g.new_tokens());
    EXPECT_EQ(g.session.arenas.peak(), plan.memory) << model;
    EXPECT_EQ(plan.memory[Memory::gradients] + plan.memory[Memory::optimizer], 0u) << model;
    g.next(g.new_tokens());
    EXPECT_THROW(g.next(g.new_tokens()), Error) << model;  // positions 0 .. 8 are taken
  }
}

// Weights without training are their own masters: what was loaded is what products read, to the bit.
TEST(Generation, LoadedWeightsAreThoseOfTraining) {
  for (const char* dtype : {"fp32", "bf16"}) {
    const std::vector<std::string> type{concat("precision.param_dtype=", dtype)};
    LoneHost host;
    const RunConfig config = config_of("llama-gqa", 1, 7, type);
    Generator g(config, host, plan_of(config, 7), 7, options_for(config, host));
    load_weights(g.session, golden("llama-gqa"));
    const std::vector<double> got = values(g.read({kPrompts.data(), 1}));
    const std::vector<double> want = from_scratch("llama-gqa", kPrompts[0], type);
    for (size_t v = 0; v < size_t(config.model.vocab_size); ++v)
      EXPECT_EQ(dtype == std::string("bf16") ? double(float(bf16(float(got[v])))) : got[v], want[v]) << dtype << v;
  }
}

json golden_cases(const std::string& model) { return json::parse(read_file(golden(model + "/generate.json"))); }

// batch: prompts computed together, of unequal lengths.
void expect_transformers_tokens(const std::string& model, double penalty, int64_t batch) {
  SCOPED_TRACE(model);
  const json expected = golden_cases(model);
  GenerateRequest request{
      .model = golden(model), .max_new_tokens = expected["max_new_tokens"], .sampling = {.penalty = penalty}};
  request.stop = {expected["eos"].get<int32_t>()};
  std::vector<std::vector<int32_t>> want;
  size_t longest = 0;
  for (const json& c : expected["cases"]) {
    EXPECT_GT(c["gap"].get<double>(), 1e-4);  // no close call
    if (c["repetition_penalty"] != penalty) continue;
    request.prompts.push_back(c["prompt"]);
    want.push_back(c["ids"]);
    longest = std::max(longest, request.prompts.back().size());
  }
  ASSERT_GE(want.size(), 3u);
  std::vector<std::vector<int32_t>> came(want.size());
  request.on_token = [&](size_t prompt, int32_t id) { came[prompt].push_back(id); };
  LoneHost host;
  const RunConfig config =
      config_of(model, batch, int64_t(longest) + request.max_new_tokens, {"precision.param_dtype=fp32"});
  const GenerateResult result = cpu::engine().generate(
      config, host, [&](const RunConfig& c) { return plan_of(c, int64_t(longest)); }, request);
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(result.sequences[i].tokens, want[i]) << "prompt " << i;
    EXPECT_EQ(came[i], want[i]) << "prompt " << i;
    const bool stopped = want[i].back() == request.stop[0];
    EXPECT_EQ(result.sequences[i].end, stopped ? GenerateResult::End::stop : GenerateResult::End::length);
  }
}

TEST(Generation, GreedyIsTransformersTokenForToken) {
  for (const char* model : {"llama-mha", "llama-gqa", "llama-gqa-sharded", "llama-tied", "neox-parallel",
                            "neox-sequential", "mixtral-8x2", "mixtral-4x1"})
    for (const double penalty : {1.0, 1.3})
      for (const int64_t batch : {1, 3, 4}) expect_transformers_tokens(model, penalty, batch);
}

TEST(Generation, EndsAtTheModelsRange) {
  LoneHost host;
  GenerateRequest request{
      .model = golden("llama-gqa"), .prompts = {std::vector<int32_t>(120, 9), {1, 5}}, .max_new_tokens = 126};
  const RunConfig config = [&] {
    RunConfig c = config_of("llama-gqa", 2, 16, {"precision.param_dtype=fp32"});
    c.training.seq_len.set(120 + 126);  // as octet generate does it: the range ends each sequence by itself
    return c;
  }();
  ASSERT_EQ(config.model.max_positions, 128);
  const GenerateResult r = cpu::engine().generate(
      config, host, [&](const RunConfig& c) { return plan_of(c, 120); }, request);
  EXPECT_EQ(r.sequences[0].tokens.size(), 8u);
  EXPECT_EQ(r.sequences[0].end, GenerateResult::End::positions);
  EXPECT_EQ(r.sequences[1].tokens.size(), 126u);
  EXPECT_EQ(r.sequences[1].end, GenerateResult::End::length);
  EXPECT_EQ(r.prefill_tokens, 122);
  EXPECT_EQ(r.decode_tokens, 7 + 125);
}

}  // namespace
}  // namespace octet::BACKEND
