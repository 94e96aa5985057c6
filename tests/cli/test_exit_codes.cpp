// Every command answers every kind of bad input with exit code 2 and a message that names it;
// the documented codes hold.
#include <sys/stat.h>

#include <chrono>
#include <thread>

#include "cli/tensors.h"
#include "cli/tiny_run.h"
#include "golden.h"

namespace octet {
namespace {
namespace fs = std::filesystem;

// Each command line that reads a file, with FILE in the place of that file.
struct Reader {
  const char* what;
  std::vector<std::string> words;
};

// Tokens of the golden models' vocabulary, in a folder of their own.
std::string golden_tokens() {
  static const Scratch kept;
  static const std::string path = token_file(kept / "golden.tokens", 200, 128);
  return path;
}

std::vector<Reader> readers_of_models(const Scratch& f) {
  const std::string out = f / "out";
  return {{"import", {"import", "FILE", "--out", out}},
          {"export", {"export", "FILE", "--out", out}},
          {"verify", {"verify", "FILE", golden("llama-gqa") + "/expected.safetensors", "--device", "cpu"}},
          {"eval", {"eval", "FILE", "--device", "cpu", "--data", golden_tokens()}},
          {"generate", {"generate", "FILE", "--device", "cpu", "--prompt-ids", "1,2"}},
          {"inspect", {"inspect", "FILE"}},
          {"inspect --diff", {"inspect", "--diff", golden("llama-gqa"), "FILE"}}};
}
std::vector<Reader> readers_of_files(const Scratch& f, const TinyRun& tiny) {
  const std::string out = f / "out", tokenizer = tiny.path("tokenizer.model"), text = small_text();
  return {{"train's config", {"train", "FILE"}},
          {"plan's config", {"plan", "FILE"}},
          {"bench's config", {"bench", "FILE"}},
          {"train's tokens", {"train", tiny.path("config.json"), "data.train=FILE"}},
          {"train's checkpoint", {"train", tiny.path("config.json"), "--resume", "FILE"}},
          {"tokenizer's text", {"tokenizer", "--input", "FILE", "--out", out}},
          {"tokenize's tokenizer", {"tokenize", "--tokenizer", "FILE", "--input", text, "--out", out}},
          {"tokenize's text", {"tokenize", "--tokenizer", tokenizer, "--input", "FILE", "--out", out}},
          {"decode's tokens", {"tokenize", "--decode", "--tokenizer", tokenizer, "--input", "FILE", "--out", out}},
          {"export's tokenizer", {"export", golden("llama-gqa"), "--tokenizer", "FILE", "--out", out}},
          {"eval's tokens", {"eval", golden("llama-gqa"), "--device", "cpu", "--data", "FILE"}},
          {"generate's tokenizer", {"generate", golden("llama-gqa"), "--tokenizer", "FILE", "--prompt", "x"}},
          {"inspect's tokenizer", {"inspect", tiny.path("train.tokens"), "--tokenizer", "FILE"}},
          {"verify's values", {"verify", golden("llama-gqa"), "FILE", "--device", "cpu"}}};
}
std::vector<Reader> all_readers(const Scratch& f, const TinyRun& tiny) {
  std::vector<Reader> all = readers_of_models(f);
  for (Reader& r : readers_of_files(f, tiny)) all.push_back(std::move(r));
  return all;
}

std::vector<std::string> with(std::vector<std::string> words, const std::string& file) {
  for (std::string& word : words)
    if (const size_t at = word.find("FILE"); at != std::string::npos) word.replace(at, 4, file);
  return words;
}

Ran without_rights(std::vector<std::string> words) {  // so that permissions count for root too
  words.insert(words.begin(), OCTET_BINARY);
  if (::geteuid() == 0)
    words.insert(words.begin(), {"setpriv", "--inh-caps=-dac_override,-dac_read_search",
                                 "--bounding-set=-dac_override,-dac_read_search"});
  return run(words);
}

}  // namespace

TEST(ExitCodes, AMissingFileIsBadInput) {
  const TinyRun tiny;
  const Scratch folder;
  for (const Reader& r : all_readers(folder, tiny)) {
    SCOPED_TRACE(r.what);
    expect_refused(octet_says(with(r.words, folder / "no-such")), {"no-such"});
  }
  EXPECT_EQ(folder.entries(), 0);
}

TEST(ExitCodes, APathThroughAFileIsBadInput) {
  const TinyRun tiny;
  const Scratch folder;
  folder.write("file", "text");
  for (const Reader& r : all_readers(folder, tiny)) {
    SCOPED_TRACE(r.what);
    expect_refused(octet_says(with(r.words, folder / "file/below")), {"file/below"});
  }
}

TEST(ExitCodes, TheWrongKindOfFileIsBadInput) {
  const TinyRun tiny;
  const Scratch folder;
  const std::string picture = folder.write("picture.png", std::string("\x89PNG\r\n\x1a\n\0\0\0\rIHDR", 16));
  const std::string empty = folder.write("empty", "");
  fs::create_directory(folder / "folder");
  for (const Reader& r : readers_of_models(folder))
    for (const std::string& wrong : {picture, empty, std::string(folder / "folder"), tiny.path("train.tokens")}) {
      SCOPED_TRACE(concat(r.what, " ", wrong));
      if (std::string(r.what) == "inspect" && wrong == tiny.path("train.tokens")) continue;  // reads it
      expect_refused(octet_says(with(r.words, wrong)), {fs::path(wrong).filename().string()});
    }
  for (const Reader& r : readers_of_files(folder, tiny))
    for (const std::string& wrong : {picture, empty, std::string(folder / "folder")}) {
      SCOPED_TRACE(concat(r.what, " ", wrong));
      if (std::string(r.what) == "eval's tokens") continue;  // takes other files for text
      const bool any_bytes_are_text = std::string(r.what).ends_with("'s text") && wrong == picture;
      const bool no_text = std::string(r.what).ends_with("'s text") && wrong == empty;
      if (!any_bytes_are_text)
        expect_refused(octet_says(with(r.words, wrong)), {no_text ? "no text" : fs::path(wrong).filename().string()});
    }
}

TEST(ExitCodes, ATruncatedFileIsBadInput) {
  const TinyRun tiny;
  const Scratch folder;
  copy_folder(golden("llama-gqa"), folder / "model");
  const std::string weights = read_file(golden("llama-gqa") + "/model.safetensors");
  for (const size_t length : {size_t(3), size_t(100), weights.size() / 2, weights.size() - 1}) {
    write_file(folder / "model/model.safetensors", weights.substr(0, length));
    for (const Reader& r : readers_of_models(folder)) {
      SCOPED_TRACE(concat(r.what, " ", length));
      expect_refused(octet_says(with(r.words, folder / "model")), {"model.safetensors", "damaged"});
    }
  }
  write_file(folder / "model/model.safetensors", weights);
  const std::string config = read_file(folder / "model/config.json");
  write_file(folder / "model/config.json", config.substr(0, config.size() / 2));
  for (const char* reader : {"import", "export", "verify"})
    for (const Reader& r : readers_of_models(folder))
      if (r.what == std::string(reader)) expect_refused(octet_says(with(r.words, folder / "model")), {"config.json:"});
  const auto cut = [&](const std::string& name, size_t part) {
    const std::string whole = read_file(tiny.path(name));
    return folder.write("cut-" + name, whole.substr(0, whole.size() * part / 10)).string();
  };
  const std::string tokens = cut("train.tokens", 5), tokenizer = cut("tokenizer.model", 5);
  for (const Reader& r : readers_of_files(folder, tiny)) {
    SCOPED_TRACE(r.what);
    if (std::string(r.what).ends_with(" tokens"))
      expect_refused(octet_says(with(r.words, tokens)), {"cut-train.tokens"});
    if (std::string(r.what).ends_with(" tokenizer"))
      expect_refused(octet_says(with(r.words, tokenizer)), {"cut-tokenizer.model"});
  }
  expect_refused(octet_says({"inspect", tokens}), {"cut-train.tokens", "truncated"});
}

TEST(ExitCodes, AForeignDtypeIsBadInput) {
  const Scratch folder;
  copy_folder(golden("llama-gqa"), folder / "model");
  change_dtype(folder / "model/model.safetensors", "F32", "Q40");
  for (const Reader& r : readers_of_models(folder)) {
    SCOPED_TRACE(r.what);
    expect_refused(octet_says(with(r.words, folder / "model")), {"model.safetensors", "Q40"});
  }
  copy_folder(golden("llama-gqa"), folder / "integers");
  change_dtype(folder / "integers/model.safetensors", "F32", "I32");
  for (const Reader& r : readers_of_models(folder)) {
    SCOPED_TRACE(r.what);
    if (std::string(r.what) == "inspect") expect_done(octet_says(with(r.words, folder / "integers")), {"I32"});
    else expect_refused(octet_says(with(r.words, folder / "integers")), {"I32", "floating-point"});
  }
  EXPECT_FALSE(fs::exists(folder / "out"));
}

TEST(ExitCodes, APathWithoutPermissionIsBadInput) {
  if (without_rights({"--version"}).code != 0) GTEST_SKIP() << "there is no setpriv, or no right to give up rights";
  const TinyRun tiny;
  const Scratch folder;
  fs::create_directory(folder / "locked");
  folder.write("locked/file", "text");
  fs::permissions(folder / "locked", fs::perms(0));
  folder.write("secret", "text");
  fs::permissions(folder / "secret", fs::perms(0));
  for (const Reader& r : all_readers(folder, tiny)) {
    SCOPED_TRACE(r.what);
    std::vector<std::string> words = with(r.words, folder / "locked/file");
    Ran said = without_rights(words);
    EXPECT_EQ(said.code, 2) << said;
    EXPECT_TRUE(said.err.starts_with("octet: ")) << said;
    EXPECT_TRUE(has(said.err, "locked/file")) << said;
    EXPECT_FALSE(has(said.err, "filesystem error")) << said;
  }
  for (const Reader& r : readers_of_models(folder)) {
    SCOPED_TRACE(r.what);
    expect_refused(without_rights(with(r.words, folder / "locked/file")), {"locked/file", "Permission denied"});
  }
  const Ran secret = without_rights({"inspect", folder / "secret"});
  expect_refused(secret, {"secret", "Permission denied"});
  const Ran read = without_rights({"export", folder / "locked/file", "--out", folder / "out"});
  expect_refused(read, {"locked/file", "Permission denied"});
  fs::permissions(folder / "locked", fs::perms(0700));
}

TEST(ExitCodes, APlaceThatCannotBeWrittenIsBadInput) {
  const TinyRun tiny;
  const Scratch folder;
  folder.write("file", "text");
  const std::string tokenizer = tiny.path("tokenizer.model"), text = small_text(), out = folder / "file/out";
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"tokenizer", "--input", text, "--vocab-size", "400", "--out", out},
           {"tokenize", "--tokenizer", tokenizer, "--input", text, "--out", out},
           {"tokenize", "--decode", "--tokenizer", tokenizer, "--input", tiny.path("train.tokens"), "--out", out},
           {"import", golden("llama-gqa"), "--out", out},
           {"export", golden("llama-gqa"), "--out", out},
           {"train", tiny.path("config.json"), "training.steps=3", "checkpoint.dir=" + out}}) {
    SCOPED_TRACE(words[0]);
    expect_refused(octet_says(words), {"file/", "Not a directory"});
  }
  EXPECT_EQ(read_file(folder / "file"), "text");
}

