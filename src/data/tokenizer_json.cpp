#include "data/tokenizer_json.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "base/check.h"

namespace octet {
namespace {
using Kind = Tokenizer::Kind;
constexpr const char* kSpaceMark = "\xe2\x96\x81";  // U+2581

bool adds_prefix(const Tokenizer& t) {
  const std::vector<int> ids = t.encode("a");
  return !ids.empty() && t.piece(ids[0]).starts_with(kSpaceMark);
}

// Byte-pair encoding gives its pieces falling scores in the order in which it made them; a unigram model does not.
bool is_representable(const Tokenizer& t) {
  int bytes = 0;
  float before = 1;
  for (int id = 0; id < t.vocab_size(); ++id) {
    bytes += t.kind(id) == Kind::byte;
    if (t.kind(id) == Kind::other) return false;
    if (t.kind(id) != Kind::normal) continue;
    if (t.score(id) >= before || t.score(id) != float(int(t.score(id)))) return false;
    before = t.score(id);
  }
  // A ligature, a full-width letter and runs of spaces, which normalisation would change.
  const std::string probe = "x  \xef\xac\x81 \xef\xbd\x81   \xc3\xa9";
  return bytes == 256 && t.decode(t.encode(probe)) == probe;
}

// The merges, which a sentencepiece model does not store: every pair of pieces whose concatenation is a piece, in the
// order of the resulting pieces; pairs of the same result in the order of their ids.
json merges_of(const Tokenizer& t) {
  std::map<std::string, int, std::less<>> ids;
  for (int id = 0; id < t.vocab_size(); ++id)
    if (t.kind(id) == Kind::normal) ids[t.piece(id)] = id;
  std::vector<std::tuple<int, int, int>> pairs;  // the piece made, and of what
  for (const auto& [piece, id] : ids)
    for (size_t cut = 1; cut < piece.size(); ++cut) {
      const auto left = ids.find(std::string_view(piece).substr(0, cut));
      const auto right = ids.find(std::string_view(piece).substr(cut));
      if (left != ids.end() && right != ids.end()) pairs.emplace_back(id, left->second, right->second);
    }
  std::sort(pairs.begin(), pairs.end());
  json merges = json::array();
  for (const auto& [made, left, right] : pairs)
    merges.push_back(concat(t.piece(left), " ", t.piece(right)));  // no piece holds a space
  return merges;
}

json special(const Tokenizer& t, int id) {
  return {{"id", id},        {"content", t.piece(id)}, {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false},    {"special", true}};
}

json begins_with_bos(const Tokenizer& t) {
  if (t.bos() < 0) return nullptr;
  const std::string bos = t.piece(t.bos());
  const auto token = [&](int type) { return json{{"SpecialToken", {{"id", bos}, {"type_id", type}}}}; };
  const auto text = [](const char* name, int type) { return json{{"Sequence", {{"id", name}, {"type_id", type}}}}; };
  json single = json::array(), pair = json::array();
  single.push_back(token(0)), single.push_back(text("A", 0));
  for (json part : {token(0), text("A", 0), token(1), text("B", 1)}) pair.push_back(std::move(part));
  json known = json::object();
  known[bos] = {{"id", bos}, {"ids", json::array({t.bos()})}, {"tokens", json::array({bos})}};
  return {{"type", "TemplateProcessing"}, {"single", single}, {"pair", pair}, {"special_tokens", known}};
}

}  // namespace

json tokenizer_json(const Tokenizer& t) {
  if (!is_representable(t)) return nullptr;
  json vocabulary = json::object(), added = json::array();
  for (int id = 0; id < t.vocab_size(); ++id) {
    vocabulary.get_ref<json::object_t&>().emplace_back(t.piece(id), id);  // its own search is linear
    if (t.kind(id) == Kind::control || t.kind(id) == Kind::unknown) added.push_back(special(t, id));
  }
  const bool prefix = adds_prefix(t);
  json decoders = json::array();
  decoders.push_back({{"type", "Replace"}, {"pattern", {{"String", kSpaceMark}}}, {"content", " "}});
  decoders.push_back({{"type", "ByteFallback"}});
  decoders.push_back({{"type", "Fuse"}});
  if (prefix) decoders.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  return {{"version", "1.0"},
          {"truncation", nullptr},
          {"padding", nullptr},
          {"added_tokens", added},
          {"normalizer", nullptr},
          {"pre_tokenizer",
           {{"type", "Metaspace"},
            {"replacement", kSpaceMark},
            {"prepend_scheme", prefix ? "first" : "never"},
            {"split", false}}},
          {"post_processor", begins_with_bos(t)},
          {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}},
          {"model",
           {{"type", "BPE"},
            {"dropout", nullptr},
            {"unk_token", t.unk() < 0 ? json(nullptr) : json(t.piece(t.unk()))},
            {"continuing_subword_prefix", nullptr},
            {"end_of_word_suffix", nullptr},
            {"fuse_unk", true},
            {"byte_fallback", true},
            {"ignore_merges", false},
            {"vocab", vocabulary},
            {"merges", merges_of(t)}}}};
}

}  // namespace octet
