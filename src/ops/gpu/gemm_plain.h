#pragma once
// Matrix products of any size and alignment, for where cuBLASLt has no kernel: a router with an odd number of experts
// has bf16 rows that are not aligned to 4 bytes. fp32 and bf16 factors, summed in fp32 in a fixed order.
#include "ops/ops.h"

namespace octet::BACKEND {

// g without its bias; `residual` instead of g.residual.
void plain_product(Stream&, const GemmArgs& g, Tensor residual);

}  // namespace octet::BACKEND
