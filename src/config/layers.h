#pragma once
// Lists of what each layer does, made short: the blocks of a model mostly do the same.
#include <string>
#include <vector>

namespace octet {

// Lines that differ only in the number after "layers." become one, with "layers.*" and their count.
std::vector<std::string> merge_layers(const std::vector<std::string>& lines);

}  // namespace octet
