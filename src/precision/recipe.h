#pragma once
// The precision of each product of each Linear. Single products (fprop, dgrad, wgrad) can be overridden, as by
// Transformer Engine's override_linear_precision.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tensor/operand.h"

namespace octet {

struct LinearRecipe {  // of one Linear
  Precision fprop = Precision::plain, dgrad = Precision::plain, wgrad = Precision::plain;
  bool fast_fprop = true, fast_dgrad = false, fast_wgrad = false;  // Hopper's fast FP8 accumulation
  std::string reason;                                              // why not FP8, for messages

  bool fp8() const { return fprop == Precision::fp8 || dgrad == Precision::fp8 || wgrad == Precision::fp8; }
  Forms x() const {
    return {fprop == Precision::plain || wgrad == Precision::plain, fprop == Precision::fp8, wgrad == Precision::fp8};
  }
  Forms dy() const {
    return {dgrad == Precision::plain || wgrad == Precision::plain, dgrad == Precision::fp8, wgrad == Precision::fp8};
  }
  Forms w() const {
    return {fprop == Precision::plain || dgrad == Precision::plain, fprop == Precision::fp8, dgrad == Precision::fp8};
  }
};

// What a model is declared with.
struct Recipe {
  // The recipe of the Linear in block `layer` whose weight is these parameters stacked; shape: of all together.
  std::function<LinearRecipe(const std::vector<std::string>& names, int64_t layer, Shape)> linear = [](auto&&...) {
    return LinearRecipe{};
  };
  // A line for each Linear that was asked about, and for the head, which is never in FP8.
  std::shared_ptr<std::vector<std::string>> report = std::make_shared<std::vector<std::string>>();
  DType gradient_format = DType::e5m2;  // e4m3 under format "E4M3"
  bool per_expert_scales = false;       // of the experts of a layer, of activations and gradients
};

}  // namespace octet
