// octet inspect: what is in a checkpoint, a model of transformers, a file of weights, tokens or a tokenizer.
#include "cli/inspect.h"

#include <cstdio>
#include <filesystem>

#include "base/files.h"
#include "base/progress.h"
#include "cli/command.h"
#include "cli/report.h"
#include "data/token_file.h"

namespace octet {
namespace {
namespace fs = std::filesystem;

enum class Kind { folder, safetensors, tokens, tokenizer };

// By content, not by name, so that renamed files are recognised.
Kind kind_of(const std::string& path) {
  std::error_code none;
  if (fs::is_directory(path, none)) return Kind::folder;
  if (path.ends_with(".index.json")) return Kind::safetensors;
  const MappedFile file(path);
  const std::string_view bytes = file.bytes(), magic(TokenFileHeader::kMagic.data(), TokenFileHeader::kMagic.size());
  if (bytes.starts_with(magic)) return Kind::tokens;
  if (path.ends_with(".safetensors") || (bytes.size() > 8 && bytes[8] == '{')) return Kind::safetensors;
  if (path.ends_with(".tokens")) return Kind::tokens;   // whose reader says what is wrong with it
  if (bytes.starts_with("\n")) return Kind::tokenizer;  // field 1 of a sentencepiece model: its pieces
  if (bytes.starts_with("{") && path.ends_with(".json"))
    return Kind::tokenizer;  // whose reader says if it is something else
  bad_input(path, " is neither a token file nor safetensors nor a tokenizer, nor a folder with a model");
}

int finish(const json& report, bool as_json, void (*print)(const json&)) {
  if (as_json) print_report(report);
  else print(report);
  return report.value("ok", true) ? 0 : kCheckFailed;
}

int run_inspect(const Arguments& arguments, Host*) {
  const bool as_json = arguments.has("json");
  const std::vector<std::string>& words = arguments.words();
  if (arguments.has("diff")) {
    arguments.expect_words(2, 2);
    return finish(inspect_difference(words[0], words[1]), as_json, print_difference);
  }
  arguments.expect_words(1, 1);
  const InspectOptions options{.tokenizer = arguments.text("tokenizer"),
                               .documents = arguments.integer("documents", 0),
                               .quick = arguments.has("quick"),
                               .tensors = arguments.has("tensors")};
  switch (kind_of(words[0])) {
    case Kind::tokens:
      return finish(inspect_tokens(words[0], options), as_json, print_tokens);
    case Kind::tokenizer:
      return finish(inspect_tokenizer(words[0]), as_json, print_tokenizer);
    case Kind::safetensors:
      return finish(inspect_safetensors(words[0]), as_json, [](const json& r) { print_model(r, true); });
    case Kind::folder:
      break;
  }
  const json report = inspect_model_folder(words[0], options);
  return options.tensors ? finish(report, as_json, [](const json& r) { print_model(r, true); })
                         : finish(report, as_json, [](const json& r) { print_model(r, false); });
}

}  // namespace

void print_field(const char* name, const std::string& value) { std::printf("%-16s %s\n", name, value.c_str()); }
std::string commas(const json& count) { return with_commas(count.get<int64_t>()); }

Command inspect_command() {
  return {
      .name = "inspect",
      .usage = "PATH [OPTIONS] | --diff A B [--json]",
      .summary = "show what is in a checkpoint, model, token file or safetensors file",
      .options = {{"diff", "", "compare two models: their configs, and every tensor"},
                  {"tokenizer", "PATH", "decodes a token file's documents (default: the one next to it that made it)"},
                  {"documents", "N", "documents of a token file to show", "3"},
                  {"tensors", "", "also list the tensors of a folder"},
                  {"quick", "", "skip what reads whole files: checksums, every token"},
                  {"json", "", "print it as JSON"}},
      .more =
          "PATH is a checkpoint step-N, a run's folder, a folder saved by transformers, a .safetensors file or\n"
          "index, a token file, a tokenizer.model or a tokenizer.json. Exit code 1: a checksum of the checkpoint\n"
          "does not match.\n"
          "\n"
          "  octet inspect out/tiny_llama\n"
          "  octet inspect out/train.tokens --documents 10\n"
          "  octet inspect --diff out/run/step-00000100 out/run/step-00000200\n"
          "  octet inspect model.safetensors --json\n",
      .run = run_inspect};
}

}  // namespace octet
