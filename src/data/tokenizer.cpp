#include "data/tokenizer.h"

#include "base/check.h"
#include "base/files.h"
#include "base/rng.h"
#include "data/tokenizer_model.h"

namespace octet {
namespace fs = std::filesystem;

namespace {

bool is_json(std::string_view bytes) {
  const size_t first = bytes.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && bytes[first] == '{';
}

}  // namespace

fs::path tokenizer_file(const fs::path& place) {
  std::error_code none;
  if (!fs::is_directory(place, none)) return place;
  for (const char* name : {"tokenizer.model", "tokenizer.json"})
    if (fs::exists(place / name, none)) return place / name;
  return {};
}

void copy_tokenizer(const fs::path& place, const fs::path& to) {
  const fs::path path = tokenizer_file(place);
  std::error_code none;
  if (!fs::is_regular_file(path, none)) return;
  const std::string bytes = read_file(path);
  write_file(to / (is_json(bytes) ? "tokenizer.json" : "tokenizer.model"), bytes);
  if (path.filename() != "tokenizer.json") return;
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"})
    if (const fs::path beside = path.parent_path() / name; fs::is_regular_file(beside, none))
      write_file(to / name, read_file(beside));
}

Tokenizer::Tokenizer(const fs::path& place) {
  const fs::path path = tokenizer_file(place);
  if (path.empty()) bad_input("neither tokenizer.model nor tokenizer.json is in the folder '", place.string(), "'");
  const MappedFile file(path);
  const std::string_view bytes = file.bytes();
  sentencepiece_ = !is_json(bytes);
  model_ = sentencepiece_ ? sentencepiece_model(bytes, path) : hf_tokenizer(bytes, path);
  fingerprint_ = hash(bytes);
}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

std::vector<int> Tokenizer::encode(std::string_view text, Words* words) const { return model_->encode(text, words); }
std::vector<int> Tokenizer::encode_rest(std::string_view text, Words* words) const {
  return model_->encode_rest(text, words);
}
size_t Tokenizer::cut(std::string_view text, size_t least) const { return model_->cut(text, least); }
std::string Tokenizer::decode(std::span<const int> ids) const { return model_->decode(ids); }
int Tokenizer::vocab_size() const { return model_->vocab_size(); }
int Tokenizer::bos() const { return model_->bos(); }
int Tokenizer::eos() const { return model_->eos(); }
int Tokenizer::unk() const { return model_->unk(); }
Tokenizer::Kind Tokenizer::kind(int id) const { return model_->kind(id); }
float Tokenizer::score(int id) const { return model_->score(id); }
std::string Tokenizer::piece(int id) const {
  CHECK(id >= 0 && id < vocab_size(), "token ", id, " of ", vocab_size());
  return model_->piece(id);
}

}  // namespace octet