TEST(ExitCodes, AnOutputThatIsAlsoReadIsBadInput) {
  const TinyRun tiny;
  const std::string tokenizer = tiny.path("tokenizer.model"), tokens = tiny.path("train.tokens"),
                    text = tiny.folder().write("text.txt", read_file(small_text()));
  fs::create_hard_link(text, tiny.path("link.txt"));
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"tokenizer", "--input", text, "--vocab-size", "400", "--out", text},
           {"tokenizer", "--input", tiny.path("*.txt"), "--vocab-size", "400", "--out", text},
           {"tokenize", "--tokenizer", tokenizer, "--input", text, "--out", text},
           {"tokenize", "--tokenizer", tokenizer, "--input", text, "--out", tiny.path("link.txt")},
           {"tokenize", "--tokenizer", tokenizer, "--input", text, "--out", tokenizer},
           {"tokenize", "--decode", "--tokenizer", tokenizer, "--input", tokens, "--out", tokens}}) {
    const std::string before = read_file(words.back());
    expect_refused(octet_says(words), {fs::path(words.back()).filename(), "also an input"});
    EXPECT_TRUE(read_file(words.back()) == before) << words.back();
  }
  for (const char* name : {"train.tokens", "tokenizer.model", "config.json"}) {
    const std::string before = read_file(tiny.path(name));
    expect_refused(tiny.train({"data.tokenizer=" + tiny.path(""), "log.file=" + tiny.path(name)}),
                   {name, "also an input"});
    EXPECT_TRUE(read_file(tiny.path(name)) == before) << name;
  }
}

