// Delayed scaling: delayed_scale() (formulas.h) over all slots, and the scale of a cast without history. A history of
// 1024 rows is long for one thread: 32 threads roll a slot's column and find its maximum, to which delayed_scale() is
// then applied as to a history of one.
#include "ops/formulas.h"
#include "ops/gpu/vector.cuh"

namespace octet::BACKEND {

namespace {

struct Slots {
  float *scale, *history;
  const float* largest;
  uint32_t *amax, *nonfinite;
  StepState* state;
  int64_t S, L;
  bool most_recent, te_compat, power_of_2, rescale;
};

// A block has 32 slots x 32 threads. Rolling moves row i+1 to row i, 32 rows at a time: all of them are
// read before any is written.
__global__ void __launch_bounds__(1024) update_kernel(const Slots a) {
  __shared__ float maxima[32][33];
  const int slot = threadIdx.x % 32, lane = threadIdx.x / 32;
  const int64_t s = blockIdx.x * int64_t(32) + slot;
  const float last = s < a.S ? __uint_as_float(a.amax[s]) : 0.f;
  const bool finite = last <= kLargestFloat, roll = last != 0 && (finite || a.te_compat);
  const bool rescale = a.rescale || (s < a.S && !used_scale(a.scale, a.history, a.L, a.S, s));  // before rolling
  float largest = 0;
  for (int64_t base = 0; base < a.L; base += 32) {
    const int64_t i = base + lane;
    float v = 0;
    if (roll && i < a.L) v = i < a.L - 1 ? a.history[(i + 1) * a.S + s] : last;
    __syncthreads();
    if (roll && i < a.L) {
      largest = v > largest ? v : largest;  // skips NaN
      a.history[i * a.S + s] = i > 0 ? v : 0.f;
    }
  }
  maxima[lane][slot] = largest;
  __syncthreads();
  if (lane != 0 || s >= a.S) return;
  for (int k = 1; k < 32; ++k) largest = maxima[k][slot] > largest ? maxima[k][slot] : largest;
  if (roll) {
    float row = 0;
    const ScaleRule rule{a.largest[s], 1, 1, a.most_recent, a.te_compat, a.power_of_2, rescale};
    a.scale[4 * s] = delayed_scale(rule, a.scale[4 * s], a.most_recent ? last : largest, &row);
  }
  if (!finite) {
    ++a.nonfinite[s];
    if (a.state) atomicAdd(&a.state->nonfinite_casts, 1u);  // integers: the order does not matter
  }
  a.amax[s] = 0;
}

// One thread a group, as groups have few slots. The smallest scale is found before any is written.
__global__ void inherit_kernel(float* scale, const float* history, const int32_t* groups, int64_t G, int64_t L,
                               int64_t S) {
  const int64_t g = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (g >= G) return;
  const int64_t first = groups[2 * g], last = first + groups[2 * g + 1];
  float smallest = 0;  // none
  for (int64_t i = first; i < last; ++i)
    if (used_scale(scale, history, L, S, i)) smallest = smallest > 0 ? fminf(smallest, scale[4 * i]) : scale[4 * i];
  for (int64_t i = first; i < last; ++i)
    if (smallest > 0 && !used_scale(scale, history, L, S, i)) scale[4 * i] = smallest;
}

__global__ void current_kernel(float* scale, const uint32_t* amax, float largest, bool power_of_2) {
  const float a = __uint_as_float(*amax);
  *scale = a > 0 && a <= kLargestFloat ? scale_of(largest, a, power_of_2) : 1.f;
}

}  // namespace

void update_scales(Stream& s, const ScaleState& u, Tensor state) {
  const Timed timed(s, Kernel::scaling);
  const int64_t S = u.amax.numel(), L = u.history.rows();
  CHECK(u.scale.numel() == 4 * S && u.history.cols() == S && u.largest.numel() == S && u.nonfinite.numel() == S,
        "scale ", u.scale.shape, ", history ", u.history.shape, " for ", S, " slots");
  if (S == 0) return;
  const Slots a{.scale = u.scale.ptr<float>(),
                .history = u.history.ptr<float>(),
                .largest = u.largest.ptr<float>(),
                .amax = u.amax.ptr<uint32_t>(),
                .nonfinite = u.nonfinite.ptr<uint32_t>(),
                .state = static_cast<StepState*>(state.data),
                .S = S,
                .L = L,
                .most_recent = u.most_recent,
                .te_compat = u.te_compat,
                .power_of_2 = u.power_of_2,
                .rescale = u.rescale};
  update_kernel<<<blocks_for(S, 32), 1024, 0, raw(s)>>>(a);
  CUDA_CHECK(cudaGetLastError());
}

void inherit_scales(Stream& s, const ScaleState& u, Tensor groups) {
  const Timed timed(s, Kernel::scaling);
  inherit_kernel<<<blocks_for(groups.rows(), 128), 128, 0, raw(s)>>>(u.scale.ptr<float>(), u.history.ptr<float>(),
                                                                     groups.ptr<int32_t>(), groups.rows(),
                                                                     u.history.rows(), u.amax.numel());
  CUDA_CHECK(cudaGetLastError());
}

void current_scale(Stream& s, float* scale, const uint32_t* amax, float largest, bool power_of_2) {
  const Timed timed(s, Kernel::scaling);
  current_kernel<<<1, 1, 0, raw(s)>>>(scale, amax, largest, power_of_2);
  CUDA_CHECK(cudaGetLastError());
}

}  // namespace octet::BACKEND
