#pragma once
// Masters from and to host memory and safetensors files, each rank its own slice.
#include "data/hf_model.h"
#include "nn/parameters.h"

namespace octet::BACKEND {

std::vector<double> to_host(Stream&, Tensor);  // of any float type; waits
template <class T>
void from_host(Stream&, Tensor dst, const std::vector<T>& src);  // rounded to dst's type; waits

// Reads every parameter from the files, checking names and shapes first; publishes.
void read_masters(Stream&, ParameterStore&, const SafetensorsModel&, const HfLayout&);
std::vector<NamedShape> names_of(const ParameterStore&);

}  // namespace octet::BACKEND