TEST(ExitCodes, ANumberWithoutMeaningIsBadInput) {
  const TinyRun tiny;
  expect_done(tiny.train({"training.steps=3", "checkpoint.every=0"}));
  const std::string config = tiny.path("config.json"), run = tiny.path("run"), text = small_text(),
                    out = tiny.path("out"), tokenizer = tiny.path("tokenizer.model"),
                    tokens = tiny.path("train.tokens");
  const std::vector<std::vector<std::string>> commands{
      {"train", config, "--ranks"},
      {"plan", config, "--ranks"},
      {"plan", config, "--local-ranks"},
      {"bench", config, "--steps"},
      {"bench", config, "--warmup"},
      {"tokenizer", "--input", text, "--out", out, "--vocab-size"},
      {"tokenizer", "--input", text, "--out", out, "--max-megabytes"},
      {"tokenizer", "--input", text, "--out", out, "--character-coverage"},
      {"tokenize", "--tokenizer", tokenizer, "--input", text, "--out", out, "--threads"},
      {"export", run, "--out", out, "--vocab-size"},
      {"export", run, "--out", out, "--max-shard-size"},
      {"inspect", tokens, "--documents"},
      {"eval", run, "--device", "cpu", "--data", tokens, "--batch"},
      {"eval", run, "--device", "cpu", "--data", tokens, "--seq-len"},
      {"eval", run, "--device", "cpu", "--data", tokens, "--limit"},
      {"generate", run, "--device", "cpu", "--prompt", "x", "--temperature"},
      {"generate", run, "--device", "cpu", "--prompt", "x", "--temperature", "1", "--top-p"},
      {"generate", run, "--device", "cpu", "--prompt", "x", "--temperature", "1", "--top-k"},
      {"generate", run, "--device", "cpu", "--prompt", "x", "--max-new-tokens"},
      {"generate", run, "--device", "cpu", "--prompt", "x", "--seed"},
      {"generate", run, "--device", "cpu", "--prompt", "x", "--stop-ids"}};
  for (const std::vector<std::string>& command : commands)
    for (const char* number : {"-1", "1e30", "9223372036854775808", "nan", "", "many", "0x10", "1 2"}) {
      std::vector<std::string> words = command;
      words.push_back(number);
      const Ran r = octet_says(words);
      SCOPED_TRACE(concat(command[0], " ", command.back(), " '", number, "'"));
      expect_refused(r, {command.back()});
    }
  for (const std::vector<std::string>& command :
       commands) {  // the largest there is: used as far as it goes, or refused
    std::vector<std::string> words = command;
    words.push_back("9223372036854775807");
    const Ran r = octet_says(words);
    EXPECT_TRUE(r.code == 0 || r.code == 2) << command[0] << " " << command.back() << " " << r;
    fs::remove_all(out);
  }
}

