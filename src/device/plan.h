#pragma once
// Internals of the plan engine: what its device records, and how its ops and collectives add to it.
#include <vector>

#include "config/product.h"
#include "device/device.h"

namespace octet::BACKEND {

struct Device::Impl {
  WorkLog work{};
  std::vector<ProductShape> products;  // distinct ones, in the order of their first call
  uintptr_t next_address = 0;
};

inline void count(Stream& s, Kernel kernel, double flops, double bytes) {
  Work& w = s.device().impl().work[size_t(kernel)];
  w.flops += flops;
  w.bytes += bytes;
  ++w.calls;
}

// Every distinct product since the last call, with its number of calls.
std::vector<ProductShape> take_products(Device&);

}  // namespace octet::BACKEND
