// octet convert as a user types it: what it writes trains like any token file, and what it cannot know it asks for.
#include "cli/tiny_run.h"
#include "data/token_file.h"

namespace octet {
namespace {

class ConvertCommand : public testing::Test {
 protected:
  // The ids of a token file as nanoGPT would store them.
  std::string array_of(const std::string& tokens) const {
    const TokenFile file(tiny.path(tokens));
    std::vector<int32_t> ids(size_t(file.tokens()));
    file.read(0, ids);
    const std::vector<uint16_t> narrow(ids.begin(), ids.end());
    const std::string name = tiny.path(tokens + ".bin");
    write_file(name, {reinterpret_cast<const char*>(narrow.data()), narrow.size() * 2});
    return name;
  }
  Ran convert(std::vector<std::string> words) const {
    words.insert(words.begin(), {"convert"});
    return octet_says(words);
  }
  TinyRun tiny;
};

}  // namespace

TEST_F(ConvertCommand, OctetsOwnTokensComeBackFromAnArray) {
  const std::string bin = array_of("train.tokens"), out = tiny.path("back.tokens");
  const Ran r = convert({"--from", "uint16", "--input", bin, "--out", out, "--tokenizer", tiny.path("tokenizer.model"),
                         "--bos-id", "1", "--eos-id", "2"});
  expect_done(r, {"back.tokens: ", "tokens of 1 documents"});
  std::string same = read_file(tiny.path("train.tokens"));
  same.replace(48, 8, std::string(8, '\0'));  // the bytes of its text, which ids do not tell
  EXPECT_TRUE(read_file(out) == same);
  expect_done(octet_says({"inspect", out}), {"of unknown size", "begins with 1, ends with 2"});
  expect_done(tiny.train({"data.train=" + out}));
  const Ran printed =
      convert({"--from", "uint16", "--input", bin, "--out", out, "--vocab-size", "70000", "--unmarked", "--json"});
  expect_done(printed);
  const json said = parse_json(printed.out, "out");
  EXPECT_EQ(said["documents"], 1);
  EXPECT_EQ(said["tokens"], TokenFile(tiny.path("train.tokens")).tokens());
  EXPECT_EQ(said["vocab_size"], 70000);
  EXPECT_EQ(TokenFile(out).header().token_bytes, 4u);
}

TEST_F(ConvertCommand, AsksForWhatIsMissing) {
  const std::string bin = array_of("train.tokens"), out = tiny.path("back.tokens");
  const auto refused = [&](std::vector<std::string> words, const std::vector<std::string>& parts) {
    expect_refused(convert(words), parts);
    EXPECT_FALSE(std::filesystem::exists(out));
  };
  refused({}, {"--from is missing", "llm.c"});
  refused({"--from", "uint16"}, {"--input is missing"});
  refused({"--from", "uint16", "--input", bin}, {"--out is missing"});
  const std::vector<std::string> given = {"--from", "uint16", "--input", bin, "--out", out};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), given.begin(), given.end());
    return more;
  };
  refused(with({}), {"where do documents begin", "--bos-id", "--eos-id", "--unmarked"});
  refused(with({"--bos-id", "1"}), {"train.tokens.bin", "--vocab-size", "--tokenizer"});
  refused(with({"--bos-id", "1", "--unmarked", "--vocab-size", "512"}), {"where do documents begin"});
  refused(with({"--bos-id", "1", "--eos-id", "1", "--vocab-size", "512"}), {"are the same"});
  refused(with({"--bos-id", "512", "--vocab-size", "512"}), {"--bos-id 512", "0 to 511"});
  refused(with({"--vocab-size", "9", "--bos-id", "1"}), {"token ", "the vocabulary has 9 entries"});
  refused(with({"--vocab-size", "9", "--tokenizer", tiny.path("tokenizer.model"), "--bos-id", "1"}), {"--tokenizer"});
  refused({"--from", "llmc", "--input", bin, "--out", out, "--unmarked", "--vocab-size", "9"},
          {"--from llmc", "did you mean", "llm.c"});
  refused({"--from", "megatron", "--input", bin, "--out", out, "--unmarked", "--vocab-size", "9"}, {"--unmarked"});
  refused({"--from", "llm.c", "--input", bin, "--out", out, "--unmarked", "--vocab-size", "512"}, {"does not begin"});
}

}  // namespace octet
