// Prepares OpenBLAS, once per process.
#include "ops/cpu/blas.h"

#include <cstdlib>
#include <string_view>

// Inside an OpenBLAS with a choice of kernels: they read OPENBLAS_CORETYPE anew. Null in builds without that choice.
extern "C" {
[[gnu::weak]] void gotoblas_dynamic_init();
[[gnu::weak]] void gotoblas_dynamic_quit();
}

namespace octet::BACKEND {

namespace {

// A processor younger than the library is taken for one without AVX (in Debian 12, an Intel of 2023), and products run
// at a fifth of their speed. Where that happened and the user chose nothing, the kernels for what the processor can do
// are taken.
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

}  // namespace

void prepare_blas() {
  [[maybe_unused]] static const bool done = [] {
    choose_kernels();
    openblas_set_num_threads(1);  // from now on it runs on the thread that calls it
    return true;
  }();
}

}  // namespace octet::BACKEND
