#pragma once
// Autotuning: which of cuBLASLt's algorithms each product runs with, chosen by timing before the arenas are reserved.
// The cpu and plan engines have nothing to choose.
#include <span>
#include <string>
#include <vector>

#include "config/product.h"
#include "device/device.h"

namespace octet::BACKEND {

// Every distinct product since the last call, as counted by the plan engine; empty on the others.
std::vector<ProductShape> take_products(Device&);

// Times every shape that has no plan yet, on buffers of its real size that are freed afterwards, and adds the winners
// to the file Device::Options::plan_cache. A product that was never tuned takes the first of cuBLASLt's proposals that
// runs. Products of few rows have a kernel of their own, and are not tuned (nor are the few that it cannot take).
void tune_products(Stream&, std::span<const ProductShape>);

// The chosen plans as JSON lines, as in the plan cache: checkpoints carry them, so that a resumed run computes the same
// bits. Plans of another card or cuBLASLt version are left out with a warning.
std::string export_plans(Device&);
void import_plans(Device&, const std::string& plans);

bool has_cudnn();  // this executable was built with cuDNN's attention

}  // namespace octet::BACKEND
