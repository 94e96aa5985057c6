// The bf16 instances of the grouped product. Transposed factors are read as they are stored.
#include "ops/gpu/grouped_kernel.cuh"

namespace octet::BACKEND::grouped {

void launch_rows_bf16(Stream& s, const Params& p, bool mn_major) {
  if (mn_major) launch<Form<Input::bf16, false, true, false, false, false>>(s, p);
  else launch<Form<Input::bf16, false, false, false, false, false>>(s, p);
}
void launch_sums_bf16(Stream& s, const Params& p) { launch<Form<Input::bf16, true, true, true, false, true>>(s, p); }

}  // namespace octet::BACKEND::grouped
