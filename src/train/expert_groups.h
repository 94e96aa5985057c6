#pragma once
// The process groups of parallel.expert_parallel (ep): ep consecutive ranks hold a layer's experts together, rank r the
// (r % ep)-th share of them. Ranks that hold the same experts shard them among themselves as far as the dense
// parameters are sharded; beyond that they are replicas.
#include "config/config.h"
#include "nn/context.h"

namespace octet::BACKEND {

class ExpertGroups {
 public:
  ExpertGroups(const RunConfig&, Device&, Host&, int64_t degree);  // degree: ranks that share the slices of all else
  ExpertRanks ranks() const;
  Comm* group() const { return group_.get(); }  // null: every rank holds all experts

 private:
  int stride_;
  double buffer_;
  std::unique_ptr<Host> group_host_, shard_host_, replica_host_;
  std::unique_ptr<Comm> group_, shard_, replica_;
};

}  // namespace octet::BACKEND
