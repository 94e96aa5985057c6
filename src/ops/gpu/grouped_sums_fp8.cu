// The FP8 instances of the grouped product, weight gradient.
#include "ops/gpu/grouped_kernel.cuh"

namespace octet::BACKEND::grouped {

template <Input kIn, bool kSplit>
using Chosen = Form<kIn, false, false, true, kSplit, true>;

void launch_sums_fp8(Stream& s, const Params& p, DType a, bool fast) {
  if (a == DType::e5m2) fast ? launch<Chosen<Input::e5m2, false>>(s, p) : launch<Chosen<Input::e5m2, true>>(s, p);
  else fast ? launch<Chosen<Input::e4m3, false>>(s, p) : launch<Chosen<Input::e4m3, true>>(s, p);
}

}  // namespace octet::BACKEND::grouped
