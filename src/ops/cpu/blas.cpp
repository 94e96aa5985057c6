// Prepares OpenBLAS, once per process.
#include "ops/cpu/blas.h"

#include <omp.h>

#include <cstdlib>
#include <string_view>
#include <vector>

#include "base/memory.h"

// Internal to OpenBLAS builds with dynamic dispatch: makes it read OPENBLAS_CORETYPE again. Null in other builds.
extern "C" {
[[gnu::weak]] void gotoblas_dynamic_init();
[[gnu::weak]] void gotoblas_dynamic_quit();
[[gnu::weak]] void* blas_memory_alloc(int);  // a buffer of a call, kept for later ones
[[gnu::weak]] void blas_memory_free(void*);
}

namespace octet::BACKEND {

namespace {

// OpenBLAS takes a processor newer than itself for one without AVX (Debian 12's does so with an Intel of 2023), and its
// products run at a fifth of their speed. In that case, unless the user has chosen, this selects kernels by what the
// processor supports.
void choose_kernels() {
#ifdef __x86_64__
  const std::string_view chosen = openblas_get_corename();
  const bool old = chosen == "Prescott" || chosen == "Core2" || chosen == "Nehalem" || chosen == "Sandybridge";
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  if (!old || !avx2 || std::getenv("OPENBLAS_CORETYPE") || !gotoblas_dynamic_init || !gotoblas_dynamic_quit) return;
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
  setenv("OPENBLAS_CORETYPE", avx512 ? "SkylakeX" : "Haswell", 0);
  gotoblas_dynamic_quit();
  gotoblas_dynamic_init();
#endif
}

// Within ulimit -v: a buffer for each thread, before anything else takes the room; see Device::total_bytes().
void take_buffers() {
  constexpr int64_t kBuffer = int64_t{128} << 20;
  if (!blas_memory_alloc || !blas_memory_free) return;
  std::vector<void*> buffers;
  for (int i = 0; i < omp_get_max_threads(); ++i)
    if (const int64_t left = address_space_left(); left < INT64_MAX && left > kBuffer)
      buffers.push_back(blas_memory_alloc(0));
  for (void* b : buffers) blas_memory_free(b);
}

}  // namespace

void prepare_blas() {
  [[maybe_unused]] static const bool done = [] {
    choose_kernels();
    openblas_set_num_threads(1);  // it runs on the calling thread only
    take_buffers();
    return true;
  }();
}

}  // namespace octet::BACKEND
