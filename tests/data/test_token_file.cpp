// A token file gives back what was written at any width and size; one that lies is refused with file, fault and remedy.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <functional>

#include "data/loader.h"
#include "data/token_file.h"
#include "scratch.h"

namespace octet {
namespace {

TEST(TokenFile, WidthFollowsTheVocabulary) {
  const Scratch dir;
  for (const int64_t vocab : {65535, 65536, 65537}) {
    const TokenFile file(token_file(dir / "a", 1000, vocab, vocab - 500));
    EXPECT_EQ(file.header().token_bytes, vocab <= 65536 ? 2u : 4u);
    std::vector<int32_t> ids(1000);
    file.read(0, ids);
    for (int64_t i = 0; i < 1000; ++i) ASSERT_EQ(ids[size_t(i)], (vocab - 500 + i) % vocab);
    EXPECT_EQ(*std::max_element(ids.begin(), ids.end()), vocab - 1);
    file.verify();
    EXPECT_EQ(file.tokens(), 1000);
    EXPECT_EQ(file.documents(), 143);
  }
}

TEST(TokenFile, IndexFindsDocuments) {
  const Scratch dir;
  const TokenFile file(token_file(dir / "a", 100));
  EXPECT_EQ(file.starts_in(0, 0).document, 0);
  EXPECT_EQ(file.starts_in(1, 1).document, 1);
  EXPECT_EQ(file.starts_in(7, 7).document, 1);
  EXPECT_EQ(file.starts_in(8, 8).document, 2);
  EXPECT_EQ(file.starts_in(1000, 1000).document, 15);
  EXPECT_EQ(file.document_start(14), 98);
}

// A header over a file of holes: 4 GiB of zeros that take no disk.
TEST(TokenFile, PositionsBeyond31BitsAreRead) {
  const Scratch dir;
  TokenFileHeader h;
  h.vocab_size = 1000;
  h.token_bytes = 2;
  h.tokens = (uint64_t(1) << 31) + 4096;
  h.documents = 1;
  h.index_offset = sizeof h + 2 * h.tokens;
  const std::filesystem::path path = dir / "sparse";
  const int fd = ::open(path.c_str(), O_CREAT | O_RDWR, 0600);
  ASSERT_EQ(::ftruncate(fd, off_t(h.index_offset + 8)), 0);
  ASSERT_EQ(::pwrite(fd, &h, sizeof h, 0), ssize_t(sizeof h));
  const uint16_t last[2] = {998, 999};
  ASSERT_EQ(::pwrite(fd, last, 4, off_t(h.index_offset - 4)), 4);
  ::close(fd);

  LoaderConfig config;
  config.files = {path.string()};
  config.seq_len = 1024;
  config.vocab_size = 1000;
  config.shuffle = false;
  const Loader loader(config);
  ASSERT_EQ(loader.samples_per_epoch(), int64_t((h.tokens - 2) / 1024 + 1));
  const Batch batch = loader.batch(loader.samples_per_epoch() - 1, 1);
  EXPECT_EQ(batch.targets[1022], 999);
  EXPECT_EQ(batch.tokens[1022], 998);
  EXPECT_EQ(batch.targets[1023], kIgnore);  // tokens - 1 = 1023 (mod 1024)
}

std::string complaint(const Scratch& dir, std::string contents) {
  const std::string message = error_of<InputError>([&] { TokenFile(dir.write("bad", contents)).verify(); });
  EXPECT_TRUE(has(message, "bad'")) << message;
  EXPECT_TRUE(has(message, "octet")) << "no remedy: " << message;
  return message;
}

TEST(TokenFile, DamageIsNamed) {
  const Scratch dir;
  const std::string good = read_file(token_file(dir / "good", 1000, 300));
  const auto lie = [&](size_t offset, uint64_t value, size_t bytes = 8) {
    std::string copy = good;
    copy.replace(offset, bytes, reinterpret_cast<const char*>(&value), bytes);
    return complaint(dir, copy);
  };
  EXPECT_TRUE(has(complaint(dir, ""), "not a token file"));
  EXPECT_TRUE(has(complaint(dir, "The town of Saltmarsh"), "not a token file"));
  EXPECT_TRUE(has(complaint(dir, std::string(2000, '\1')),
                  "from tokens of llm.c, Megatron-LM and others with 'octet convert'"));
  EXPECT_TRUE(has(complaint(dir, good.substr(0, 5)), "truncated"));
  EXPECT_TRUE(has(complaint(dir, good.substr(0, 100)), "truncated within its header"));
  EXPECT_TRUE(has(complaint(dir, good.substr(0, 128)), "truncated"));
  EXPECT_TRUE(has(complaint(dir, good.substr(0, 1000)), "promises 1000 tokens"));
  EXPECT_TRUE(has(complaint(dir, good.substr(0, good.size() - 1)), "truncated"));
  EXPECT_TRUE(has(complaint(dir, good + "x"), "after its end"));
  EXPECT_TRUE(has(lie(8, 2, 4), "newer"));
  EXPECT_TRUE(has(lie(12, 4, 4), "bytes a token"));
  EXPECT_TRUE(has(lie(12, 0, 4), "bytes a token"));
  for (const uint64_t tokens :
       {uint64_t(990), uint64_t(1100), uint64_t(1) << 63, (uint64_t(1) << 63) + 1000, ~uint64_t(0)})
    lie(16, tokens);
  for (const uint64_t documents : {uint64_t(0), uint64_t(142), uint64_t(144), (uint64_t(1) << 61) + 143, ~uint64_t(0)})
    lie(24, documents);
  for (const uint64_t vocab : {uint64_t(0), uint64_t(1) << 31, ~uint64_t(0)})
    EXPECT_TRUE(has(lie(32, vocab), "vocabulary"));
  for (const uint64_t offset : {uint64_t(0), uint64_t(128), ~uint64_t(7)}) EXPECT_TRUE(has(lie(56, offset), "index"));
  EXPECT_TRUE(has(lie(good.size() - 8, 1000), "index"));              // the last document beyond the end
  EXPECT_TRUE(has(lie(good.size() - 16, 5), "document 141 starts"));  // not rising: found by verify()
}

TEST(TokenFile, AnIdBeyondTheVocabularyIsNamedWithItsPlace) {
  const Scratch dir;
  for (const int64_t vocab : {300, 70000}) {
    std::string bytes = read_file(token_file(dir / "good", 1000, vocab));
    const uint32_t id = vocab == 300 ? 300 : 0xffffffff;
    bytes.replace(128 + 777 * (vocab == 300 ? 2 : 4), vocab == 300 ? 2 : 4, reinterpret_cast<const char*>(&id),
                  vocab == 300 ? 2 : 4);
    const std::string message = complaint(dir, bytes);
    EXPECT_TRUE(has(message, "token 777 has id " + std::to_string(id))) << message;
    LoaderConfig config;
    config.files = {(dir / "bad").string()};
    config.seq_len = 100;
    config.vocab_size = vocab;
    config.shuffle = false;
    const Loader loader(config);
    EXPECT_EQ(loader.batch(0, 7).batch, 7);
    EXPECT_TRUE(has(error_of<InputError>([&] { loader.batch(7, 1); }), "token 777"));
  }
}

// Were it mapped, that would end the program with SIGBUS.
TEST(TokenFile, OneThatIsCutShortUnderWayIsNamed) {
  const Scratch dir;
  const std::filesystem::path path = token_file(dir / "good", 100000, 300);
  const TokenFile file(path);
  std::vector<int32_t> ids(10);
  file.read(file.tokens() - 10, ids);
  std::filesystem::resize_file(path, 5000);
  for (const auto& use : std::vector<std::function<void()>>{[&] { file.read(file.tokens() - 10, ids); },
                                                            [&] { file.starts_in(70, 70).document; }}) {
    try {
      use();
      ADD_FAILURE() << "nothing was thrown";
    } catch (const SystemError& e) {
      for (const char* part : {"good'", "shrank from", "to 5000 bytes", "restore the whole file"})
        EXPECT_TRUE(has(e.what(), part)) << e.what();
      EXPECT_EQ(e.exit_code(), 3);
    }
  }
}

// More than the usual limit of open files.
TEST(TokenFile, ManyAreOpenAtOnce) {
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit few = before;
  few.rlim_cur = 40;
  if (before.rlim_max < 200) GTEST_SKIP() << "the limit cannot be raised here";
  const Scratch dir;
  for (int i = 0; i < 100; ++i) token_file(dir / std::to_string(i), 50, 300, i);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  std::vector<TokenFile> files;
  for (int i = 0; i < 100; ++i) files.emplace_back(dir / std::to_string(i));
  write_file(dir / "another", "there is room for it");
  std::vector<int32_t> ids(50);
  for (int i = 0; i < 100; ++i) {
    files[size_t(i)].read(0, ids);
    EXPECT_EQ(ids[49], i + 49);
  }
  few.rlim_max = few.rlim_cur = 40;  // for good: this process forks
  const pid_t child = ::fork();
  if (child == 0) {
    ::setrlimit(RLIMIT_NOFILE, &few);
    try {
      const TokenFile one_more(dir / "0");
    } catch (const SystemError& e) { ::_exit(has(e.what(), "ulimit -n") && has(e.what(), "/0'") ? 0 : 1); }
    ::_exit(2);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  ::setrlimit(RLIMIT_NOFILE, &before);
}

TEST(TokenFile, StartsOfDocumentsAreThoseThatBisectionFinds) {
  const Scratch dir;
  for (const int64_t document : {1, 3, 997}) {  // many pages of the index, and less than one
    const TokenFile file(token_file(dir / "a", 5000, 300, 0, document));
    for (int64_t begin = 0; begin < 5000; begin += 50)  // 2500 and 1250 too, where bisection looks
      for (const int64_t length : {0, 1, 2, 100, 3000}) {
        const TokenFile::Starts found = file.starts_in(begin, begin + length);
        std::vector<int64_t> expected;
        for (int64_t at = (begin + document - 1) / document * document; at < std::min<int64_t>(begin + length, 5000);
             at += document)
          expected.push_back(at);
        ASSERT_EQ(found.at, expected) << document << ' ' << begin << ' ' << length;
        ASSERT_EQ(found.document, (begin + document - 1) / document);
      }
  }
}

TEST(TokenFile, AnotherFileUnderItsNameDoesNoHarm) {
  const Scratch dir;
  const std::filesystem::path path = token_file(dir / "good", 1000, 300);
  const TokenFile file(path);
  std::filesystem::rename(token_file(dir / "other", 10, 300), path);
  std::vector<int32_t> ids(10);
  file.read(990, ids);
  EXPECT_EQ(ids[9], 999 % 300);
  std::filesystem::remove(path);
  file.read(990, ids);
  EXPECT_EQ(file.starts_in(1000, 1000).document, 143);
}

TEST(TokenFile, NothingIsLeftOfOneThatWasNotFinished) {
  const Scratch dir;
  {
    TokenFileHeader like;
    like.vocab_size = 10;
    TokenFileWriter writer(dir / "a", like);
    writer.begin_document();
  }
  EXPECT_EQ(dir.entries(), 0);
}

}  // namespace
}  // namespace octet