// What is mapped and cut meanwhile would end the program with SIGBUS.
TEST(ExitCodes, ATextThatIsCutShortUnderWayIsNamed) {
  const TinyRun tiny;
  std::string text;
  while (text.size() < size_t(30) << 20) text += read_file(small_text());
  const std::string path = tiny.folder().write("long.txt", text), out = tiny.path("out.tokens");
  Process process(
      {OCTET_BINARY, "tokenize", "--tokenizer", tiny.path("tokenizer.model"), "--input", path, "--out", out},
      tiny.folder());
  std::error_code none;
  const auto under_way = [&] { return fs::file_size(out + ".tmp", none) > 0 && !none; };  // the first part is written
  while (process.runs() && !under_way()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  fs::resize_file(path, 1000);
  const Ran r = process.wait();
  EXPECT_EQ(r.code, 3) << r;
  EXPECT_TRUE(has(r.err, "octet: '" + path + "' cannot be read any more: it was cut short")) << r;
  EXPECT_FALSE(fs::exists(out));
}

TEST(ExitCodes, AFullDiskIsTheSystemsFault) {
  const TinyRun tiny;
  const std::string tokenizer = tiny.path("tokenizer.model");
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"tokenizer", "--input", small_text(), "--vocab-size", "400", "--out", "/dev/full"},
           {"tokenize", "--decode", "--tokenizer", tokenizer, "--input", tiny.path("train.tokens"), "--out",
            "/dev/full"}}) {
    const Ran r = octet_says(words);
    EXPECT_EQ(r.code, 3) << r;
    EXPECT_TRUE(has(r.err, "/dev/full") && has(r.err, "No space")) << r;
  }
  const Ran shown = run({"sh", "-c", concat(OCTET_BINARY, " inspect ", tiny.path("train.tokens"), " > /dev/full")});
  EXPECT_EQ(shown.code, 3) << shown;
}

TEST(ExitCodes, AFailedCheckIsOne) {
  const Scratch folder;
  copy_folder(golden("llama-gqa"), folder / "model");
  std::vector<FloatTensor> tensors;
  const SafetensorsFile from(folder / "model/model.safetensors");
  for (const auto& e : from.entries()) tensors.push_back({e.name, e.shape, from.read_all<float>(e.name)});
  for (float& v : tensors.back().values) v += 0.5f;
  write_tensors(folder / "model/model.safetensors", tensors);
  const Ran r =
      octet_says({"verify", folder / "model", golden("llama-gqa") + "/expected.safetensors", "--device", "cpu"});
  EXPECT_EQ(r.code, 1) << r;
}

TEST(ExitCodes, AreDocumented) {
  for (const char* code : {"\n  0  ", "\n  1  ", "\n  2  ", "\n  3  ", "\n  4  "})
    EXPECT_TRUE(has(octet_says({"help"}).out, code)) << code;
}

}  // namespace octet
