#include <algorithm>

#include "ops/tune.h"
#include "train/entries.h"

#define OCTET_NAME_(x) #x
#define OCTET_NAME(x) OCTET_NAME_(x)

namespace octet::BACKEND {

static Target card_target() {
  Target t = target_of_card(0);
  if (has_cudnn() && t.compute_capability >= 90) t.attention = AttentionKind::automatic;
  return t;
}

static size_t room(const Host& host) {
  Device d({.index = host.local_rank()});
  const size_t bytes = d.total_bytes() - std::min(d.total_bytes(), d.used_bytes());
  return d.target().cuda ? bytes : bytes / size_t(host.local_size());
}

const Engine& engine() {
  static const Engine entries{.name = OCTET_NAME(BACKEND),
                              .available = device_available,
                              .target = card_target,
                              .room = room,
                              .plan = plan_run,
                              .train = train_run,
                              .verify = verify_run,
                              .bench = bench_run,
                              .bench_ops = bench_ops,
                              .plan_inference = plan_inference,
                              .generate = generate_run,
                              .evaluate = evaluate_run};
  return entries;
}

}  // namespace octet::BACKEND
