#include "config/precision.h"

namespace octet {

LossScaling loss_scaling(const PrecisionConfig& precision) {
  if (precision.loss_scaling != LossScaling::automatic) return precision.loss_scaling;
  return precision.param_dtype == DType::f16 ? LossScaling::dynamic : LossScaling::none;
}

float first_loss_scale(const PrecisionConfig& precision) {
  return loss_scaling(precision) == LossScaling::none ? 1.f : float(precision.loss_scale);
}

}  // namespace octet
