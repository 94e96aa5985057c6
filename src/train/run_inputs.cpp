#include "train/run_inputs.h"

#include <filesystem>

#include "base/files.h"
#include "base/log.h"
#include "base/rng.h"
#include "data/checkpoints.h"
#include "data/tokenizer.h"
#include "host/attempts.h"
#include "train/checkpoint.h"
#include "train/same_run.h"

namespace octet::BACKEND {
namespace {

LoaderConfig loader_config(const RunConfig& c, const std::vector<std::string>& files, Split split) {
  return {.files = files,
          .seq_len = c.training.seq_len,
          .vocab_size = c.model.vocab_size,
          .seed = uint64_t(*c.training.seed),
          .ignore_document_starts = c.data.document_loss_mask,
          .documents = bounds_of(c),
          .split = split,
          .held_out = c.data.validation_fraction};
}
// What is wrong with a file is said with the option that names it: a user may have given the other one only.
Loader opened(const RunConfig& c, const char* option, LoaderConfig config) try {
  return Loader(std::move(config));
} catch (const InputError& e) { bad_input(c.where, ": ", option, ": ", e.what()); }
void check_tokenizer(const RunConfig& c, uint64_t of_tokens) {
  if (c.data.tokenizer->empty()) return;
  const std::filesystem::path found = tokenizer_file(*c.data.tokenizer);
  if (found.empty())
    bad_input(c.where, ": data.tokenizer: neither tokenizer.model nor tokenizer.json is in the folder '",
              *c.data.tokenizer, "': name a file, or data.tokenizer= to save none");
  const std::string file = found.string();
  std::error_code none;
  if (!std::filesystem::is_regular_file(file, none))
    log_warning("data.tokenizer: there is no file ", file, "; checkpoints are saved without it");
  else if (const uint64_t own = hash(read_file(file)); of_tokens && own != of_tokens)
    bad_input(c.where, ": data.tokenizer: '", file, "' is not the tokenizer of ", c.data.train->front(),
              ": name the one that made the token files, or data.tokenizer= to save none");
}

void warn_of_other_run(const RunConfig& c, const std::string& dir) {
  const std::vector<std::filesystem::path> there = complete_checkpoints(dir);
  const std::string how = c.checkpoint.resume;
  if (how == "auto" || there.empty() || begun_before(c)) return;
  const int64_t last = checkpoint_step(there.back());
  const std::filesystem::path from = how;
  const auto folder = newest_checkpoint(from).value_or(from.has_filename() ? from : from.parent_path());
  std::error_code none;
  if (how == "none" || (std::filesystem::exists(folder, none) && checkpoint_step(folder) < last))
    log_warning(dir, " holds checkpoints of another run up to step ", last,
                ": a later --resume auto continues that one; give this run a checkpoint.dir of its own");
}

}  // namespace

std::optional<std::filesystem::path> begun_before(const RunConfig& c) {
  const std::string how = c.checkpoint.resume, dir = c.checkpoint.dir;
  if (how == "auto" || how == "none" || dir.empty()) return {};
  const auto newest = newest_checkpoint(dir);
  const std::string way =
      std::filesystem::weakly_canonical(how).lexically_relative(std::filesystem::weakly_canonical(dir));
  if (!newest || !way.starts_with("..")) return {};
  try {
    const json by = read_checkpoint_state(*newest).at("config").at("checkpoint").at("resume");
    return by == how ? newest : std::nullopt;
  } catch (const json::exception&) {  // saved by a program that did not say
    return {};
  }
}

RunData open_data(const RunConfig& c) {
  const bool held_out = c.data.validation->empty() && c.data.validation_fraction > 0;
  LoaderConfig train = loader_config(c, c.data.train, held_out ? Split::train : Split::all);
  train.weights = c.data.weights;
  train.shuffle = c.data.shuffle;
  RunData data{opened(c, "data.train", std::move(train)), std::nullopt};
  if (c.training.eval_sequences == 0 || !(held_out || !c.data.validation->empty())) return data;
  LoaderConfig v =
      loader_config(c, held_out ? *c.data.train : *c.data.validation, held_out ? Split::held_out : Split::all);
  v.shuffle = false;
  data.validation.emplace(opened(c, held_out ? "data.train" : "data.validation", std::move(v)));
  const uint64_t ours = data.train.tokenizer_fingerprint(), theirs = data.validation->tokenizer_fingerprint();
  if (ours && theirs && ours != theirs)  // its loss would mean nothing
    bad_input(c.where, ": data.validation: ", c.data.validation->front(), " was made with another tokenizer than ",
              c.data.train->front(), ": tokenize both with the same one");
  return data;
}

std::unique_ptr<RunFolder> take_folder(const RunConfig& c, const RunData& data, Host& host) {
  const std::string dir = c.checkpoint.dir;
  if (dir.empty() || host.rank() != 0) return nullptr;
  check_tokenizer(c, data.train.tokenizer_fingerprint());
  auto folder = std::make_unique<RunFolder>(dir);
  warn_of_other_run(c, dir);
  return folder;
}

void require_shared_folder(const RunConfig& c, const RunFolder* taken, Host& host) {
  if (c.checkpoint.dir->empty() || host.shares_memory()) return;
  const std::string mark = of_rank_0(host, taken ? taken->mark() : "");
  Attempts looks(host);
  if (host.rank() != 0 && !mark.empty()) looks([&] { require_marked(*c.checkpoint.dir, mark); });
  looks.agree();
}

}  // namespace octet::BACKEND
