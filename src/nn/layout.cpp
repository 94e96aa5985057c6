// Memory of the parameter store: buffers of whole weights and gradients, and this rank's slices.
#include <algorithm>

#include "nn/parameters.h"

namespace octet::BACKEND {

// Buffers of whole weights and gradients: one set for each unit where they are kept; else a few that the units of a
// lane take in rotation, so that while one unit computes others are gathered (weights) or reduced (gradients).
void ParameterStore::lay_out(const Arenas& arenas) {
  using Sizes = std::array<int64_t, 2>;
  struct Rotation {  // of the units of a lane
    size_t units = 0;
    std::vector<int> homes;
    Sizes largest{};
    Forms forms{};
  };
  const auto assign = [&](auto&& kept, int turns, auto& buffers, int Unit::*index, auto alloc) {
    std::array<Rotation, 2> rotations;
    for (Rotation& r : rotations) r.homes.assign(size_t(turns), -1);
    for (const Unit& u : units_)
      if (!kept(u) && u.residence != Residence::own) {
        Rotation& r = rotations[lane(u)];
        for (size_t k : {kPlain, kFp8}) r.largest[k] = std::max(r.largest[k], u.segments[k].size);
        r.forms = merge(r.forms, u.forms);
      }
    for (Unit& u : units_) {
      if (kept(u) || u.residence == Residence::own) {
        u.*index = int(buffers.size());
        buffers.push_back(alloc(Sizes{u.segments[kPlain].size, u.segments[kFp8].size}, u.forms));
      } else {
        Rotation& r = rotations[lane(u)];
        int& home = r.homes[r.units++ % r.homes.size()];
        if (home < 0) {
          home = int(buffers.size());
          buffers.push_back(alloc(r.largest, r.forms));
        }
        u.*index = home;
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
  Sizes largest{};   // by lane
  for (const Unit& u : units_) {
    if (is_shared(u)) most = std::max(most, u.segments[kPlain].size + u.segments[kFp8].size);
    if (!u.forms.plain && (!options_.evaluate_fp8 || gathers_plain(u)))
      largest[lane(u)] = std::max(largest[lane(u)], u.segments[kFp8].size);
  }
  if (options_.trains && most && options_.reduce != options_.grad)
    reduce_ = arenas[Memory::communication].alloc(options_.reduce, {most});
  for (size_t l = 0; l < largest.size(); ++l)
    if (largest[l]) evaluate_[l].q_plain = arenas[Memory::weights].alloc(options_.plain, {largest[l]});
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
