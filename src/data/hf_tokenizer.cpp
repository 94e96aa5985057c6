// A tokenizer.json of Hugging Face as a Tokenizer. Text goes the way it goes in their tokenizers library: added tokens
// are taken out, the rest is normalised, added tokens that are searched in normalised text are taken out, the rest is
// split into words, and each word is encoded by byte-pair encoding. The files that transformers keeps beside it say
// which tokens begin and end a text.
#include <algorithm>
#include <filesystem>
#include <map>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "data/hf_added.h"
#include "data/hf_bpe.h"
#include "data/hf_decoder.h"
#include "data/hf_steps.h"
#include "data/tokenizer_model.h"
#include "data/unicode.h"

namespace octet {
namespace {
namespace fs = std::filesystem;
using Kind = Tokenizer::Kind;

Fields parsed(std::string_view bytes, const std::string& where) {
  constexpr int kDeepest = 100;  // what reads and prints it recurses
  const auto watch = [&](int depth, Fields::parse_event_t, Fields&) {
    if (depth > kDeepest) bad_input(where, ": nested more than ", kDeepest, " deep");
    return true;
  };
  try {
    return Fields::parse(bytes, watch);
  } catch (const Fields::exception& e) { bad_input(where, ": not valid JSON (", json_fault(e), "): copy it again"); }
}

Fields beside(const fs::path& tokenizer, const char* name) {  // null: not there
  std::error_code none;
  const fs::path path = tokenizer.parent_path() / name;
  if (tokenizer.filename() != "tokenizer.json" || !fs::is_regular_file(path, none)) return nullptr;
  return parsed(read_file(path), path.string());
}

std::string content_of(const Fields& token) {  // "</s>" or {"content": "</s>", …}
  if (token.is_string()) return token;
  return token.is_object() && token.contains("content") && token["content"].is_string() ? token["content"] : "";
}

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_visible(char c) { return c > 0x20 && c < 0x7f; }

class HfTokenizer final : public Tokenizer::Model {
 public:
  HfTokenizer(const Fields& all, const fs::path& path)
      : bpe_(part(all, "model", path.string()), path.string() + ": model"),
        normalize_(read_normalizer(all.value("normalizer", Fields()), path.string() + ": normalizer")),
        split_(read_pre_tokenizer(all.value("pre_tokenizer", Fields()), path.string() + ": pre_tokenizer")),
        decode_(read_decoder(all.value("decoder", Fields()), path.string() + ": decoder")) {
    read_vocabulary(all, path);
    read_edges(all, path);
    find_cuts();
  }

  std::vector<int> encode(std::string_view text, Tokenizer::Words* words) const override {
    return encode(text, Standing{}, words);
  }
  std::vector<int> encode_rest(std::string_view text, Tokenizer::Words* words) const override {
    return encode(text, Standing{.begins = false, .first = false}, words);
  }

  // Between a letter and a space before a letter, and behind a newline between two lines that have text at the seam, no
  // usual expression looks across. find_cuts() sees to the rest.
  size_t cut(std::string_view text, size_t least) const override {
    if (!has_cuts_) return std::string_view::npos;
    for (size_t at = std::max<size_t>(least, 2); at + 1 < text.size(); ++at) {
      const bool space = text[at] == ' ' && is_letter(text[at - 1]) && is_letter(text[at + 1]);
      if (space || (text[at - 1] == '\n' && is_visible(text[at - 2]) && is_visible(text[at]))) return at;
    }
    return std::string_view::npos;
  }

  std::string decode(std::span<const int> ids) const override {
    std::vector<std::string> pieces;
    for (const int id : ids)
      if (id >= 0 && id < vocab_size() && kinds_[size_t(id)] != Kind::control && kinds_[size_t(id)] != Kind::other)
        pieces.push_back(pieces_[size_t(id)]);
    return pieces.empty() ? "" : decode_(std::move(pieces));
  }

