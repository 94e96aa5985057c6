#include "data/hf_decoder.h"

#include <charconv>

#include "data/hf_steps.h"
#include "data/unicode.h"

namespace octet {
namespace {

using Pieces = std::vector<std::string>;
using Step = std::function<void(Pieces&)>;

void join(Pieces& pieces) {
  std::string all;
  for (const std::string& piece : pieces) all += piece;
  pieces.assign(1, all);
}

void from_bytes(Pieces& pieces) {
  for (std::string& piece : pieces) piece = from_byte_level(piece);
  join(pieces);
  pieces[0] = to_valid_utf8(pieces[0]);
}

int byte_of(const std::string& piece) {  // of "<0x0A>"; -1: another piece
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return -1;
  int byte = -1;
  const char* end = piece.data() + 5;
  return std::from_chars(piece.data() + 3, end, byte, 16).ptr == end ? byte : -1;
}

// Neighbouring bytes become characters together; where they are none, each becomes U+FFFD.
void byte_fallback(Pieces& pieces) {
  Pieces out;
  std::string bytes;
  const auto flush = [&] {
    if (is_valid_utf8(bytes)) {
      if (!bytes.empty()) out.push_back(bytes);
    } else {
      for (size_t i = 0; i < bytes.size(); ++i) out.emplace_back("\xef\xbf\xbd");
    }
    bytes.clear();
  };
  for (std::string& piece : pieces) {
    if (const int byte = byte_of(piece); byte >= 0) {
      bytes += char(byte);
    } else {
      flush();
      out.push_back(std::move(piece));
    }
  }
  flush();
  pieces = std::move(out);
}

Step replacer(const Fields& step, const std::string& where) {
  const Fields& pattern = part(step, "pattern", where);
  const auto content = field<std::string>(step, "content", "", where);
  if (!pattern.is_object() || !pattern.contains("String"))
    bad_input(where, ".pattern: only {\"String\": …} is supported, got ", pattern.dump());
  const auto what = field<std::string>(pattern, "String", "", where);
  return [=](Pieces& pieces) {
    for (std::string& piece : pieces) replace_all(piece, what, content);
  };
}

Step stripper(const Fields& step, const std::string& where) {
  const auto what = field<std::string>(step, "content", " ", where);
  const int start = field(step, "start", 0, where), stop = field(step, "stop", 0, where);
  return [=](Pieces& pieces) {
    for (std::string& piece : pieces) {
      for (int i = 0; i < start && piece.starts_with(what); ++i) piece.erase(0, what.size());
      for (int i = 0; i < stop && piece.ends_with(what); ++i) piece.erase(piece.size() - what.size());
    }
  };
}

Step metaspace(const Fields& step, const std::string& where) {
  const auto mark = field<std::string>(step, "replacement", "\xe2\x96\x81", where);
  const bool prefix = field(step, "add_prefix_space", true, where);
  const bool drops = field<std::string>(step, "prepend_scheme", prefix ? "always" : "never", where) != "never";
  return [=](Pieces& pieces) {
    for (size_t i = 0; i < pieces.size(); ++i) replace_all(pieces[i], mark, i == 0 && drops ? "" : " ");
  };
}

void read_steps(const Fields& fields, const std::string& where, std::vector<Step>& steps) {
  const std::string type = type_of(fields, where);
  if (type == "Sequence") {
    int i = 0;
    for (const Fields& one : part(fields, "decoders", where))
      read_steps(one, concat(where, ".decoders[", i++, "]"), steps);
  } else if (type == "ByteLevel") {
    steps.emplace_back(from_bytes);
  } else if (type == "ByteFallback") {
    steps.emplace_back(byte_fallback);
  } else if (type == "Fuse") {
    steps.emplace_back(join);
  } else if (type == "Replace") {
    steps.push_back(replacer(fields, where));
  } else if (type == "Strip") {
    steps.push_back(stripper(fields, where));
  } else if (type == "Metaspace") {
    steps.push_back(metaspace(fields, where));
  } else {
    bad_input(where, ".type: \"", type, "\" is not supported; ByteLevel, ByteFallback, Fuse, Replace, Strip and ",
              "Metaspace are");
  }
}

}  // namespace

Decoder read_decoder(const Fields& fields, const std::string& where) {
  std::vector<Step> steps;
  const bool none = fields.is_null();
  if (!none) read_steps(fields, where, steps);
  return [=](Pieces pieces) {
    if (none)  // as their library does: words with a space between them
      for (size_t i = 1; i < pieces.size(); ++i) pieces[i].insert(0, " ");
    for (const Step& step : steps) step(pieces);
    join(pieces);
    return pieces[0];
  };
}

}  // namespace octet
