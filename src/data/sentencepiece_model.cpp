// A sentencepiece model as a Tokenizer.
#include <sentencepiece_processor.h>

#include <algorithm>

#include "base/check.h"
#include "data/charsmap.h"
#include "data/tokenizer_model.h"

namespace octet {
namespace {

constexpr size_t kPartBytes = size_t(1) << 12;  // longer texts are cut: sentencepiece works fastest within the cache
constexpr size_t kWordBytes = size_t(1) << 16;  // a run without a space or newline that is cut by force
constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  // U+2581

using Words = Tokenizer::Words;
using Kind = Tokenizer::Kind;

class SentencePiece final : public Tokenizer::Model {
 public:
  SentencePiece(std::string_view bytes, const std::filesystem::path& path) {
    if (const std::string fault = fault_in_charsmaps(bytes); !fault.empty())
      bad_input("'", path.string(), "': its table of normalisation is damaged (", fault,
                "): copy or download it again");
    const auto status = sp_.LoadFromSerializedProto(bytes);
    if (!status.ok() || sp_.GetPieceSize() < 1)
      bad_input("'", path.string(), "' is not a sentencepiece model (", status.ToString(),
                "): name a tokenizer.model or tokenizer.json, or train one with 'octet tokenizer'");
    find_cuts();
  }

  std::vector<int> encode(std::string_view text, Words* words) const override;
  std::vector<int> encode_rest(std::string_view text, Words* words) const override;
  size_t cut(std::string_view text, size_t least) const override;
  std::string decode(std::span<const int> ids) const override;
  int vocab_size() const override { return sp_.GetPieceSize(); }
  int bos() const override { return sp_.bos_id(); }
  int eos() const override { return sp_.eos_id(); }
  int unk() const override { return sp_.unk_id(); }
  Kind kind(int id) const override {
    if (sp_.IsUnknown(id)) return Kind::unknown;
    if (sp_.IsControl(id)) return Kind::control;
    if (sp_.IsByte(id)) return Kind::byte;
    return sp_.IsUnused(id) ? Kind::other : Kind::normal;
  }
  float score(int id) const override { return sp_.GetScore(id); }
  std::string piece(int id) const override { return sp_.IdToPiece(id); }

 private:
  std::vector<int> encode_whole(std::string_view text) const;
  std::vector<int> encode_after_newline(std::string_view text) const;
  void find_cuts();

  sentencepiece::SentencePieceProcessor sp_;
  bool cuts_at_newline_ = false, cuts_at_space_ = false;
  size_t newline_ids_ = 0;  // how many ids a newline has on its own
};

// A cut changes nothing if no piece can span it: for newlines, no piece holds one (byte fallback makes each a token of
// its own); for a space after something else, no piece has the space mark behind another character. Further
// effects of a model's normalisation are found by trying.
void SentencePiece::find_cuts() {
  cuts_at_newline_ = cuts_at_space_ = true;
  newline_ids_ = encode_whole("\n").size();
  for (int id = 0; id < vocab_size(); ++id) {
    if (sp_.IsControl(id) || sp_.IsByte(id) || sp_.IsUnknown(id)) continue;
    std::string_view piece = sp_.IdToPiece(id);
    if (piece.find('\n') != std::string_view::npos) cuts_at_newline_ = false;
    while (piece.starts_with(kSpaceMark)) piece.remove_prefix(kSpaceMark.size());
    if (piece.find(kSpaceMark) != std::string_view::npos) cuts_at_space_ = false;
  }
  const std::string_view probe = "ab c  de\n\nf \n g 12 \tx\n  h";
  const std::vector<int> whole = encode_whole(probe);
  for (size_t at = 1; at < probe.size() && cuts_at_newline_; ++at) {
    if (probe[at] != '\n' && !(probe[at] == ' ' && probe[at - 1] != ' ')) continue;
    std::vector<int> parts = encode_whole(probe.substr(0, at));
    const std::vector<int> rest = encode_rest(probe.substr(at), nullptr);
    parts.insert(parts.end(), rest.begin(), rest.end());
    if (parts != whole) cuts_at_newline_ = false;
  }
  if (!cuts_at_newline_) cuts_at_space_ = false;  // encode_rest() leans on the newline
}

size_t SentencePiece::cut(std::string_view text, size_t least) const {
  if (!cuts_at_newline_ || least == 0) return std::string_view::npos;
  const size_t forced = least + kWordBytes;
  for (size_t at = least; at < text.size(); ++at) {
    if (text[at] == '\n' || (text[at] == ' ' && cuts_at_space_ && text[at - 1] != ' ')) return at;
    if (at >= forced && (uint8_t(text[at]) & 0xc0) != 0x80) return at;  // not inside a UTF-8 character
    if (at >= forced + 4) return at;                                    // this is not UTF-8
  }
  return std::string_view::npos;
}

std::vector<int> SentencePiece::encode_whole(std::string_view text) const {
  std::vector<int> ids;
  const auto status = sp_.Encode(text, &ids);
  CHECK(status.ok(), "sentencepiece: ", status.ToString());
  return ids;
}

// A model may put a space before every text. A newline in front takes that space, and both are removed again.
std::vector<int> SentencePiece::encode_after_newline(std::string_view text) const {
  std::vector<int> ids = encode_whole(concat("\n", text));
  ids.erase(ids.begin(), ids.begin() + ptrdiff_t(std::min(newline_ids_, ids.size())));
  return ids;
}

std::vector<int> SentencePiece::encode_rest(std::string_view text, Words* words) const {
  std::vector<int> ids;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, cut(text, words ? 1 : kPartBytes));
    text.remove_prefix(part.size());
    if (words && part.size() <= Tokenizer::kKnownBytes) {
      const auto [entry, is_new] = words->try_emplace(std::string(part));
      if (is_new) entry->second = encode_after_newline(part);
      ids.insert(ids.end(), entry->second.begin(), entry->second.end());
    } else {
      const std::vector<int> more = encode_after_newline(part);
      ids.insert(ids.end(), more.begin(), more.end());
    }
  }
  return ids;
}

std::vector<int> SentencePiece::encode(std::string_view text, Words* words) const {
  const std::string_view part = text.substr(0, cut(text, words ? 1 : kPartBytes));
  std::vector<int> ids = encode_whole(part);
  const std::vector<int> rest = encode_rest(text.substr(part.size()), words);
  ids.insert(ids.end(), rest.begin(), rest.end());
  return ids;
}

std::string SentencePiece::decode(std::span<const int> ids) const {
  std::vector<int> known(ids.begin(), ids.end());
  for (int& id : known)
    if (id < 0 || id >= vocab_size()) id = std::max(0, unk());
  std::string text;
  const auto status = sp_.Decode(known, &text);
  CHECK(status.ok(), "sentencepiece: ", status.ToString());
  return text;
}

}  // namespace

std::unique_ptr<const Tokenizer::Model> sentencepiece_model(std::string_view bytes, const std::filesystem::path& path) {
  return std::make_unique<SentencePiece>(bytes, path);
}

}  // namespace octet