  int vocab_size() const override { return int(pieces_.size()); }
  int bos() const override { return bos_; }
  int eos() const override { return eos_; }
  int unk() const override { return bpe_.unk(); }
  Kind kind(int id) const override { return id >= 0 && id < vocab_size() ? kinds_[size_t(id)] : Kind::other; }
  float score(int) const override { return 0; }
  std::string piece(int id) const override { return pieces_[size_t(id)]; }

 private:
  std::vector<int> encode(std::string_view text, Standing standing, Tokenizer::Words* words) const {
    std::vector<int> ids;
    const std::string valid = to_valid_utf8(text);
    for (const AddedTokens::Piece& piece : as_written_.split(valid)) {
      if (piece.id >= 0) ids.push_back(piece.id);
      else encode_plain(piece.text, standing, words, ids);
      standing = {.begins = true, .first = false};
    }
    return ids;
  }

  void encode_plain(std::string_view text, Standing standing, Tokenizer::Words* known, std::vector<int>& ids) const {
    std::string normal(text);
    if (normalize_) normalize_(normal, standing);
    for (const AddedTokens::Piece& piece : normalised_.split(normal)) {
      if (piece.id >= 0) {
        ids.push_back(piece.id);
      } else {
        WordList words{std::string(piece.text)};
        split_(words, standing);
        for (const std::string& word : words) encode_word(word, known, ids);
      }
      standing = {.begins = true, .first = false};
    }
  }

  void encode_word(const std::string& word, Tokenizer::Words* known, std::vector<int>& ids) const {
    if (!known || word.size() > Tokenizer::kKnownBytes) return bpe_.encode(word, ids);
    const auto [entry, is_new] = known->try_emplace(word);
    if (is_new) bpe_.encode(word, entry->second);
    ids.insert(ids.end(), entry->second.begin(), entry->second.end());
  }

  void put(int id, const std::string& piece, Kind kind) {
    if (size_t(id) >= pieces_.size()) pieces_.resize(size_t(id) + 1), kinds_.resize(size_t(id) + 1, Kind::other);
    pieces_[size_t(id)] = piece;
    kinds_[size_t(id)] = kind;
  }

  void read_vocabulary(const Fields& all, const fs::path& path) {
    bpe_.for_each_piece([&](const std::string& piece, int id) {
      const bool byte = bpe_.byte_fallback() && piece.size() == 6 && piece.starts_with("<0x") && piece[5] == '>';
      put(id, piece, byte ? Kind::byte : id == bpe_.unk() ? Kind::unknown : Kind::normal);
    });
    std::vector<AddedToken> tokens = read_added_tokens(all, path.string()), as_written, normalised;
    for (AddedToken& t : tokens) {
      added_ids_[t.content] = t.id;
      if (t.normalized && normalize_) normalize_(t.content, Standing{});
      put(t.id, t.content, t.special ? Kind::control : Kind::normal);  // they decode as they are searched for
      (t.normalized ? normalised : as_written).push_back(t);
    }
    as_written_ = AddedTokens(as_written);
    normalised_ = AddedTokens(normalised);
    if (pieces_.empty()) bad_input(path.string(), ": its vocabulary is empty");
  }

  int special_id(const std::string& content) const {
    const auto found = added_ids_.find(content);
    return found != added_ids_.end() ? found->second : bpe_.id_of(content);
  }

  // What the post-processor puts around one text: tokens before it and behind it.
  void read_template(const Fields& processor, const std::string& where) {
    if (processor.is_null()) return;
    const std::string type = type_of(processor, where);
    if (type == "Sequence" && processor.contains("processors"))
      for (const Fields& one : processor["processors"]) read_template(one, where + ".processors");
    if (type != "TemplateProcessing" || !processor.contains("single")) return;
    bool behind = false;
    for (const Fields& one : processor["single"]) {
      if (one.contains("Sequence")) behind = true;
      if (!one.contains("SpecialToken")) continue;
      const int id = special_id(content_of(one["SpecialToken"].value("id", Fields())));
      if (behind) eos_ = id;
      else if (bos_ < 0) bos_ = id;
    }
  }

