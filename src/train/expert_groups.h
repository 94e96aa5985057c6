#pragma once
// The groups of ranks of parallel.expert_parallel: ep ranks that stand next to one another hold a layer's experts
// together, rank r those of position r % ep. The experts of one position are dealt out among as many of the ranks that
// share slices as hold them; the others replicate.
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
