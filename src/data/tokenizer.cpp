#include "data/tokenizer.h"

#include <sentencepiece_processor.h>

#include <algorithm>

#include "base/check.h"
#include "base/files.h"
#include "base/rng.h"

namespace octet {
namespace {

constexpr size_t kPartBytes = size_t(1) << 16;  // sentencepiece takes about 200 bytes of memory a byte of text
constexpr std::string_view kSpaceMark = "\xe2\x96\x81";  // U+2581

}  // namespace

struct Tokenizer::Model {
  sentencepiece::SentencePieceProcessor sp;
};

Tokenizer::Tokenizer(const std::filesystem::path& path) : model_(std::make_unique<Model>()) {
  const MappedFile file(path);
  const auto status = model_->sp.LoadFromSerializedProto(file.bytes());
  if (!status.ok() || model_->sp.GetPieceSize() < 1)
    bad_input("'", path.string(), "' is not a sentencepiece model (", status.ToString(), "): name a tokenizer.model, or train one with 'octet tokenizer'");
  fingerprint_ = hash(file.bytes());
  find_cuts();
}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

int Tokenizer::vocab_size() const { return model_->sp.GetPieceSize(); }
int Tokenizer::bos() const { return model_->sp.bos_id(); }
int Tokenizer::eos() const { return model_->sp.eos_id(); }
int Tokenizer::unk() const { return model_->sp.unk_id(); }

// A cut changes nothing if no piece can span it: for newlines, no piece holds one (byte fallback makes each a token of its
// own); for a space after something else, no piece has the space mark behind another character. What a model's
// normalisation does beyond that is tried out.
void Tokenizer::find_cuts() {
  cuts_at_newline_ = cuts_at_space_ = true;
  for (int id = 0; id < vocab_size(); ++id) {
    if (model_->sp.IsControl(id) || model_->sp.IsByte(id) || model_->sp.IsUnknown(id)) continue;
    std::string_view piece = model_->sp.IdToPiece(id);
    if (piece.find('\n') != std::string_view::npos) cuts_at_newline_ = false;
    while (piece.starts_with(kSpaceMark)) piece.remove_prefix(kSpaceMark.size());
    if (piece.find(kSpaceMark) != std::string_view::npos) cuts_at_space_ = false;
  }
  const std::string_view probe = "ab c  de\n\nf \n g 12 \tx\n  h";
  const std::vector<int> whole = encode_whole(probe);
  for (size_t at = 1; at < probe.size() && cuts_at_newline_; ++at) {
    if (probe[at] != '\n' && !(probe[at] == ' ' && probe[at - 1] != ' ')) continue;
    std::vector<int> parts = encode_whole(probe.substr(0, at));
    const std::vector<int> rest = encode_rest(probe.substr(at));
    parts.insert(parts.end(), rest.begin(), rest.end());
    if (parts != whole) cuts_at_newline_ = false;
  }
  if (!cuts_at_newline_) cuts_at_space_ = false;  // encode_rest() leans on the newline
}

size_t Tokenizer::cut(std::string_view text, size_t least) const {
  if (!cuts_at_newline_ || least == 0) return std::string_view::npos;
  const size_t forced = least + kPartBytes;
  for (size_t at = least; at < text.size(); ++at) {
    if (text[at] == '\n' || (text[at] == ' ' && cuts_at_space_ && text[at - 1] != ' ')) return at;
    if (at >= forced && (uint8_t(text[at]) & 0xc0) != 0x80) return at;  // not inside a UTF-8 character
    if (at >= forced + 4) return at;                                    // this is not UTF-8
  }
  return std::string_view::npos;
}

std::vector<int> Tokenizer::encode_whole(std::string_view text) const {
  std::vector<int> ids;
  const auto status = model_->sp.Encode(text, &ids);
  CHECK(status.ok(), "sentencepiece: ", status.ToString());
  return ids;
}

std::vector<int> Tokenizer::encode(std::string_view text) const {
  const std::string_view part = text.substr(0, cut(text, kPartBytes));
  std::vector<int> ids = encode_whole(part);
  if (part.size() == text.size()) return ids;
  const std::vector<int> rest = encode_rest(text.substr(part.size()));
  ids.insert(ids.end(), rest.begin(), rest.end());
  return ids;
}

// A model may put a space before every text it is given. A newline in front takes that on itself, and goes away again.
std::vector<int> Tokenizer::encode_rest(std::string_view text) const {
  const size_t before = encode_whole("\n").size();
  std::vector<int> ids;
  while (!text.empty()) {
    const std::string_view part = text.substr(0, cut(text, kPartBytes));
    const std::vector<int> more = encode_whole(concat("\n", part));
    ids.insert(ids.end(), more.begin() + ptrdiff_t(std::min(before, more.size())), more.end());
    text.remove_prefix(part.size());
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const int> ids) const {
  std::vector<int> known(ids.begin(), ids.end());
  for (int& id : known)
    if (id < 0 || id >= vocab_size()) id = std::max(0, unk());
  std::string text;
  const auto status = model_->sp.Decode(known, &text);
  CHECK(status.ok(), "sentencepiece: ", status.ToString());
  return text;
}

}  // namespace octet
