#pragma once
// Checks that all ranks have the same config and data: each reads its own, and nodes may have different copies.
#include <filesystem>
#include <string>

#include "config/config.h"
#include "host/host.h"

namespace octet::BACKEND {

std::string of_rank_0(Host&, std::string text);  // its text, on every rank
// What rank 0 sees, on every rank: over a network a folder may look older on one node than on the next.
bool rank_0_sees(Host&, const std::filesystem::path&);

struct DataPrints {
  uint64_t train = 0, validation = 0;  // fingerprints
};
// InputError on a rank whose config or data differ from rank 0's: says what differs, and how.
void require_same_run(Host&, const RunConfig&, const DataPrints&);

}  // namespace octet::BACKEND
