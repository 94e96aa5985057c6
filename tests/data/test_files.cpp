// A file is either whole or absent, and a full disk is a SystemError that names it.
#include <fcntl.h>
#include <unistd.h>

#include "base/files.h"
#include "scratch.h"

namespace octet {
namespace {

TEST(Files, ReadBackWhatWasWritten) {
  const Scratch dir;
  std::string big(3 << 20, 'x');
  big[1 << 20] = '\0';
  FileWriter file(dir / "a");
  file.write("head");
  file.write(big);
  file.write(std::string_view("tail"));
  file.overwrite(1, "EA", 2);
  file.commit();
  EXPECT_EQ(read_file(dir / "a"), "hEAd" + big + "tail");
  EXPECT_EQ(MappedFile(dir.write("empty", "")).bytes(), "");
  EXPECT_EQ(dir.entries(), 2);
}

TEST(Files, WithoutCommitTheOldFileStays) {
  const Scratch dir;
  dir.write("a", "old");
  {
    FileWriter file(dir / "a");
    file.write("new");
  }
  EXPECT_EQ(read_file(dir / "a"), "old");
  EXPECT_EQ(dir.entries(), 1);
}

TEST(Files, AFullDiskIsASystemErrorThatNamesTheFile) {
  const std::string message = error_of<SystemError>([] { write_file("/dev/full", "x"); });
  EXPECT_TRUE(has(message, "/dev/full") && has(message, "No space left") && has(message, "free some space")) << message;
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/full"));
  EXPECT_TRUE(has(error_of<SystemError>([] {
                    TokenFileHeader like;
                    like.vocab_size = 10;
                    TokenFileWriter writer("/dev/full", like);
                    writer.begin_document();
                    writer.finish();
                  }),
                  "/dev/full"));
}

// /dev/stdout stands for whatever the shell opened, a regular file too: that name must never be replaced, and what is
// there before stays.
TEST(Files, ADeviceIsWrittenDirectlyBehindWhatIsThere) {
  const Scratch dir;
  dir.write("out", "before ");
  const int fd = ::open((dir / "out").c_str(), O_WRONLY | O_APPEND);
  ASSERT_GE(fd, 0);
  const std::string device = "/dev/fd/" + std::to_string(fd);
  write_file(device, "after");
  EXPECT_TRUE(std::filesystem::is_symlink(device));
  EXPECT_EQ(read_file(dir / "out"), "before after");
  EXPECT_EQ(dir.entries(), 1);
  ::close(fd);
}

TEST(Files, MissingOrWrongNamesAreErrorsWithARemedy) {
  const Scratch dir;
  EXPECT_TRUE(has(error_of<InputError>([&] { read_file(dir / "none"); }), "check the name"));
  EXPECT_TRUE(has(error_of<InputError>([&] { read_file(dir / ""); }), "not a regular file"));
  EXPECT_TRUE(has(error_of<InputError>([&] { write_file(dir / "no/folder", "x"); }), "create its folder"));
  EXPECT_TRUE(has(error_of<InputError>([&] { write_file(dir / "", "x"); }), "name a file"));
}

}  // namespace
}  // namespace octet
