#pragma once
// The product of any sizes and alignment, where cuBLASLt has no kernel: that of a router with an odd number of experts,
// whose rows of bf16 begin at odd addresses. fp32 and bf16 factors, summed in fp32, in one order.
#include "ops/ops.h"

namespace octet::BACKEND {

// g without its bias, and without its residual where that is null here.
void plain_product(Stream&, const GemmArgs& g, Tensor residual);

}  // namespace octet::BACKEND
