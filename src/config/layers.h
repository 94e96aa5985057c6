#pragma once
// Shortens lists of what each layer does, as most blocks of a model do the same.
#include <string>
#include <vector>

namespace octet {

// Lines that differ only in the number after "layers." become one, with "layers.*" and their count.
std::vector<std::string> merge_layers(const std::vector<std::string>& lines);

}  // namespace octet
