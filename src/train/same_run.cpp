#include "train/same_run.h"

#include "base/build_id.h"
#include "base/json.h"
#include "host/engine.h"

namespace octet::BACKEND {
namespace {

// The first value that is another in b, or "".
std::string difference(const json& a, const json& b, const std::string& path) {
  if (a == b) return "";
  if (!a.is_object() || !b.is_object()) return concat(path, " is ", show(a), " here and ", show(b), " on rank 0");
  for (const auto& [key, value] : a.items())
    if (const std::string found = difference(value, b.value(key, json()), path.empty() ? key : path + "." + key);
        !found.empty())
      return found;
  return concat(path, " has more options on rank 0");
}

}  // namespace

std::string of_rank_0(Host& host, std::string text) {
  uint64_t size = text.size();
  host.broadcast(&size, sizeof size, 0);
  text.resize(size);
  host.broadcast(text.data(), size, 0);
  return text;
}

bool rank_0_sees(Host& host, const std::filesystem::path& path) {
  char there = host.rank() == 0 && std::filesystem::exists(path);  // or an error: moments are not to be lost over it
  host.broadcast(&there, sizeof there, 0);
  return there;
}

void require_same_run(Host& host, const RunConfig& config, const DataPrints& prints) {
  if (host.size() == 1) return;
  json mine = resolved(config);
  mine["engine"] = engine().name;
  mine["the build of the program"] = build_id();
  mine["the fingerprint of the training data"] = prints.train;
  mine["the fingerprint of the validation data"] = prints.validation;
  const std::string text = mine.dump(-1, ' ', false, json::error_handler_t::replace);
  const std::string first = of_rank_0(host, text);
  if (first == text) return;
  bad_input(difference(parse_json(text, "config"), parse_json(first, "config of rank 0"), ""),
            ": start all ranks with the same config, the same files and the same program");
}

}  // namespace octet::BACKEND
