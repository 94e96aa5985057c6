#pragma once
// What each engine offers to the command line. An engine is the code of device/ to train/ compiled against one backend.
#include <functional>

#include "config/config.h"
#include "config/plan.h"
#include "config/product.h"
#include "config/sampling.h"
#include "host/host.h"

namespace octet {

struct PlanResult {
  MemoryPlan memory;  // of every arena, on each rank
  WorkLog work;       // of a warm step on one rank
  std::vector<ProductShape> products;
  int64_t parameters = 0;
  std::vector<std::pair<std::string, Shape>> shapes;  // of each parameter, its vocabulary padded
  std::vector<std::string> precision;  // a line for each linear layer: the format of each product, and why not FP8
};

struct TrainResult {
  enum class End { finished, stopped, signalled } end = End::finished;
  int64_t step = 0;  // steps done
  double first_loss = 0, loss = 0, validation_loss = 0;
  std::string checkpoint;  // the last one written
};

struct VerifyRequest {
  std::string model, expected, trajectory;  // an HF folder, expected.safetensors, trajectory.json or none
  bool trains = true;  // false: neither gradients nor steps are compared, and the planner plans an evaluation
};
struct VerifyLine {
  std::string what;
  double absolute = 0, relative = 0, metric = 0, tolerance = 0;  // metric: 1 - 2<x,y>/(|x|^2+|y|^2)
  std::string measure;                                           // which of them the tolerance limits
  bool ok = true;
};

struct BenchResult {
  std::string device;
  std::vector<double> step_seconds;
  int64_t tokens_per_step = 0;                // of one rank
  size_t peak_bytes = 0;                      // of the device, as its driver reports it
  size_t planned_bytes = 0, arena_bytes = 0;  // reserved for arenas; what they held at most
  WorkLog times;                              // seconds by kernel class, if profiled
  double loss = 0, norm = 0;                  // of the last step: on another engine the same config gives the same
};
struct BenchRequest {
  int64_t steps = 10, warmup = 3;
  bool profile = false;
};

struct OpKinds {  // what octet bench --ops times
  bool layers = true, products = true;
};
struct OpTime {  // of one call: what the plan counts, how long it took
  std::string name;
  double flops = 0, bytes = 0, seconds = 0;
};

using Planner = std::function<PlanResult(const RunConfig&)>;  // for the ranks and the card of this run

struct Engine {
  const char* name;
  bool (*available)();
  Target (*target)();                                              // of card 0
  size_t (*room)(const Host&);                                     // bytes that are free for this rank
  PlanResult (*plan)(const RunConfig&, int ranks, const Target&);  // asked of the plan engine alone
  TrainResult (*train)(const RunConfig&, Host&, const Planner&);
  std::vector<VerifyLine> (*verify)(const RunConfig&, Host&, const Planner&, const VerifyRequest&);
  BenchResult (*bench)(const RunConfig&, Host&, const Planner&, const BenchRequest&);
  // Each op and product of the config by itself. The plan engine gives flops and bytes, the others seconds.
  std::vector<OpTime> (*bench_ops)(const RunConfig&, const Target&, const PlanResult&, OpKinds);
  // Without training, on one rank: training.micro_batch_size sequences of training.seq_len positions at once. The plan
  // (of the plan engine) is made for prompts of that length; 0: for evaluation.
  PlanResult (*plan_inference)(const RunConfig&, const Target&, int64_t prompt);
  GenerateResult (*generate)(const RunConfig&, Host&, const Planner&, const GenerateRequest&);
  void (*evaluate)(const RunConfig&, Host&, const Planner&, const EvaluateRequest&);
};
namespace cpu {
const Engine& engine();
}
namespace gpu {
const Engine& engine();
}  // namespace gpu
namespace plan {
const Engine& engine();
}

}  // namespace octet
