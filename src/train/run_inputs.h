#pragma once
// What a run finds on the disk before it builds a model: its token files, and the folder of its checkpoints.
#include <filesystem>
#include <memory>
#include <optional>

#include "data/loader.h"
#include "data/run_folder.h"
#include "host/host.h"
#include "train/session.h"

namespace octet::BACKEND {

struct RunData {
  Loader train;
  std::optional<Loader> validation;
};
RunData open_data(const RunConfig&);

// The newest checkpoint in checkpoint.dir, if the same --resume PATH saved it and PATH lies elsewhere: there a run
// began, which the same command, put into the queue again, continues.
std::optional<std::filesystem::path> begun_before(const RunConfig&);

// Rank 0 takes checkpoint.dir for this run alone, and finds now what would make a save fail hours later. Null on the
// other ranks, and where nothing is saved.
std::unique_ptr<RunFolder> take_folder(const RunConfig&, const RunData&, Host&);
// AttemptFailed on all ranks unless each sees the folder that rank 0 has taken.
void require_shared_folder(const RunConfig&, const RunFolder* taken, Host&);

}  // namespace octet::BACKEND
