// Memory of the parameter store: buffers of whole weights and gradients, and this rank's slices.
#include <algorithm>

#include "nn/parameters.h"

namespace octet::BACKEND {

// Buffers of whole weights and gradients. Where they are kept, each unit has buffers of its own; else the units of a
// pool use a few in rotation, so that while one unit computes others are gathered (weights) or reduced (gradients).
void ParameterStore::lay_out(const Arenas& arenas) {
  using Sizes = std::array<int64_t, 2>;
  struct Pool {
    size_t units = 0;          // assigned so far
    std::vector<int> indices;  // of its buffers; -1: not allocated yet
    Sizes largest{};           // of its units
    Forms forms{};
  };
  const auto assign = [&](auto&& kept, int count, auto& buffers, int Unit::*index, auto alloc) {
    std::array<Pool, 2> pools;
    for (Pool& pool : pools) pool.indices.assign(size_t(count), -1);
    for (const Unit& u : units_)
      if (!kept(u) && u.buffers != Buffers::own) {
        Pool& pool = pools[pool_of(u)];
        for (size_t k : {kPlain, kFp8}) pool.largest[k] = std::max(pool.largest[k], u.segments[k].size);
        pool.forms = merge(pool.forms, u.forms);
      }
    for (Unit& u : units_) {
      if (kept(u) || u.buffers == Buffers::own) {
        u.*index = int(buffers.size());
        buffers.push_back(alloc(Sizes{u.segments[kPlain].size, u.segments[kFp8].size}, u.forms));
      } else {
        Pool& pool = pools[pool_of(u)];
        int& next = pool.indices[pool.units++ % pool.indices.size()];
        if (next < 0) {
          next = int(buffers.size());
          buffers.push_back(alloc(pool.largest, pool.forms));
        }
        u.*index = next;
      }
    }
  };
  assign([&](const Unit& u) { return keeps_weights(u); }, 1 + options_.prefetch, weights_, &Unit::weights,
         [&](Sizes n, Forms f) {
           Arena& a = arenas[Memory::weights];
           Weights w;
           if (n[kPlain]) w.plain = a.alloc(options_.plain, {n[kPlain]});
           if (n[kFp8] && f.q) w.q = a.alloc(DType::e4m3, {n[kFp8]});
           if (n[kFp8] && f.q_t) w.q_t = a.alloc(DType::e4m3, {n[kFp8]});
           if (n[kFp8] && f.q_t && !w.q) w.q = a.alloc(DType::e4m3, {n[kFp8]});  // q_t is transposed from it
           if (n[kFp8] && f.plain) w.q_plain = a.alloc(options_.plain, {n[kFp8]});
           return w;
         });
  if (options_.trains)
    assign([&](const Unit& u) { return keeps_gradients(u); }, 2, grads_, &Unit::grads,
           [&](Sizes n, Forms) {
             Grads g;
             for (size_t k : {kPlain, kFp8})
               if (n[k]) g.whole[k] = arenas[Memory::gradients].alloc(options_.grad, {n[k]});
             return g;
           });
  int64_t most = 0;  // elements of a unit whose gradients are reduced
  Sizes largest{};   // by pool
  for (const Unit& u : units_) {
    if (is_shared(u)) most = std::max(most, u.segments[kPlain].size + u.segments[kFp8].size);
    if (!u.forms.plain && (!options_.evaluate_fp8 || gathers_plain(u)))
      largest[pool_of(u)] = std::max(largest[pool_of(u)], u.segments[kFp8].size);
  }
  if (options_.trains && most && options_.reduce != options_.grad)
    reduce_ = arenas[Memory::communication].alloc(options_.reduce, {most});
  for (size_t i = 0; i < largest.size(); ++i)
    if (largest[i]) fp8_as_plain_[i].q_plain = arenas[Memory::weights].alloc(options_.plain, {largest[i]});
}

void ParameterStore::alloc_slices(const Arenas& arenas) {
  for (Unit& u : units_)
    for (size_t k : {kPlain, kFp8}) {
      Segment& g = u.segments[k];
      if (g.size == 0) continue;
      const Shape mine{g.size / shards(u)};
      g.master = k == kPlain && shares_masters(u) ? slice(u, weights_[size_t(u.weights)].plain)
                                                  : arenas[Memory::optimizer].alloc(options_.master, mine);
      if (options_.trains) {
        g.m = arenas[Memory::optimizer].alloc(options_.moment, mine);
        g.v = arenas[Memory::optimizer].alloc(options_.moment, mine);
        g.grad = keeps_gradients(u) ? slice(u, grads_[size_t(u.grads)].whole[k])
                                    : arenas[Memory::gradients].alloc(options_.grad, mine);
      }
      if (k != kFp8) continue;
      g.q =
          keeps_weights(u) ? slice(u, weights_[size_t(u.weights)].q) : arenas[Memory::weights].alloc(DType::e4m3, mine);
    }
}

}  // namespace octet::BACKEND
