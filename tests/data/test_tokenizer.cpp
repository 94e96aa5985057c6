// Text survives encode and decode; token files do not depend on threads or on where long text was cut.
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "data/ordered_parallel.h"
#include "data/tokenize.h"
#include "data/tokenizer.h"
#include "scratch.h"

namespace octet {
namespace {

const Scratch& shared() {
  static const Scratch dir;
  return dir;
}

std::filesystem::path train(const std::string& name, int vocab_size = 1000) {
  TrainTokenizerOptions options;
  options.inputs = {small_text().string()};
  options.output = shared() / name;
  options.vocab_size = vocab_size;
  train_tokenizer(options);
  return options.output;
}
const Tokenizer& tokenizer() {
  static const Tokenizer made(train("tokenizer.model"));
  return made;
}

std::vector<int32_t> tokens_of(const std::filesystem::path& path) {
  const TokenFile file(path);
  file.verify();
  std::vector<int32_t> ids(size_t(file.tokens()));
  file.read(0, ids);
  return ids;
}

// A table of normalisation that writes "b" for "a", as sentencepiece stores it; `change` may damage it.
std::string charsmap(const std::function<void(std::vector<uint32_t>&, std::string&)>& change = {}) {
  constexpr uint32_t kRoot = 256;  // blocks of 256 units: the root's own, its state's, that of the state after "a"
  std::vector<uint32_t> units(3 * 256, 0);
  const uint32_t after = 512 | 1;  // a state
  units[0] = kRoot << 10;
  units[kRoot ^ 'a'] = 'a' | 0x100 | ((kRoot ^ 'a' ^ after) << 10);
  units[after] = 0x80000000 | 3;  // a leaf: the text begins at 3
  std::string texts("no\0b\0", 5);
  if (change) change(units, texts);
  const uint32_t size = uint32_t(4 * units.size());
  return std::string(reinterpret_cast<const char*>(&size), 4) +
         std::string(reinterpret_cast<const char*>(units.data()), size) + texts;
}

std::string field(int number, const std::string& bytes) {  // of protobuf's wire format
  std::string out(1, char(number << 3 | 2));
  size_t n = bytes.size();
  for (; n >= 0x80; n >>= 7) out += char(n | 0x80);
  return out + char(n) + bytes;
}

TEST(Tokenizer, ADamagedTableOfNormalisationIsRefused) {
  const std::string plain = read_file(train("plain.model"));
  const auto with = [&](const std::string& table, int spec = 3) {  // fields that stand twice are merged
    return shared().write("table.model", plain + field(spec, field(2, table)));
  };
  EXPECT_EQ(Tokenizer(with(charsmap())).encode("cab"), Tokenizer(with("")).encode("cbb"));
  using Units = std::vector<uint32_t>;
  const std::vector<std::pair<const char*, std::string>> damaged{
      {"size", charsmap([](Units& u, std::string&) { u.pop_back(); })},
      {"size", charsmap([](Units& u, std::string&) { u.clear(); })},
      {"short", "abc"},
      {"size", charsmap().substr(0, 600)},
      {"no end", charsmap([](Units&, std::string& t) { t += "x"; })},
      {"outside", charsmap([](Units& u, std::string&) { u[0] = 768 << 10; })},
      {"outside", charsmap([](Units& u, std::string&) { u[256 ^ 'a'] |= 1 << 30; })},
      {"outside", charsmap([](Units& u, std::string&) { u[256 ^ 'z'] = 'z' | 4096 << 10; })},
      {"a text that is not there", charsmap([](Units& u, std::string&) { u[513] = 0x80000005; })}};
  for (const auto& [reason, table] : damaged)
    for (const int spec : {3, 5}) {
      const std::string said = error_of<InputError>([&] { Tokenizer damaged_one(with(table, spec)); });
      EXPECT_TRUE(has(said, "table.model") && has(said, reason)) << reason << ": " << said;
    }
  const std::string group = "\x0b\x13\x08\x01\x14\x0c";  // a group with one inside: it hides nothing
  const std::string behind = shared().write("table.model", plain + group + field(3, group + field(2, "abc")));
  EXPECT_TRUE(has(error_of<InputError>([&] { Tokenizer with_group(behind); }), "short"));
  const std::string deep = shared().write("deep.model", plain + std::string(1'000'000, '\x0b'));
  EXPECT_TRUE(has(error_of<InputError>([&] { Tokenizer without_end(deep); }), "not a sentencepiece model"));
}

TEST(Tokenizer, TrainsTheSameFileTwice) {
  EXPECT_EQ(tokenizer().vocab_size(), 1000);
  EXPECT_EQ(tokenizer().unk(), 0);
  EXPECT_EQ(tokenizer().bos(), 1);
  EXPECT_EQ(tokenizer().eos(), 2);
  EXPECT_EQ(read_file(train("again.model")), read_file(shared() / "tokenizer.model"));
  EXPECT_EQ(Tokenizer(shared() / "again.model").fingerprint(), tokenizer().fingerprint());
  EXPECT_NE(Tokenizer(train("other.model", 900)).fingerprint(), tokenizer().fingerprint());
}

// Each cut read the whole rest: a text of 200 MB in one line took minutes. Here the rest may not be read at all.
TEST(Tokenizer, ALineForTrainingIsCutWithoutALookAtTheRest) {
  const size_t page = size_t(::sysconf(_SC_PAGESIZE)), readable = (kMaxLineBytes / page + 2) * page, all = 8 * readable;
  void* memory = ::mmap(nullptr, all, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::memset(memory, 'x', readable);
  ASSERT_EQ(::mprotect(static_cast<char*>(memory) + readable, all - readable, PROT_NONE), 0);
  char* const text = static_cast<char*>(memory) + readable - (kMaxLineBytes + 1);
  std::string_view rest(text, all - readable + kMaxLineBytes + 1);
  EXPECT_EQ(take_line(rest).size(), kMaxLineBytes);
  text[100] = ' ';
  rest = {text, all - readable + kMaxLineBytes + 1};
  EXPECT_EQ(take_line(rest).size(), 100u);
  EXPECT_EQ(rest.data(), text + 100);
  ::munmap(memory, all);

  std::string_view few = "one\n\ntwo";
  EXPECT_EQ(take_line(few), "one");
  EXPECT_EQ(take_line(few), "");
  EXPECT_EQ(take_line(few), "two");
  EXPECT_TRUE(few.empty());
  const std::string longest = std::string(kMaxLineBytes, 'x') + "\ny";
  rest = longest;
  EXPECT_EQ(take_line(rest).size(), kMaxLineBytes);
  EXPECT_EQ(rest, "y");
}

TEST(Tokenizer, DecodeUndoesEncode) {
  for (const std::string text :
       {"", " ", "\n", "  two  spaces\tand a tab\r\n\n\n", "Grüße aus Köln, 你好, שלום, 🚢🚢\n", "a\n b\n  c\n   d ",
        "<s> </s> <unk> <0x41>", "1234567890", "e\xcc\x81 is not \xc3\xa9", "ﬁ ﬂ ½ Å Å",
        "\xe2\x80\x83wide\xc2\xa0spaces\xe3\x80\x80"})
    EXPECT_EQ(tokenizer().decode(tokenizer().encode(text)), text);
  const std::string all = read_file(small_text());
  EXPECT_EQ(tokenizer().decode(tokenizer().encode(all)), all);
  EXPECT_LT(tokenizer().encode(all).size() * 2, all.size());
  EXPECT_EQ(tokenizer().encode("1234").size(), tokenizer().encode("1").size() + 3);  // digits stand alone
  EXPECT_EQ(tokenizer().decode(std::vector<int>{5000, -1}), tokenizer().decode(std::vector<int>{0, 0}));
}

TEST(Tokenizer, InvalidUtf8BecomesReplacementCharacters) {
  EXPECT_EQ(tokenizer().decode(tokenizer().encode("a\xff"
                                                  "b")),
            "a\xef\xbf\xbd"
            "b");
  const std::string zero("a\0b", 3);
  EXPECT_EQ(tokenizer().decode(tokenizer().encode(zero)), zero);
}

TEST(Tokenizer, CutsChangeNothing) {
  const std::string text = "One line  here\n\n  two, and 17 \n three\tfour  \n";
  const std::vector<int> whole = tokenizer().encode(text);
  for (size_t least = 1; least < text.size(); ++least) {
    const size_t at = tokenizer().cut(text, least);
    if (at == std::string::npos) continue;
    std::vector<int> ids = tokenizer().encode(text.substr(0, at));
    const std::vector<int> rest = tokenizer().encode_rest(std::string_view(text).substr(at));
    ids.insert(ids.end(), rest.begin(), rest.end());
    ASSERT_EQ(ids, whole) << at;
  }
  std::string word;  // without a space: cut by force, still the same text
  for (int i = 0; i < 100000; ++i) word += "ü";
  EXPECT_EQ(tokenizer().decode(tokenizer().encode(word)), word);
}

// Of text without spaces every line was kept with its ids: memory grew with the input.
TEST(Tokenizer, LongWordsAreNotKept) {
  const std::string text = "a b b\n你好你好你好你好你好你好你好你好你好你好你好\nb\n" + std::string(5000, 'x') + " a";
  Tokenizer::Words words;
  const std::vector<int> ids = tokenizer().encode(text, &words);
  EXPECT_EQ(ids, tokenizer().encode(text));
  EXPECT_GE(words.size(), 3u);
  for (const auto& [word, known] : words) EXPECT_LE(word.size(), Tokenizer::kKnownBytes) << word;
}

TEST(Tokenizer, BadInputIsNamedWithARemedy) {
  const Scratch dir;
  EXPECT_TRUE(has(error_of<InputError>([&] { Tokenizer bad(dir.write("x.model", "no model")); }), "octet tokenizer"));
  EXPECT_TRUE(has(error_of<InputError>([&] { Tokenizer bad(dir.write("x.model", "")); }), "octet tokenizer"));
  EXPECT_TRUE(has(error_of<InputError>([&] { Tokenizer bad(dir / "none"); }), "check the name"));
  EXPECT_TRUE(has(error_of<InputError>([&] { train("huge.model", 1000000); }), "lower the vocabulary"));
  EXPECT_TRUE(has(error_of<InputError>([&] { train("tiny.model", 100); }), "take 1000 or more"));
  TrainTokenizerOptions options{.inputs = {small_text()}, .output = dir / "x", .vocab_size = 270};
  EXPECT_TRUE(has(error_of<InputError>([&] { train_tokenizer(options); }), "raise it"));  // fewer than the characters
  options.character_coverage = 0.5;
  EXPECT_TRUE(has(error_of<InputError>([&] { train_tokenizer(options); }), "between 0.98 and 1"));
  EXPECT_FALSE(std::filesystem::exists(shared() / "huge.model"));
}

TEST(Tokenize, IsTheSameForAnyNumberOfThreads) {
  const Scratch dir;
  std::string text;
  for (int i = 0; i < 40; ++i) text += read_file(small_text());  // over 1 MB in one document: cut into several tasks
  std::string lines;
  for (int i = 0; i < 3000; ++i) lines += "{\"text\": \"Line " + std::to_string(i) + " \\n says \\u00fc\"}\n\n";
  TokenizeOptions options;
  options.inputs = {dir.write("a.txt", text), dir.write("b.jsonl", lines)};
  int64_t last = -1, total = 0;
  options.progress = [&](int64_t done, int64_t all) {
    EXPECT_TRUE(last >= 0 || done == 0) << done;  // the clock starts before the work
    EXPECT_GE(done, last);
    last = done;
    total = all;
  };
  for (const int threads : {1, 2, 5}) {
    last = -1;
    options.threads = threads;
    options.output = dir / concat("out", threads);
    const TokenFileHeader header = tokenize(tokenizer(), options);
    EXPECT_EQ(last, total);
    EXPECT_EQ(total, int64_t(text.size() + lines.size()));
    EXPECT_EQ(header.documents, 3001u);
  }
  EXPECT_EQ(read_file(dir / "out1"), read_file(dir / "out2"));
  EXPECT_EQ(read_file(dir / "out1"), read_file(dir / "out5"));

  const TokenFile file(dir / "out1");  // and the long document has the ids of the whole text
  std::vector<int32_t> ids(size_t(file.document_start(1)));
  file.read(0, ids);
  std::vector<int> want = tokenizer().encode(text);
  want.insert(want.begin(), tokenizer().bos());
  want.push_back(tokenizer().eos());
  EXPECT_EQ(ids, want);
}

TEST(Tokenize, DocumentsAreWhatTheFormatSays) {
  const Scratch dir;
  TokenizeOptions options;
  options.output = dir / "out";
  const auto ids = [&](const std::string& name, const std::string& contents) {
    options.inputs = {dir.write(name, contents)};
    tokenize(tokenizer(), options);
    return tokens_of(options.output);
  };
  const auto want = [&](std::vector<std::string> documents) {
    std::vector<int32_t> all;
    for (const std::string& d : documents) {
      if (options.bos) all.push_back(tokenizer().bos());
      for (const int id : tokenizer().encode(d)) all.push_back(id);
      if (options.eos) all.push_back(tokenizer().eos());
    }
    return all;
  };
  EXPECT_EQ(ids("a.txt", "\none\n\n\ntwo\n"), want({"\none\n\n\ntwo\n"}));
  EXPECT_EQ(ids("a.txt", "\xef\xbb\xbf\none\n<|endoftext|>\n two\n<|endoftext|><|endoftext|>\n"),
            want({"\none", " two"}));
  EXPECT_EQ(ids("a.txt", "\r\none\r\n\r\n<|endoftext|>\r\n\rtwo\r\n"), want({"\r\none", "\rtwo\r\n"}));
  EXPECT_EQ(ids("a.jsonl", "{\"text\": \"x\\ny\", \"n\": 1}\r\n\n{\"text\": \"\"}\n{\"text\": \"é\"}"),
            want({"x\ny", "é"}));
  EXPECT_EQ(TokenFile(options.output).header().source_bytes, 5u);
  options.bos = false;
  options.documents.separator = "\n\n\n";
  options.documents.json_key = "body";
  EXPECT_EQ(ids("a.txt", "one\n\n\ntwo"), want({"one", "two"}));
  EXPECT_EQ(ids("a.jsonl", "{\"body\": \"x\"}"), want({"x"}));
  EXPECT_EQ(TokenFile(options.output).header().flags, uint32_t(TokenFileHeader::kEos));
  EXPECT_EQ(TokenFile(options.output).header().tokenizer_fingerprint, tokenizer().fingerprint());
}

TEST(Tokenize, ABadLineIsNamedWithItsPlaceAndLeavesNoFile) {
  const Scratch dir;
  const auto complaint = [&](const std::string& name, const std::string& contents) {
    TokenizeOptions options;
    options.threads = 2;
    options.inputs = {dir.write(name, contents)};
    options.output = dir / "out";
    const std::string message = error_of<InputError>([&] { tokenize(tokenizer(), options); });
    EXPECT_EQ(dir.entries(), 1);
    std::filesystem::remove(dir / name);
    return message;
  };
  const std::string good = "{\"text\": \"x\"}\n";
  EXPECT_TRUE(has(complaint("a.jsonl", good + "\n" + good + "{\"text\": \"x\n{"), "a.jsonl' line 4: not valid JSON"));
  EXPECT_TRUE(has(complaint("a.jsonl", good + "{\"txt\": \"x\"}\n"), "line 2: no key \"text\""));
  EXPECT_TRUE(has(complaint("a.jsonl", good + "{\"text\": 5}\n"), "line 2: \"text\" is not a string"));
  EXPECT_TRUE(has(complaint("a.jsonl", "[1]\n"), "line 1: not a JSON object"));
  EXPECT_TRUE(has(complaint("a.jsonl", "{\"text\": \"\xff\"}\n"), "line 1: not valid JSON"));
  // As a download ends that was cut short: the message quoted the whole document.
  const std::string cut = complaint("a.jsonl", "{\"text\": \"" + std::string(100000, 'x'));
  EXPECT_TRUE(has(cut, "line 1: not valid JSON (byte 100011: syntax error") && has(cut, "each line must be")) << cut;
  EXPECT_LT(cut.size(), 500u);
  EXPECT_TRUE(has(complaint("a.txt", ""), "no text"));
  EXPECT_TRUE(has(complaint("a.txt.gz", "x"), "unpack"));
  EXPECT_TRUE(has(complaint("a.txt", "\x1f\x8b\x08\xff"), "unpack"));  // whatever its name
  EXPECT_TRUE(has(complaint("a.txt", "BZh91AY&SY\xff"), "unpack"));
  EXPECT_TRUE(has(complaint("a.txt", std::string("\xff\xfe"
                                                 "a\0",
                                                 4)),
                  "UTF-16"));
}

TEST(OrderedParallel, KeepsOrderAndPassesOnTheFirstError) {
  int next = 0, expected = 0;
  const std::function<bool(int&)> produce = [&](int& task) { return (task = next++) < 1000; };
  ordered_parallel<int, int>(
      4, produce, [](int task) { return task; }, [&](int result) { EXPECT_EQ(result, expected++); });
  EXPECT_EQ(expected, 1000);
  next = expected = 0;
  const auto fail = [](int task) { return task < 500 ? task : throw InputError(std::to_string(task)); };
  const auto run = [&] { ordered_parallel<int, int>(4, produce, fail, [&](int) { ++expected; }); };
  EXPECT_EQ(error_of<InputError>(run), "500");
  EXPECT_EQ(expected, 500);
}

}  // namespace
}  // namespace octet
