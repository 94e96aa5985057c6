// octet tokenize --decode gives back the text that a token file was made of.
#include "cli/tiny_run.h"

namespace octet {
namespace {

class Decode : public testing::Test {
 protected:
  Ran tokenize(const std::string& input, const std::string& out) const {
    return octet_says({"tokenize", "--tokenizer", tiny.path("tokenizer.model"), "--input", tiny.path(input), "--out",
                       tiny.path(out)});
  }
  Ran decode(const std::string& input, std::vector<std::string> more) const {
    more.insert(more.begin(),
                {"tokenize", "--decode", "--tokenizer", tiny.path("tokenizer.model"), "--input", tiny.path(input)});
    return octet_says(more);
  }
  std::string content(const std::string& name) const { return read_file(tiny.path(name)); }
  TinyRun tiny;
};

}  // namespace

TEST_F(Decode, TheTextComesBack) {
  const std::string text = "One.\nTwo  with  spaces, ümlaut, 漢字, \t tab\n\n\nand 1234.\n";
  tiny.folder().write("a.txt", text);
  expect_done(tokenize("a.txt", "a.tokens"));
  expect_done(decode("a.tokens", {"--out", tiny.path("back.txt")}), {"1 documents"});
  EXPECT_EQ(content("back.txt"), text);
  const Ran printed = decode("a.tokens", {});
  expect_done(printed);
  EXPECT_EQ(printed.out, text);
}

TEST_F(Decode, DocumentsStaySeparate) {
  tiny.folder().write("a.txt", "first\n<|endoftext|>\nsecond\nof two lines\n<|endoftext|>\nthird");
  expect_done(tokenize("a.txt", "a.tokens"));
  expect_done(decode("a.tokens", {"--out", tiny.path("back.txt")}), {"3 documents"});
  EXPECT_EQ(content("back.txt"), content("a.txt"));
  expect_done(decode("a.tokens", {"--out", tiny.path("back.jsonl"), "--json-key", "content"}));
  EXPECT_EQ(content("back.jsonl"),
            "{\"content\":\"first\"}\n{\"content\":\"second\\nof two lines\"}\n{\"content\":\"third\"}\n");
  expect_refused(decode("a.tokens", {"--separator", "", "--out", tiny.path("no.txt")}), {"3 documents", "--separator"});
}

TEST_F(Decode, TokensOfTheTextAreTheTokens) {
  tiny.folder().write("a.jsonl",
                      "{\"text\": \" leading space\\n\\n\"}\n{\"text\": \"<|endoftext|> inside \\\"quotes\\\"\"}\n");
  expect_done(tokenize("a.jsonl", "a.tokens"));
  expect_done(decode("a.tokens", {"--out", tiny.path("b.jsonl")}));
  expect_done(tokenize("b.jsonl", "b.tokens"));
  EXPECT_TRUE(content("a.tokens") == content("b.tokens"));
  const Ran warned = decode("a.tokens", {"--out", tiny.path("b.txt")});
  expect_done(warned);
  EXPECT_TRUE(has(warned.err, "contain the separator")) << warned;
}

TEST_F(Decode, WhatATextFileDoesNotKeepIsSaid) {
  const std::pair<std::string, bool> cases[] = {{"{\"text\": \"\\none\"}\n{\"text\": \"two\\n\"}\n", false},
                                                {"{\"text\": \"one\\n\"}\n{\"text\": \"two\"}\n", true},
                                                {"{\"text\": \"one\"}\n{\"text\": \"\\ntwo\"}\n", true}};
  for (const auto& [text, changes] : cases) {
    tiny.folder().write("a.jsonl", text);
    expect_done(tokenize("a.jsonl", "a.tokens"));
    const Ran decoded = decode("a.tokens", {"--out", tiny.path("b.txt")});
    expect_done(decoded);
    EXPECT_EQ(has(decoded.err, "1 documents contain the separator <|endoftext|> or have a newline next to it"), changes)
        << text << decoded;
    expect_done(tokenize("b.txt", "b.tokens"));
    EXPECT_EQ(content("a.tokens").substr(128) == content("b.tokens").substr(128), !changes) << text;  // less the header
  }
}

TEST_F(Decode, RefusesWhatDoesNotBelongTogether) {
  expect_refused(decode("tokenizer.model", {}), {"not a token file"});
  expect_refused(decode("none.tokens", {}), {"none.tokens"});
  expect_refused(decode("train.tokens", {"--no-bos"}), {"--no-bos", "with --decode"});
  expect_done(octet_says({"tokenizer", "--input", small_text(), "--vocab-size", "390", "--out", tiny.path("b.model")}));
  expect_refused(
      octet_says({"tokenize", "--decode", "--tokenizer", tiny.path("b.model"), "--input", tiny.path("train.tokens")}),
      {"train.tokens", "another tokenizer"});
  std::string bytes = content("train.tokens");
  write_file(tiny.path("cut.tokens"), bytes.substr(0, bytes.size() / 2));
  expect_refused(decode("cut.tokens", {"--out", tiny.path("cut.txt")}), {"cut.tokens", "truncated"});
  EXPECT_FALSE(std::filesystem::exists(tiny.path("cut.txt")));
}

}  // namespace octet
