// octet verify: compares this program with another one's reference values, for example after an import.
#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "base/json.h"
#include "cli/model_folder.h"
#include "cli/model_run.h"
#include "cli/ranks.h"
#include "cli/report.h"
#include "cli/verify_files.h"

namespace octet {
namespace {
namespace fs = std::filesystem;

VerifyRequest request_of(const Arguments& arguments, const Words& words) {
  VerifyRequest r{.model = words.leading[0], .trajectory = arguments.text("trajectory")};
  if (words.leading.size() > 1) r.expected = words.leading[1];
  require_folder(r.model);
  if (r.expected.empty() && r.trajectory.empty()) {  // what lies in the folder
    const fs::path folder = r.model;
    if (fs::exists(folder / "expected.safetensors")) r.expected = folder / "expected.safetensors";
    if (fs::exists(folder / "trajectory.json")) r.trajectory = folder / "trajectory.json";
    if (r.expected.empty() && r.trajectory.empty())
      arguments.refuse(concat(r.model, " holds no expected.safetensors: give the file of expected values"));
  }
  if (!r.trajectory.empty() && !r.trajectory.ends_with(".json"))
    bad_input(r.trajectory, ": a trajectory is NAME.json, with its batches in NAME.safetensors next to it");
  return r;
}

RunConfig config_of(const Arguments& arguments, const Words& words, const std::string& model) {
  const json document{{"model", {{"config", model}}}, {"checkpoint", {{"dir", ""}}}};
  std::vector<std::string> changes{"precision.param_dtype=" + arguments.text("dtype"),
                                   "device=" + arguments.text("device")};
  changes.insert(changes.end(), words.changes.begin(), words.changes.end());
  return parse_config(text_of(document, model), model, changes);
}

double got(const VerifyLine& line) {
  return line.measure == "absolute" ? line.absolute : line.measure == "relative" ? line.relative : line.metric;
}

void print_table(const std::vector<VerifyLine>& lines, const std::vector<std::string>& absent) {
  size_t width = 4, bad = 0;
  const VerifyLine* worst = nullptr;
  for (const VerifyLine& line : lines) width = std::max(width, line.what.size());
  std::printf("%-*s  %9s  %9s  %9s  %s\n", int(width), "", "absolute", "relative", "metric", "tolerance");
  for (const VerifyLine& l : lines) {
    std::printf("%-*s  %9.2e  %9.2e  %9.2e  %.0e %-8s  %s\n", int(width), l.what.c_str(), l.absolute, l.relative,
                l.metric, l.tolerance, l.measure.c_str(), l.ok ? "ok" : "FAIL");
    bad += !l.ok;
    if (!worst || !(got(l) / l.tolerance <= got(*worst) / worst->tolerance)) worst = &l;
  }
  for (const std::string& part : absent) std::printf("%s: not in the file, not compared\n", part.c_str());
  if (!worst) return;
  std::printf("%zu values compared, %zu beyond tolerance; the worst, %s, is at %.3g of its tolerance: %s\n",
              lines.size(), bad, worst->what.c_str(), got(*worst) / worst->tolerance, bad ? "FAIL" : "ok");
}

void print_json(const std::vector<VerifyLine>& lines, const std::vector<std::string>& absent, bool ok) {
  json list = json::array();
  for (const VerifyLine& l : lines)
    list.push_back({{"what", l.what},
                    {"absolute", l.absolute},
                    {"relative", l.relative},
                    {"metric", l.metric},
                    {"measure", l.measure},
                    {"tolerance", l.tolerance},
                    {"ok", l.ok}});
  print_report({{"ok", ok}, {"lines", list}, {"absent", absent}});
}

int verify(const Arguments& arguments, Host* mpi) {
  const Words words = split_changes(arguments.words());
  if (words.leading.empty() || words.leading.size() > 2)
    arguments.refuse("give the folder of a model, the file of expected values, then section.key=value");
  VerifyRequest request = request_of(arguments, words);
  const RunConfig config = config_of(arguments, words, request.model);
  if (config.data.intra_document_mask)
    bad_input("data.intra_document_mask: the sequences of the reference are whole documents; leave it out");
  check_form(request, config.model);
  const int64_t ranks = count_ranks(arguments, mpi);
  log_as(config, mpi);
  const Engine& engine = choose_engine(config);
  const Target target = target_of(engine, config);
  const std::vector<std::string> absent =
      request.expected.empty() ? std::vector<std::string>{} : absent_parts(request.expected);
  // Logits and loss alone take the weights, no gradients and moments: a large model fits.
  request.trains =
      ranks > 1 || config.fp8.enabled || !request.trajectory.empty() || std::ranges::count(absent, "gradients") == 0;
  const Planner planner = request.trains ? planner_for(target, int(ranks)) : inference_planner(target, /*prompt=*/0);
  std::vector<VerifyLine> lines;
  on_ranks(mpi, ranks, [&](Host& host) {
    std::vector<VerifyLine> mine = engine.verify(config, host, planner, request);
    if (host.rank() == 0 || mpi) lines = std::move(mine);
  });
  bool ok = !lines.empty();
  for (const VerifyLine& line : lines) ok = ok && line.ok;
  if (!mpi || mpi->rank() == 0) {
    if (arguments.has("json")) print_json(lines, absent, ok);
    else print_table(lines, absent);
  }
  return ok ? 0 : kCheckFailed;
}

}  // namespace

Command verify_command() {
  return {
      .name = "verify",
      .usage = "HF_DIR [EXPECTED.safetensors] [section.key=value ...] [OPTIONS]",
      .summary = "compare logits, loss, gradients and training steps with reference values",
      .options = {{"trajectory", "T.json", "also train and compare every step (batches in T.safetensors)"},
                  {"device", "auto|cpu|cuda", "where to compute", "auto"},
                  {"dtype", "fp32|bf16|fp16", "storage type of weights and activations", "fp32"},
                  kRanksOption,
                  {"json", "", "print the comparison as JSON"}},
      .more =
          "HF_DIR is a model saved by transformers. If no files of expected values are given, its own\n"
          "expected.safetensors and trajectory.json are used. Exit code 1: a value is outside its tolerance.\n"
          "EXPECTED holds input_ids [B,T] (int32) and logits [B,T,V] of the other program, and whatever else is to\n"
          "be compared: loss [1] and each grad.PARAMETER, both with labels [B,T], the target of each position or\n"
          "-100 for none; for Mixtral router_logits [L,BT,E] and aux_loss [1]. In Python:\n\n"
          "  ids = torch.randint(0, model.config.vocab_size, (2, 64))\n"
          "  safetensors.torch.save_file({\"input_ids\": ids.int(), \"logits\": model(ids).logits.float()},\n"
          "                              \"expected.safetensors\")\n\n"
          "  octet verify tests/golden/llama-gqa\n"
          "  octet verify model model/expected.safetensors --trajectory model/trajectory.json --dtype bf16\n"
          "  octet verify model expected.safetensors --ranks 2 parallel.zero_stage=3\n",
      .run = verify,
      .runs = Command::Runs::on_ranks};
}

}  // namespace octet
