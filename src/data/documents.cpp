#include "data/documents.h"

#include <nlohmann/json.hpp>

#include "base/check.h"
#include "base/json.h"
#include "data/packed.h"
#include "data/token_file.h"

namespace octet {
namespace {

[[noreturn]] void refuse_packed(const std::filesystem::path& path) {
  bad_input("'", path.string(), "' is compressed: unpack it to text or JSONL first");
}

bool is_json(const std::filesystem::path& path) {
  const std::string extension = path.extension().string();
  for (const char* packed : {".gz", ".xz", ".bz2", ".zst", ".lz4", ".zip", ".parquet", ".arrow"})
    if (extension == packed) refuse_packed(path);
  return extension == ".jsonl" || extension == ".ndjson" || extension == ".json";
}

}  // namespace

DocumentFile::DocumentFile(const std::filesystem::path& path, DocumentOptions options)
    : file_(path, MappedFile::Access::sequential), options_(std::move(options)), json_(is_json(path)) {
  const std::string_view bytes = file_.bytes();
  constexpr auto kTokens = TokenFileHeader::kMagic;
  if (bytes.starts_with(std::string_view(kTokens.data(), kTokens.size())))
    bad_input("'", path.string(), "' is a token file, not text: name the text that it was made from");
  if (is_packed(bytes)) refuse_packed(path);
  if (bytes.starts_with("\xff\xfe") || bytes.starts_with("\xfe\xff"))
    bad_input("'", path.string(), "' is UTF-16: convert it to UTF-8 first (iconv -f UTF-16 -t UTF-8)");
  if (bytes.starts_with("\xef\xbb\xbf")) position_ = 3;
}

bool DocumentFile::next(Raw& raw) {
  const std::string_view bytes = file_.bytes(),
                         separator = json_ ? std::string_view("\n") : std::string_view(options_.separator);
  while (position_ < bytes.size()) {
    const size_t found = separator.empty() ? std::string_view::npos : bytes.find(separator, position_);
    std::string_view part = bytes.substr(position_, found == std::string_view::npos ? found : found - position_);
    const bool first = line_ == 0, last = found == std::string_view::npos;
    position_ = last ? bytes.size() : found + separator.size();
    ++line_;
    if (json_ && part.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    if (!json_) {
      while (!first && (part.starts_with('\n') || part.starts_with("\r\n")))
        part.remove_prefix(part[0] == '\r' ? 2 : 1);
      while (!last && part.ends_with('\n')) part.remove_suffix(part.ends_with("\r\n") ? 2 : 1);
      if (part.empty()) continue;
    }
    raw = {part, json_ ? line_ : 0};
    return true;
  }
  return false;
}

std::string_view DocumentFile::text(const Raw& raw, std::string& storage) const {
  if (!json_) return raw.bytes;
  const std::string place = concat("'", path().string(), "' line ", raw.line, ": ");
  try {
    nlohmann::json object = nlohmann::json::parse(raw.bytes);
    const auto entry = object.is_object() ? object.find(options_.json_key) : object.end();
    if (!object.is_object())
      bad_input(place, "not a JSON object: each line must be one, such as {\"", options_.json_key, "\": \"…\"}");
    if (entry == object.end())
      bad_input(place, "no key \"", options_.json_key, "\": name the key that holds the text with --json-key");
    if (!entry->is_string())
      bad_input(place, "\"", options_.json_key, "\" is not a string but ", entry->type_name(),
                ": correct or remove the line");
    storage = std::move(entry->get_ref<std::string&>());
  } catch (const nlohmann::json::exception& e) {
    bad_input(place, "not valid JSON (", json_fault(e), "): each line must be a whole object; correct or remove it");
  }
  return storage;
}

}  // namespace octet
