#pragma once
// Files of expected values: their form is checked before an engine reads them. NAME.safetensors holds input_ids [B,T],
// logits [B,T,V] and, if it is to be compared: loss [1] and grad.PARAMETER of all parameters, both with labels [B,T];
// router_logits [L,BT,E] and aux_loss [1] of a Mixtral.
#include "config/model.h"
#include "host/engine.h"

namespace octet {

// Of "loss" and "gradients", what a file does not hold.
std::vector<std::string> absent_parts(const std::string& expected);
void check_form(const VerifyRequest& request, const ModelConfig& model);

}  // namespace octet