  void read_edges(const Fields& all, const fs::path& path) {
    read_template(all.value("post_processor", Fields()), path.string() + ": post_processor");
    const Fields config = beside(path, "tokenizer_config.json"), map = beside(path, "special_tokens_map.json");
    const auto named = [&](const char* key) {
      for (const Fields* fields : {&config, &map})
        if (fields->is_object() && fields->contains(key))
          if (const int id = special_id(content_of((*fields)[key])); id >= 0) return id;
      return -1;
    };
    if (config.is_object() && config.contains("add_bos_token") && config["add_bos_token"].is_boolean())
      bos_ = config["add_bos_token"] == true ? std::max(named("bos_token"), bos_) : -1;
    if (const int id = named("eos_token"); id >= 0) eos_ = id;
    for (const char* name : {"</s>", "<|endoftext|>", "<|end_of_text|>", "<eos>", "<|eos|>"})
      if (eos_ < 0) eos_ = special_id(name);
  }

  // Cuts change nothing if no piece spans one. What expressions and normalisation do beyond that is tried out.
  void find_cuts() {
    has_cuts_ = true;
    const auto behind = [](const std::string& piece, std::string_view what) {
      const size_t at = piece.find(what);
      return at == std::string::npos ? std::string_view() : std::string_view(piece).substr(at + what.size());
    };
    for (const std::string& piece : pieces_) {
      for (const char* mark : {" ", "\xe2\x96\x81", "\xc4\xa0"}) {  // U+2581 and U+0120 stand for spaces
        const size_t at = piece.find(mark, 1);
        if (at != std::string::npos && is_letter(piece[at - 1])) has_cuts_ = false;
      }
      for (const char* newline : {"\n", "\xc4\x8a"})  // U+010A stands for a newline
        if (const auto rest = behind(piece, newline); !rest.empty() && is_visible(rest[0])) has_cuts_ = false;
    }
    for (const auto* added : {&as_written_, &normalised_}) has_cuts_ = has_cuts_ && !added->takes_space();
    const std::string probe = "Ab cd don't We're x's y2 z 3a B,c d. E f\ng 1\n2 H.\nI (j) k\n-l m\xc3\xa9n o\n";
    const std::vector<int> whole = encode(probe, nullptr);
    for (size_t least = 1; has_cuts_;) {
      const size_t at = cut(probe, least);
      if (at == std::string::npos) break;
      std::vector<int> parts = encode(std::string_view(probe).substr(0, at), nullptr);
      const std::vector<int> rest = encode_rest(std::string_view(probe).substr(at), nullptr);
      parts.insert(parts.end(), rest.begin(), rest.end());
      if (parts != whole) has_cuts_ = false;
      least = at + 1;
    }
  }

  Bpe bpe_;
  Normalizer normalize_;
  PreTokenizer split_;
  Decoder decode_;
  AddedTokens as_written_, normalised_;  // by the text that they are searched in
  std::map<std::string, int> added_ids_;
  std::vector<std::string> pieces_;  // by id
  std::vector<Kind> kinds_;
  int bos_ = -1, eos_ = -1;
  bool has_cuts_ = false;
};

}  // namespace

std::unique_ptr<const Tokenizer::Model> hf_tokenizer(std::string_view bytes, const fs::path& path) {
  const Fields all = parsed(bytes, path.string());
  const Fields model = all.is_object() ? all.value("model", Fields()) : Fields();
  if (!model.is_object() || !model.contains("vocab"))
    bad_input("'", path.string(),
              "' is neither a tokenizer.json (it has no \"model\" with a \"vocab\") nor a sentencepiece model");
  try {
    return std::make_unique<HfTokenizer>(all, path);
  } catch (const Fields::exception& e) { bad_input("'", path.string(), "' is damaged: ", e.what()); }
}

}  // namespace octet
