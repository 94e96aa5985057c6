#include "host/attempts.h"

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/refused.h"
#include "host/launch.h"

namespace octet {

void Attempts::keep(const std::exception& e) {
  const auto* refused = dynamic_cast<const std::filesystem::filesystem_error*>(&e);
  if (refused) try {
      refused_path("use", refused->path1(), refused->code().value());
    } catch (const Error& told) { return keep(told); }
  if (!dynamic_cast<const InputError*>(&e) && !dynamic_cast<const SystemError*>(&e)) throw;
  code_ = dynamic_cast<const Error&>(e).exit_code();
  message_ = e.what();
}

void Attempts::agree() {
  const int mine = std::exchange(code_, 0);
  std::vector<int> codes(size_t(host_.size()));
  host_.all_gather(codes.data(), &mine, sizeof mine);
  const auto first = std::find_if(codes.begin(), codes.end(), [](int code) { return code != 0; });
  if (first == codes.end()) return;
  const int rank = int(first - codes.begin());
  const auto others = std::count_if(first + 1, codes.end(), [](int code) { return code != 0; });
  std::string text = message_;
  if (rank > 0) text = concat("rank ", rank, " on ", machine_name(), ": ", text);
  if (others > 0) text += concat(" (and so on ", others, others == 1 ? " other rank)" : " other ranks)");
  uint64_t size = text.size();
  host_.broadcast(&size, sizeof size, rank);
  text.resize(size);
  host_.broadcast(text.data(), size, rank);
  throw AttemptFailed(text, *first);
}

}  // namespace octet
