#pragma once
// A gradient is the derivative of a loss: in f64 the error of its central difference falls as h^2 (halving h divides it
// by more than 3.5), or is below 1e-9 (linear functions, and rounding). For an op or for a whole model.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <span>
#include <string>

#include "base/rng.h"

namespace octet {

struct Variable {
  std::string name;
  std::span<double> values;
  std::span<const double> gradient;  // what backward says, not touched by `loss`
};
struct DerivativeCheck {
  double h = 1e-3;  // error h^2 f''': far above rounding, far below the next term
  double exact = 1e-9;
  int64_t samples = 150;  // elements of each variable, spread by a counter-based draw; all where it has no more
};

// Errors of the difference quotient of `loss` in `x` against `gradient`, for steps h and h/2.
inline std::pair<double, double> difference_errors(double& x, double gradient, double h,
                                                   const std::function<double()>& loss) {
  const double x0 = x;
  const auto error = [&](double step) {
    x = x0 + step;
    const double up = loss();
    x = x0 - step;
    const double down = loss();
    x = x0;
    return std::fabs((up - down) / (2 * step) - gradient);
  };
  const double whole = error(h);
  return {whole, error(h / 2)};
}

inline void expect_derivative(std::span<const Variable> variables, const std::function<double()>& loss,
                              const DerivativeCheck& c = {}) {
  ASSERT_TRUE(std::isfinite(loss()));
  for (const Variable& v : variables) {
    const int64_t size = int64_t(v.values.size());
    ASSERT_EQ(v.values.size(), v.gradient.size()) << v.name;
    const int64_t count = std::min(size, c.samples);
    bool any = false;
    for (int64_t j = 0; j < count; ++j) {
      const uint64_t draw = random_bits(7, hash(v.name), uint64_t(j));
      const size_t i = size_t(count == size ? j : int64_t(draw % uint64_t(size)));
      const auto [whole, half] = difference_errors(v.values[i], v.gradient[i], c.h, loss);
      any = any || v.gradient[i] != 0;
      EXPECT_TRUE(whole < c.exact || half < c.exact || whole / half > 3.5)
          << v.name << '[' << i << "]: gradient " << v.gradient[i] << ", errors " << whole << " and " << half;
    }
    EXPECT_TRUE(any) << v.name << ": all gradients seen are zero";
  }
}

}  // namespace octet
