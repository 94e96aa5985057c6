#include "ops/tune.h"
#include "train/entries.h"

#define OCTET_NAME_(x) #x
#define OCTET_NAME(x) OCTET_NAME_(x)

namespace octet::BACKEND {

static Target card_target() {
  Target t = Device({}).target();
  t.cudnn = has_cudnn() && t.compute_capability >= 90;
  return t;
}

const Engine& engine() {
  static const Engine entries{.name = OCTET_NAME(BACKEND),
                              .available = device_available,
                              .target = card_target,
                              .plan = plan_run,
                              .train = train_run,
                              .verify = verify_run,
                              .bench = bench_run,
                              .bench_ops = bench_ops};
  return entries;
}

}  // namespace octet::BACKEND
