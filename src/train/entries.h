#pragma once
// The entry points of this engine, as host/engine.h lists them.
#include "host/engine.h"

namespace octet::BACKEND {

PlanResult plan_run(const RunConfig&, int ranks, const Target&);
TrainResult train_run(const RunConfig&, Host&, const Planner&);
std::vector<VerifyLine> verify_run(const RunConfig&, Host&, const Planner&, const VerifyRequest&);
BenchResult bench_run(const RunConfig&, Host&, const Planner&, const BenchRequest&);
std::vector<OpTime> bench_ops(const RunConfig&, const Target&, const PlanResult&, OpKinds);
PlanResult plan_inference(const RunConfig&, const Target&, int64_t prompt);
GenerateResult generate_run(const RunConfig&, Host&, const Planner&, const GenerateRequest&);
void evaluate_run(const RunConfig&, Host&, const Planner&, const EvaluateRequest&);

}  // namespace octet::BACKEND
