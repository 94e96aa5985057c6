#pragma once
// Which of cuBLASLt's algorithms each product runs by: chosen by timing, before the arenas are reserved. The cpu and
// plan engines have nothing to choose.
#include <span>
#include <string>
#include <vector>

#include "config/product.h"
#include "device/device.h"

namespace octet::BACKEND {

// Every distinct product since the last call, counted by the plan engine; the others know none.
std::vector<ProductShape> take_products(Device&);

// Times every shape that has no plan yet, on buffers of its real size that are freed afterwards, and adds what it found
// to Device::Options::plan_cache. A product that was never tuned takes the library's first proposal that runs; those of
// few rows have a kernel of their own and nothing to choose.
void tune_products(Stream&, std::span<const ProductShape>);

// The chosen plans as text, JSON lines as in the plan cache: a checkpoint carries them, so that a resumed run computes
// the same bits. Plans of another card or cuBLASLt version are left out with a warning.
std::string export_plans(Device&);
void import_plans(Device&, const std::string& plans);

bool has_cudnn();  // attention through cuDNN is part of this executable

}  // namespace octet::BACKEND
