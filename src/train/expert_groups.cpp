#include "train/expert_groups.h"

#include <algorithm>

namespace octet::BACKEND {

ExpertGroups::ExpertGroups(const RunConfig& c, Device& device, Host& host, int64_t degree)
    : stride_(int(c.parallel.expert_parallel)), buffer_(c.parallel.expert_buffer) {
  const int ep = stride_;
  if (ep == 1) return;
  if (degree % ep && ep % degree)
    bad_input("parallel.expert_parallel (", ep, ") and the ", degree,
              " ranks that share slices (parallel.shard_degree): ", "one must divide the other");
  if (host.local_size() % ep)
    bad_input("parallel.expert_parallel (", ep, ") does not divide the ", host.local_size(),
              " ranks of this machine, on which the experts of a layer must be together");
  const int position = host.rank() % ep, group = host.rank() / ep;
  const int sharing = int(std::max<int64_t>(1, degree / ep)), same = host.size() / ep;
  group_host_ = host.split(group, ep);
  shard_host_ = host.split(position + ep * (group / sharing), sharing);
  replica_host_ = host.split(position + ep * (group % sharing), same / sharing);
  group_ = make_comm(device, *group_host_);
  shard_ = make_comm(device, *shard_host_);
  replica_ = make_comm(device, *replica_host_);
}

ExpertRanks ExpertGroups::ranks() const {
  return {.group = group_.get(), .process_groups = {shard_.get(), replica_.get(), stride_}, .buffer = buffer_};
}

}  // namespace octet::BACKEND
