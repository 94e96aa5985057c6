#include "data/checkpoints.h"

#include <algorithm>

#include "base/check.h"

namespace octet {
namespace fs = std::filesystem;

int64_t checkpoint_step(const fs::path& folder) {
  const std::string name = folder.filename().string();
  constexpr size_t kMostDigits = 18;
  if (name.size() < 6 || name.size() > 5 + kMostDigits || name.rfind("step-", 0) != 0 ||
      name.find_first_not_of("0123456789", 5) != std::string::npos)
    return -1;
  return std::stoll(name.substr(5));
}

std::vector<fs::path> complete_checkpoints(const fs::path& dir) {
  std::vector<fs::path> found;
  std::error_code why;
  fs::directory_iterator entries(dir, why);
  if (why && why != std::errc::no_such_file_or_directory && why != std::errc::not_a_directory)
    throw fs::filesystem_error("cannot be read", dir, why);
  for (const auto& entry : entries)
    if (checkpoint_step(entry.path()) >= 0 && fs::exists(entry.path() / "COMPLETE")) found.push_back(entry.path());
  std::ranges::sort(found, {}, checkpoint_step);
  return found;
}

void require_complete(const fs::path& folder) {
  std::error_code none;
  if (fs::exists(folder / "COMPLETE")) return;
  if (checkpoint_step(folder) >= 0 || fs::exists(folder / "state.json", none))
    bad_input(folder.string(), ": this checkpoint is incomplete (it has no file COMPLETE); use an older one");
  if (fs::exists(folder / "config.json", none))
    bad_input(folder.string(), " holds a model but no checkpoint: make one of it with octet import ", folder.string(),
              " --out FOLDER");
  bad_input(folder.string(), " holds no checkpoint; give a folder step-N that octet train has written");
}

std::string instead_of(const fs::path& folder) {
  const fs::path self = folder.has_filename() ? folder : folder.parent_path();
  std::vector<fs::path> older = complete_checkpoints(self.has_parent_path() ? self.parent_path() : ".");
  std::erase_if(older, [&](const fs::path& p) { return checkpoint_step(p) >= checkpoint_step(self); });
  if (older.empty()) return "no older one is beside it";
  const std::string next = older.back().string();
  return concat("take the older ", next, " (octet inspect ", next, " compares its checksums)");
}

json read_checkpoint_state(const fs::path& folder) {
  std::error_code none;
  if (!fs::is_directory(folder, none))
    bad_input(folder.string(), ": no such checkpoint folder; give a folder step-N that octet train has written");
  require_complete(folder);
  const std::string file = (folder / "state.json").string();
  json state;
  try {
    state = read_json(file);
  } catch (const InputError& e) { bad_input(e.what(), "; the checkpoint is damaged: ", instead_of(folder)); }
  if (!state.is_object()) bad_input(file, ": not an object; it was not written by octet");
  const json format = state.value("format", json());
  if (!format.is_number_unsigned()) bad_input(file, ": 'format' is missing or not a whole number");
  if (format != kCheckpointFormat)
    bad_input(file, ": format ", format.dump(), "; this program reads ", kCheckpointFormat,
              ": use the octet that wrote it");
  return state;
}

}  // namespace octet
