// A file is either whole or absent, and a full disk is a SystemError that names it.
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

TEST(Files, MissingOrWrongNamesAreErrorsWithARemedy) {
  const Scratch dir;
  EXPECT_TRUE(has(error_of<InputError>([&] { read_file(dir / "none"); }), "check the name"));
  EXPECT_TRUE(has(error_of<InputError>([&] { read_file(dir / ""); }), "not a regular file"));
  EXPECT_TRUE(has(error_of<InputError>([&] { write_file(dir / "no/folder", "x"); }), "create its folder"));
  EXPECT_TRUE(has(error_of<InputError>([&] { write_file(dir / "", "x"); }), "name a file"));
}

}  // namespace
}  // namespace octet
