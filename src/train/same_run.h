#pragma once
// Ranks read config and data each for itself, and nodes may have copies of their own: that all have the same.
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
// InputError on a rank that would train otherwise than rank 0: says what differs, and how.
void require_same_run(Host&, const RunConfig&, const DataPrints&);

}  // namespace octet::BACKEND
