// Stands in for the gpu engine in builds without nvcc: every entry point says what is missing.
#include "base/check.h"
#include "host/engine.h"

namespace octet::gpu {
namespace {
template <class Result, class... Given>
Result absent(Given...) {
  bad_input("this executable was built without the gpu engine: install the CUDA toolkit (nvcc, cuBLAS), configure and ",
            "build again, or set device=cpu");
}
}  // namespace

const Engine& engine() {
  static const Engine none{
      .name = "none",
      .available = [] { return false; },
      .target = absent<Target>,
      .room = absent<size_t, const Host&>,
      .plan = absent<PlanResult, const RunConfig&, int, const Target&>,
      .train = absent<TrainResult, const RunConfig&, Host&, const Planner&>,
      .verify = absent<std::vector<VerifyLine>, const RunConfig&, Host&, const Planner&, const VerifyRequest&>,
      .bench = absent<BenchResult, const RunConfig&, Host&, const Planner&, const BenchRequest&>,
      .bench_ops = absent<std::vector<OpTime>, const RunConfig&, const Target&, const PlanResult&, OpKinds>,
      .plan_inference = absent<PlanResult, const RunConfig&, const Target&, int64_t>,
      .generate = absent<GenerateResult, const RunConfig&, Host&, const Planner&, const GenerateRequest&>,
      .evaluate = absent<void, const RunConfig&, Host&, const Planner&, const EvaluateRequest&>};
  return none;
}

}  // namespace octet::gpu
