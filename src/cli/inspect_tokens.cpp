// octet inspect of token files and tokenizers.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>

#include "base/progress.h"
#include "cli/inspect.h"
#include "data/token_file.h"
#include "data/tokenizer.h"

namespace octet {
namespace {
namespace fs = std::filesystem;
constexpr int64_t kShown = 256;   // tokens of a document
constexpr size_t kColumns = 150;  // of its text, for people
constexpr int kPieces = 20;       // of a tokenizer, from where its merged pieces begin

std::string hexadecimal(uint64_t n) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(n));
  return text;
}

// The one that was given, or one in the file's folder with the fingerprint in its header.
std::optional<Tokenizer> tokenizer_for(const TokenFile& file, const std::string& given) {
  const uint64_t made_by = file.header().tokenizer_fingerprint;
  if (!given.empty()) {
    Tokenizer tokenizer(given);
    if (made_by != 0 && tokenizer.fingerprint() != made_by)
      bad_input(given, " is not the tokenizer that made ", file.path().string(), ": give that one with --tokenizer");
    return tokenizer;
  }
  std::error_code none;
  const fs::path folder = file.path().has_parent_path() ? file.path().parent_path() : fs::path(".");
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    if ((entry.path().extension() != ".model" && entry.path().filename() != "tokenizer.json") ||
        !entry.is_regular_file(none))
      continue;
    try {
      if (Tokenizer tokenizer(entry.path()); tokenizer.fingerprint() == made_by) return tokenizer;
    } catch (const InputError&) {  // another program's .model
    }
  }
  return {};
}

std::string valid_utf8(const std::string& text) {  // the first or last character may have been cut
  const json safe = json::parse(json(text).dump(-1, ' ', false, json::error_handler_t::replace));
  return safe.get<std::string>();
}

json first_documents(const TokenFile& file, const std::optional<Tokenizer>& tokenizer, int64_t count) {
  json list = json::array();
  for (int64_t d = 0; d < std::min(count, file.documents()); ++d) {
    const int64_t start = file.document_start(d);
    const int64_t end = d + 1 < file.documents() ? file.document_start(d + 1) : file.tokens();
    std::vector<int32_t> ids(size_t(std::clamp<int64_t>(end - start, 0, kShown)));
    file.read(start, ids);
    json document{{"start", start}, {"tokens", end - start}, {"ids", ids}};
    if (tokenizer) document["text"] = valid_utf8(tokenizer->decode(ids));
    list.push_back(std::move(document));
  }
  return list;
}

}  // namespace

json inspect_tokens(const std::string& path, const InspectOptions& options) {
  const TokenFile file(path);
  const TokenFileHeader& h = file.header();
  if (!options.quick) file.verify();
  const auto tokenizer = tokenizer_for(file, options.tokenizer);
  json report{{"kind", "tokens"},
              {"path", path},
              {"bytes", int64_t(fs::file_size(path))},
              {"version", h.version},
              {"token_bytes", h.token_bytes},
              {"tokens", h.tokens},
              {"documents", h.documents},
              {"vocab_size", h.vocab_size},
              {"tokenizer", h.tokenizer_fingerprint ? json(hexadecimal(h.tokenizer_fingerprint)) : json()},
              {"source_bytes", h.source_bytes},
              {"bos_id", h.flags & TokenFileHeader::kBos ? json(h.bos_id) : json()},
              {"eos_id", h.flags & TokenFileHeader::kEos ? json(h.eos_id) : json()},
              {"every_token_checked", !options.quick}};
  report["first"] = first_documents(file, tokenizer, options.documents);
  return report;
}

void print_tokens(const json& r) {
  print_field(r["path"].get<std::string>().c_str(), "token file");
  print_field("tokens", concat(commas(r["tokens"]), " of ", commas(r["documents"]), " documents, ", r["token_bytes"],
                               " bytes each"));
  print_field("vocabulary", commas(r["vocab_size"]));
  print_field("tokenizer", r["tokenizer"].is_null() ? "unknown" : r["tokenizer"].get<std::string>());
  const double tokens = std::max(1., r["tokens"].get<double>());
  const double text_bytes = r["source_bytes"].get<double>();
  char ratio[32];
  std::snprintf(ratio, sizeof ratio, "%.2f", text_bytes / tokens);
  print_field("text",
              text_bytes == 0 ? "of unknown size" : concat(human_bytes(text_bytes), ", ", ratio, " bytes a token"));
  const auto edge = [](const json& id) { return id.is_null() ? std::string("none") : id.dump(); };
  print_field("each document", concat("begins with ", edge(r["bos_id"]), ", ends with ", edge(r["eos_id"])));
  print_field("file", human_bytes(r["bytes"].get<double>()) +
                          (r["every_token_checked"] == true ? ", every token and index entry is valid" : ""));
  bool undecoded = false;
  for (const json& d : r["first"]) {
    std::string text = d.contains("text") ? d["text"].dump() : d["ids"].dump();
    undecoded |= !d.contains("text");
    if (text.size() > kColumns) {
      size_t end = kColumns;
      while ((uint8_t(text[end]) & 0xc0) == 0x80) --end;  // not inside a character
      text = text.substr(0, end) + " ...";
    }
    std::printf("\nfrom token %s, %s tokens:\n  %s\n", commas(d["start"]).c_str(), commas(d["tokens"]).c_str(),
                text.c_str());
  }
  if (undecoded) std::printf("\nTo see them as text, give their tokenizer with --tokenizer.\n");
}

json inspect_tokenizer(const std::string& path) {
  const Tokenizer t(path);
  json first = json::array();
  for (int id = std::min(t.vocab_size(), 259); id < t.vocab_size() && int(first.size()) < kPieces; ++id)
    first.push_back(t.piece(id));
  return {{"kind", "tokenizer"},
          {"form", t.is_sentencepiece() ? "sentencepiece" : "tokenizer.json"},
          {"path", path},
          {"vocab_size", t.vocab_size()},
          {"bos_id", t.bos()},
          {"eos_id", t.eos()},
          {"unk_id", t.unk()},
          {"fingerprint", hexadecimal(t.fingerprint())},
          {"pieces_from_259", first}};
}

void print_tokenizer(const json& r) {
  print_field(r["path"].get<std::string>().c_str(), concat("tokenizer (", r["form"].get<std::string>(), ")"));
  print_field("vocabulary", commas(r["vocab_size"]));
  print_field("fingerprint", r["fingerprint"]);
  print_field("ids", concat("bos ", r["bos_id"], ", eos ", r["eos_id"], ", unk ", r["unk_id"]));
  std::string pieces;
  for (const json& piece : r["pieces_from_259"]) pieces += (pieces.empty() ? "" : " ") + piece.get<std::string>();
  if (!pieces.empty()) print_field("from 259 on", pieces);
}

}  // namespace octet
