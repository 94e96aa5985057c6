// tokenizer.json gives the ids and the text of Hugging Face's tokenizers library (golden/tokenizers, made by
// scripts/golden-tokenizers), in one piece or cut; what octet cannot do is refused with its place.
#include <filesystem>
#include <random>

#include "base/json.h"
#include "data/hf_steps.h"
#include "data/tokenize.h"
#include "data/tokenizer.h"
#include "data/unicode.h"
#include "scratch.h"

namespace octet {
namespace {
namespace fs = std::filesystem;

const fs::path kFolder = fs::path(GOLDEN) / "tokenizers";
constexpr const char* kNames[] = {"neox", "llama3", "llama2-legacy", "llama2", "others"};

using Ids = std::vector<int>;

TEST(HfTokenizer, EncodesAndDecodesAsTheTokenizersLibrary) {
  for (const char* name : kNames) {
    const Tokenizer tokenizer(kFolder / name / "tokenizer.json");
    const json golden = read_json((kFolder / name / "cases.json").string());
    EXPECT_EQ(tokenizer.vocab_size(), golden["vocab_size"]) << name;
    EXPECT_FALSE(tokenizer.is_sentencepiece());
    Tokenizer::Words words;
    ASSERT_GT(golden["cases"].size(), 100u);
    for (const json& one : golden["cases"]) {
      const std::string text = one[0], said = concat(name, ": ", one[0].dump());
      const Ids ids = one[1];
      EXPECT_EQ(tokenizer.encode(text), ids) << said;
      EXPECT_EQ(tokenizer.encode(text, &words), ids) << said;
      EXPECT_EQ(tokenizer.encode(text, &words), ids) << said;  // of known words
      EXPECT_EQ(tokenizer.decode(ids), one[2].get<std::string>()) << said;
    }
  }
}

TEST(HfTokenizer, PartsOfATextHaveTheIdsOfTheWhole) {
  const std::string marsh = read_file(small_text()).substr(0, 6000);
  for (const char* name : kNames) {
    const Tokenizer tokenizer(kFolder / name);
    std::string text = marsh;
    const json golden = read_json((kFolder / name / "cases.json").string());
    for (const json& one : golden["cases"]) text += one[0].get<std::string>() + "\n" + "and on ";
    const Ids whole = tokenizer.encode(text);
    Ids parts;
    int cuts = 0;
    for (size_t at = 0; at < text.size(); ++cuts) {
      const std::string_view rest = std::string_view(text).substr(at);
      const std::string_view part = rest.substr(0, tokenizer.cut(rest, 1));
      const Ids more = at == 0 ? tokenizer.encode(part) : tokenizer.encode_rest(part);
      parts.insert(parts.end(), more.begin(), more.end());
      at += part.size();
    }
    EXPECT_EQ(parts, whole) << name;
    const bool looks_aside = std::string_view(name) == "llama3" || std::string_view(name) == "others";
    EXPECT_TRUE(looks_aside ? cuts == 1 : cuts > 500) << name << ": " << cuts;  // llama3's tokens take spaces with them
  }
}

TEST(HfTokenizer, BeginningAndEndAreThoseThatTransformersTakes) {
  const auto edges = [](const fs::path& path) {
    const Tokenizer t(path);
    return std::pair{t.bos() < 0 ? "" : t.piece(t.bos()), t.eos() < 0 ? "" : t.piece(t.eos())};
  };
  using Edges = std::pair<std::string, std::string>;
  EXPECT_EQ(edges(kFolder / "neox"), Edges("", "<|endoftext|>"));  // it has a bos_token, but puts it nowhere
  EXPECT_EQ(edges(kFolder / "llama3"), Edges("<|begin_of_text|>", "<|end_of_text|>"));
  EXPECT_EQ(edges(kFolder / "llama2-legacy"), Edges("<s>", "</s>"));
  EXPECT_EQ(edges(kFolder / "llama2"), Edges("", "</s>"));  // add_bos_token is false
  const Scratch scratch;                                    // without what lies beside it
  EXPECT_EQ(edges(scratch.write("t.json", read_file(kFolder / "llama2" / "tokenizer.json"))), Edges("<s>", "</s>"));
}

TEST(HfTokenizer, InvalidBytesAreReplacedAsInPythonAndNothingCrashes) {
  EXPECT_EQ(to_valid_utf8("a\xff"
                          "b\xe6\x97"),
            "a\xef\xbf\xbd"
            "b\xef\xbf\xbd");  // a cut character is one
  EXPECT_EQ(to_valid_utf8("\xed\xa0\x80\xf0\x90\x80x"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbdx");
  EXPECT_EQ(to_valid_utf8("\xc0\x80\xf5"), "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
  std::mt19937 random(1);
  for (const char* name : kNames) {
    const Tokenizer tokenizer(kFolder / name);
    for (int i = 0; i < 300; ++i) {
      std::string text(random() % 60, '\0');
      for (char& c : text) c = char(random() % 4 ? "e \n\xcc\x81<s>"[random() % 8] : char(random()));
      EXPECT_EQ(tokenizer.encode(text), tokenizer.encode(to_valid_utf8(text)));
      Ids ids(random() % 30);
      for (int& id : ids) id = int(random() % 600) - 20;
      EXPECT_TRUE(is_valid_utf8(tokenizer.decode(ids)));
    }
  }
}

TEST(HfTokenizer, WhatIsNotSupportedIsRefusedWithItsPlace) {
  const Scratch scratch;
  const json good = json::parse(read_file(kFolder / "neox" / "tokenizer.json"));
  const auto said = [&](const std::function<void(json&)>& change) {
    json changed = good;
    change(changed);
    return error_of<InputError>([&] { Tokenizer t(scratch.write("tokenizer.json", changed.dump())); });
  };
  const std::pair<std::string, std::function<void(json&)>> all[] = {
      {"model: \"Unigram\" is not supported", [](json& j) { j["model"]["type"] = "Unigram"; }},
      {"no \"model\"", [](json& j) { j.erase("model"); }},
      {"normalizer.type: \"Lowercase\"",
       [](json& j) {
         j["normalizer"] = {{"type", "Lowercase"}};
       }},
      {"normalizer.normalizers[1].type: \"Nmt\"",
       [](json& j) {
         j["normalizer"] = {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}, {{"type", "Nmt"}}}}};
       }},
      {"pre_tokenizer.type: \"BertPreTokenizer\"",
       [](json& j) {
         j["pre_tokenizer"] = {{"type", "BertPreTokenizer"}};
       }},
      {"pre_tokenizer.pattern: not a regular expression",
       [](json& j) {
         j["pre_tokenizer"] = {{"type", "Split"}, {"pattern", {{"Regex", "(a"}}}};
       }},
      {"decoder.type: \"CTC\"",
       [](json& j) {
         j["decoder"] = {{"type", "CTC"}};
       }},
      {"end_of_word_suffix", [](json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }},
      {"merges[0]", [](json& j) { j["model"]["merges"][0] = "nothing else"; }},
      {"merges: expected a list", [](json& j) { j["model"]["merges"] = 7; }},
      {"the id of", [](json& j) { j["model"]["vocab"]["e"] = -3; }},
      {"added_tokens[0].id", [](json& j) { j["added_tokens"][0]["id"] = "seven"; }},
      {"is damaged",
       [](json& j) {
         j["post_processor"] = {{"type", "TemplateProcessing"}, {"single", {{{"SpecialToken", 7}}}}};
       }},
      {"nested more than 100 deep",
       [](json& j) {
         json deep = {{"type", "NFC"}};
         for (int i = 0; i < 60; ++i)
           deep = json{{"type", "Sequence"}, {"normalizers", json::array({std::move(deep)})}};
         j["normalizer"] = std::move(deep);
       }},
      {"unk_token: ?? is not in", [](json& j) { j["model"]["unk_token"] = "??"; }}};
  for (const auto& [what, change] : all) {
    const std::string message = said(change);
    EXPECT_TRUE(has(message, what) && has(message, "tokenizer.json")) << what << ": " << message;
  }
  EXPECT_TRUE(has(error_of<InputError>([&] { Tokenizer t(scratch.write("tokenizer.json", "{\"model\": ")); }),
                  "not valid JSON"));
  EXPECT_TRUE(has(error_of<InputError>([&] { Tokenizer t(scratch / "."); }), "not valid JSON"));
  const std::string deep = "{\"model\": {\"vocab\": " + std::string(1'000'000, '[');
  EXPECT_TRUE(
      has(error_of<InputError>([&] { Tokenizer t(scratch.write("tokenizer.json", deep)); }), "nested more than"));
  fs::remove(scratch / "tokenizer.json");
  EXPECT_TRUE(has(error_of<InputError>([&] { Tokenizer t(scratch / "."); }), "neither tokenizer.model nor"));
}

// "Metaspace" moved the rest of the text at every space: of this one for hours.
TEST(HfTokenizer, SpacesOfALongTextAreReplaced) {
  constexpr size_t kSpaces = size_t{64} << 20;
  std::string text(kSpaces, ' ');
  replace_all(text, " ", "__");
  EXPECT_EQ(text.size(), 2 * kSpaces);
  EXPECT_EQ(text.find_first_not_of('_'), std::string::npos);
}

// A text of which no token is left (--no-bos, --no-eos) is no document: its file was refused.
TEST(HfTokenizer, TextsWithoutTokensAreNoDocuments) {
  const Scratch scratch;
  TokenizeOptions options;
  options.inputs = {
      scratch.write("in.jsonl", "{\"text\": \"  \"}\n{\"text\": \"salt\"}\n{\"text\": \" \"}\n").string()};
  options.output = scratch / "out.tokens";
  options.bos = options.eos = false;
  const Tokenizer tokenizer(kFolder / "others");
  ASSERT_TRUE(tokenizer.encode("  ").empty());  // it strips spaces
  EXPECT_EQ(tokenize(tokenizer, options).documents, 1u);
  TokenFile(options.output).verify();
}

}  // namespace
}  // namespace octet
