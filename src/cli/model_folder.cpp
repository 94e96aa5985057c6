#include "cli/model_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/files.h"
#include "base/refused.h"
#include "data/checkpoints.h"
#include "host/engine.h"

namespace octet {
namespace fs = std::filesystem;

void require_folder(const std::string& path) {
  std::error_code why;
  const fs::file_status status = fs::status(path, why);
  if (why && !is_wrong_name(why.value())) refused_path("read", path, why.value());
  if (!fs::exists(status))
    bad_input(path, ": ", why && why != std::errc::no_such_file_or_directory ? why.message() : "no such folder",
              "; give one with config.json and model.safetensors, as transformers saves it or octet train");
  if (!fs::is_directory(status))
    bad_input(path, " is a file; give the folder that holds config.json and model.safetensors");
}

fs::path find_model_folder(const std::string& path) {
  require_folder(path);
  std::error_code why;
  const fs::path folder = path;
  const bool model = fs::exists(folder / "config.json", why);
  if (why && !is_wrong_name(why.value())) refused_path("read", path, why.value());
  if (why) bad_input(path, ": ", why.message(), "; give a folder that you may read");
  const bool checkpoint = fs::exists(folder / "state.json", why);
  if (checkpoint) require_complete(folder);
  if (model || checkpoint) return folder;
  const std::vector<fs::path> all = complete_checkpoints(folder);
  if (all.empty())
    bad_input(path, " holds no model: neither config.json nor a complete checkpoint step-N is in it; give the folder ",
              "of a checkpoint, or of a model as transformers saves it");
  return all.back();
}

ModelFolder open_model_folder(const std::string& path) {
  ModelFolder found{.path = find_model_folder(path)};
  std::error_code none;
  if (fs::exists(found.path / "state.json", none)) found.state = read_checkpoint_state(found.path);
  found.model = load_model_config((found.path / "config.json").string());
  return found;
}

std::vector<int64_t> end_ids(const fs::path& folder) {
  std::error_code none;
  for (const char* name : {"generation_config.json", "config.json"}) {
    if (!fs::is_regular_file(folder / name, none)) continue;
    const std::string file = (folder / name).string();
    const json fields = read_json(file);
    json ids = fields.is_object() ? fields.value("eos_token_id", json()) : json();
    if (ids.is_null()) continue;
    if (!ids.is_array()) ids = json::array({ids});
    for (const json& id : ids)
      if (!id.is_number_integer())
        bad_input(file, ": eos_token_id: expected a token id or a list of them, got ", show(ids));
    return ids;
  }
  return {};
}

void write_generation_config(const fs::path& from, const ModelConfig& model, const fs::path& to) {
  std::error_code none;
  if (fs::exists(from / "generation_config.json", none)) return copy_file_to(from / "generation_config.json", to);
  json fields{{"_from_model_config", true}};
  if (model.bos_id >= 0) fields["bos_token_id"] = model.bos_id;
  if (model.eos_id >= 0) fields["eos_token_id"] = model.eos_id;
  if (const std::vector<int64_t> ends = end_ids(from); ends.size() > 1 && ends[0] == model.eos_id)
    fields["eos_token_id"] = ends;
  write_file(to / "generation_config.json", fields.dump(2) + "\n");
}

std::vector<NamedShape> parameters_of(const ModelConfig& model) {
  RunConfig config = parse_config(json{{"model", write_model_section(model)}}.dump(), "the model");
  config.training.seq_len.set(std::min<int64_t>(16, model.max_positions));
  config.training.global_batch_size.set(1);
  std::vector<NamedShape> all;
  for (auto& [name, shape] : plan::engine().plan(config, 1, Target{}).shapes) all.push_back({name, shape});
  return all;
}

void copy_file_to(const fs::path& from, const fs::path& folder) {
  write_file(folder / from.filename(), MappedFile(from, MappedFile::Access::sequential).bytes());
}

// Makes and locks the folder in which a result is staged: two writers would mix their files.
static int make_alone(const fs::path& staged, const fs::path& result) {
  while (true) {
    make_folders(staged);
    const int fd = ::open(staged.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) continue;
    if (fd < 0) refused_path("write", staged, errno);
    if (::flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {  // other errors: a file system without locks
      ::close(fd);
      bad_input("cannot write ", result.string(),
                ": another process is writing it: wait until it ends, or give another folder");
    }
    struct stat mine, there;
    if (::fstat(fd, &mine) == 0 && ::stat(staged.c_str(), &there) == 0 && mine.st_ino == there.st_ino &&
        mine.st_dev == there.st_dev)
      return fd;
    ::close(fd);  // the other one finished between our open and our lock, and this is its result
  }
}

StagedFolder::StagedFolder(const std::string& result) {
  if (result.empty()) bad_input("--out is empty: give the folder to write");
  result_ = fs::absolute(result).lexically_normal();
  if (!result_.has_filename()) result_ = result_.parent_path();  // "folder/"
  std::error_code none;
  if (fs::exists(result_, none) && !(fs::is_directory(result_, none) && fs::is_empty(result_, none)))
    bad_input(result_.string(), " exists; remove it or give another folder");
  staged_ = result_.parent_path() / concat(".writing-", result_.filename().string());
  lock_ = make_alone(staged_, result_);
  for (const auto& rest : fs::directory_iterator(staged_, none)) fs::remove_all(rest.path(), none);  // of one that died
}

StagedFolder::~StagedFolder() {
  std::error_code none;
  if (!committed_) fs::remove_all(staged_, none);  // while we still hold its lock
  ::close(lock_);
}

void StagedFolder::commit() {
  sync_path(staged_);
  std::error_code none;
  if (fs::exists(result_, none)) fs::remove(result_, none);  // an empty folder
  rename_durably(staged_, result_);
  committed_ = true;
}

}  // namespace octet
