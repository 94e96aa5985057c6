#pragma once
// Rotary frequencies (Su et al. 2021, arXiv:2104.09864) and their scalings, as transformers defines them:
//
//   unscaled   w_i = theta^(-2i/R)
//   dynamic    the same within max_position_embeddings, which is never exceeded here
//   linear     w_i / factor (Chen et al. 2023, arXiv:2306.15595)
//   llama3     wavelengths beyond original / low_freq_factor are stretched by the factor, those below
//              original / high_freq_factor are not, with a linear transition between them (arXiv:2407.21783)
//   yarn       dimensions with fewer than beta_slow rotations within the original range are stretched, those with more
//              than beta_fast are not; cos and sin are multiplied by the attention factor, which is
//              0.1 ln(factor) + 1 unless it is given (Peng et al. 2023, arXiv:2309.00071)
#include <vector>

#include "config/model.h"

namespace octet {

std::vector<double> rotary_frequencies(const ModelConfig& model);  // (rotary_dims / 2), angle of one position
double rotary_scale(const ModelConfig& model);                     // of cos and sin

}  // namespace octet
