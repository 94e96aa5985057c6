#pragma once
// The cases on which engines are compared. parity_cases.cpp is compiled once per engine: it makes the inputs of a Case
// from its seed, the same on every engine, runs one op, and copies its outputs to the host.
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace octet::parity {

// scalar: one fp32, to 1e-5; rounded: fp32 values that were rounded to bf16 on the way, at random perhaps
enum class Compare { bits, close, codes, scalar, rounded };

struct Output {
  std::string name;
  DType dtype;
  Compare compare;
  std::vector<std::byte> bytes;
};

// Bits of Case::variant: the forms of the operand that a producer writes; kA to kD: whatever else an op's cases vary.
inline constexpr int kPlain = 1, kQ = 2, kQt = 4, kE5m2 = 8, kUnmeasured = 16, kA = 32, kB = 64, kC = 128, kD = 256;

struct Case {
  std::string op;
  DType type = DType::f32;       // of the activations
  int64_t n = 1, c = 16, d = 0;  // rows, columns, and a third size where an op has one
  int variant = kPlain;
  bool shifted = false;    // every tensor starts one element off its alignment
  bool reference = false;  // the same numbers, computed and stored in f64 (cpu only)
  uint64_t seed = 0;
};
inline std::ostream& operator<<(std::ostream& o, const Case& k) {
  return o << k.op << ' ' << name_of(k.type) << " n=" << k.n << " c=" << k.c << " d=" << k.d << " variant=" << k.variant
           << (k.shifted ? " shifted" : "") << " seed=" << k.seed;
}

class Engine {
 public:
  virtual ~Engine() = default;
  virtual std::vector<Output> run(const Case&) = 0;
};

}  // namespace octet::parity

namespace octet::cpu {
std::unique_ptr<parity::Engine> parity_engine();
}
namespace octet::gpu {
std::unique_ptr<parity::Engine> parity_engine();  // null: no card
}
