#pragma once
// The decoder of a tokenizer.json: pieces back to text.
#include <functional>
#include <string>
#include <vector>

#include "data/hf_json.h"

namespace octet {

using Decoder = std::function<std::string(std::vector<std::string> pieces)>;
Decoder read_decoder(const Fields& fields, const std::string& where);

}  // namespace octet
