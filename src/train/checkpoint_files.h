#pragma once
// What saving and loading a checkpoint have in common: which tensors stand in its files, and whose scales in which.
#include <filesystem>

#include "train/session.h"
#include "train/weights.h"

namespace octet::BACKEND {

// f(name in the file, tensor name, shape, local slice, first, whether this rank is to write it)
template <class F>
void for_each_moment(const ParameterStore& params, F&& f) {
  params.for_each([&](const std::string& name, Shape shape, const ParameterStore::Local& l) {
    f(name + ".m", NamedShape{name, shape}, l.m, l.first, l.counts);
    f(name + ".v", NamedShape{name, shape}, l.v, l.first, l.counts);
  });
}
template <class F>
void for_each_master(const ParameterStore& params, F&& f) {
  params.for_each([&](const std::string& name, Shape shape, const ParameterStore::Local& l) {
    f(name, NamedShape{name, shape}, l.master, l.first, l.counts);
  });
}

// Ranks that do not share maxima have scales of their own: fp8.safetensors is rank 0's, the others' files bear their
// rank.
inline bool has_own_scales(const Session& s) { return s.host.rank() > 0 && s.amax_group() != s.world.get(); }
inline std::string scales_file(const Session& s) {
  return has_own_scales(s) ? concat("fp8.rank-", s.host.rank(), ".safetensors") : "fp8.safetensors";
}

inline bool is_fp8_of_another_rank(const std::string& file) { return file.starts_with("fp8.rank-"); }

inline bool has_dynamic_loss_scale(const Session& s) {
  return loss_scaling(s.config.precision) == LossScaling::dynamic;
}

}  // namespace octet::BACKEND
