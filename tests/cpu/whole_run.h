#pragma once
// Whole runs of the tiny model on two token files, as `octet train` starts them, and what they log.
#include <sstream>

#include "base/json.h"
#include "cpu/tiny_model.h"
#include "data/scratch.h"

namespace octet::BACKEND {
namespace fs = std::filesystem;

class WholeRun : public testing::Test {
 protected:
  RunConfig config(const Changes& changes = {}) const {
    const auto list = [&](const char* name, const std::vector<std::string>& files) {
      return concat("data.", name, "=", json(files).dump());
    };
    return tiny_config(with({list("train", {a_, b_}), "training.steps=5", "log.progress=false", "log.level=warning",
                             concat("log.file=", (folder_ / "log.jsonl").string())},
                            changes));
  }
  LoaderConfig loader(std::vector<std::string> files) const {
    return {.files = std::move(files), .seq_len = 16, .vocab_size = 120, .seed = 3};
  }
  TrainResult train(const RunConfig& c, Host& host) const {
    fs::remove(folder_ / "log.jsonl");
    return cpu::engine().train(c, host, planner_for(target_of(cpu::engine(), c), host.size()));
  }
  TrainResult train(const RunConfig& c) const {
    LoneHost host;
    return train(c, host);
  }
  std::vector<json> logged(const char* key) const {  // records that have it
    std::vector<json> all;
    std::istringstream lines(read_file(folder_ / "log.jsonl"));
    for (std::string line; std::getline(lines, line);)
      if (const json record = json::parse(line); record.contains(key)) all.push_back(record);
    return all;
  }
  std::vector<double> losses() const {
    std::vector<double> all;
    for (const json& record : logged("loss")) all.push_back(record["loss"]);
    return all;
  }

  const Threads one_{1};
  const Scratch folder_;
  const std::string a_ = token_file(folder_ / "a", 700, 120), b_ = token_file(folder_ / "b", 500, 120, 60, 11);
};

}  // namespace octet::BACKEND
