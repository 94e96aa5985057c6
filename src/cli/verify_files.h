#pragma once
// Files of expected values: their form is checked before an engine reads them.
#include "config/model.h"
#include "host/engine.h"

namespace octet {

void check_form(const VerifyRequest& request, const ModelConfig& model);

}  // namespace octet
