// tokenizer.json holds the tokenizer that the sentencepiece model is: its vocabulary, and merges that split text alike.
#include <map>

#include "data/documents.h"
#include "data/tokenizer_json.h"
#include "scratch.h"

namespace octet {
namespace {

const std::string kMark = "\xe2\x96\x81";

// Byte-pair encoding as the tokenizers library does it: of all neighbours that are in the list of merges, the earliest
// in it is joined first, and of equals the leftmost; a character without an entry becomes its bytes.
std::vector<int> encode(const json& file, const std::string& text) {
  if (text.empty()) return {};  // no mark is put before nothing
  const json& model = file["model"];
  std::map<std::string, size_t> rank;
  for (const json& merge : model["merges"]) rank.emplace(merge, rank.size());
  std::vector<std::string> pieces;
  std::string spaced = file["pre_tokenizer"]["prepend_scheme"] == "first" ? kMark : "";
  for (char c : text) spaced += c == ' ' ? kMark : std::string(1, c);
  for (size_t i = 0; i < spaced.size();) {
    size_t end = i + 1;
    while (end < spaced.size() && (uint8_t(spaced[end]) & 0xc0) == 0x80) ++end;
    pieces.push_back(spaced.substr(i, end - i));
    i = end;
  }
  for (;;) {
    size_t best = rank.size(), at = 0;
    for (size_t i = 0; i + 1 < pieces.size(); ++i)
      if (const auto found = rank.find(pieces[i] + " " + pieces[i + 1]); found != rank.end() && found->second < best)
        best = found->second, at = i;
    if (best == rank.size()) break;
    pieces[at] += pieces[at + 1];
    pieces.erase(pieces.begin() + ptrdiff_t(at) + 1);
  }
  std::vector<int> ids;
  for (const std::string& piece : pieces) {
    if (model["vocab"].contains(piece)) {
      ids.push_back(model["vocab"][piece]);
      continue;
    }
    for (const char byte : piece) {
      char name[8];
      std::snprintf(name, sizeof name, "<0x%02X>", uint8_t(byte));
      ids.push_back(model["vocab"][name]);
    }
  }
  return ids;
}

}  // namespace

TEST(TokenizerJson, SplitsTextAsTheModelDoes) {
  const Scratch folder;
  const std::string path = folder / "tokenizer.model";
  train_tokenizer({.inputs = {small_text()}, .output = path, .vocab_size = 500});
  const Tokenizer tokenizer(path);
  const json file = tokenizer_json(tokenizer);
  ASSERT_FALSE(file.is_null());
  EXPECT_EQ(file["model"]["vocab"].size(), 500u);
  for (int id = 0; id < 500; ++id) EXPECT_EQ(file["model"]["vocab"][tokenizer.piece(id)], id);
  std::istringstream lines(read_file(small_text()));
  int compared = 0;
  for (std::string line; compared < 60 && std::getline(lines, line); ++compared)
    EXPECT_EQ(encode(file, line), tokenizer.encode(line)) << line;
  for (const char* text :
       {" ", "  two  spaces ", "\xe6\xbc\xa2\xe5\xad\x97 \xc3\xbc", "tab\tand\nnewline", "1234 <s> </s>"})
    EXPECT_EQ(encode(file, text), tokenizer.encode(text)) << text;
}

TEST(TokenizerJson, NamesTheSpecialTokens) {
  const Scratch folder;
  const std::string path = folder / "tokenizer.model";
  train_tokenizer({.inputs = {small_text()}, .output = path, .vocab_size = 400});
  const json file = tokenizer_json(Tokenizer(path));
  std::vector<std::string> special;
  for (const json& token : file["added_tokens"]) special.push_back(token["content"]);
  EXPECT_EQ(special, (std::vector<std::string>{"<unk>", "<s>", "</s>"}));
  EXPECT_EQ(file["post_processor"]["special_tokens"]["<s>"]["ids"], json::array({1}));
  EXPECT_EQ(file["model"]["byte_fallback"], true);
}

}  // namespace octet
