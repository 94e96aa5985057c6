// A file is either whole or absent, and a full disk is a SystemError that names it.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <set>

#include "base/files.h"
#include "base/refused.h"
#include "data/checkpoints.h"
#include "data/run_folder.h"
#include "scratch.h"

namespace octet {
namespace {

TEST(Files, WhatALinkNamesIsWrittenAndTheLinkStays) {
  const Scratch folder;
  std::filesystem::create_directory(folder / "there");
  folder.write("there/real", "before");
  std::filesystem::create_symlink("there/real", folder / "link");
  write_file(folder / "link", "after");
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link"));
  EXPECT_EQ(read_file(folder / "there/real"), "after");
  std::filesystem::create_symlink("there/new", folder / "dangling");
  write_file(folder / "dangling", "made");
  EXPECT_EQ(read_file(folder / "there/new"), "made");
  std::filesystem::create_symlink("loop", folder / "loop");
  EXPECT_TRUE(has(error_of<InputError>([&] { write_file(folder / "loop", "?"); }), "loop"));
}

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

TEST(Files, TwoDoNotWriteTheSameFileAtOnce) {
  const Scratch folder;
  const auto path = folder / "file";
  {
    FileWriter first(path);
    first.write("first");
    const std::string said = error_of<InputError>([&] { FileWriter second(path); });
    EXPECT_TRUE(has(said, path.string()) && has(said, "another process")) << said;
    first.commit();
    FileWriter third(path);
    third.write("3");
  }
  EXPECT_EQ(read_file(path), "first");
  write_file(path, "4");
  EXPECT_EQ(read_file(path), "4");
  EXPECT_EQ(folder.entries(), 1);
}

TEST(Files, AFolderIsReplacedWholeOrNotAtAll) {
  const Scratch folder;
  namespace fs = std::filesystem;
  const fs::path staged = folder / "staged", final = folder / "final";
  for (const char* there : {"nothing", "a folder", "a file"}) {
    fs::remove_all(final);
    if (there == std::string("a folder")) {
      fs::create_directory(final);
      folder.write("final/old", "old");
    }
    if (there == std::string("a file")) folder.write("final", "old");
    fs::create_directory(staged);
    folder.write("staged/new", "new");
    replace_folder(staged, final);
    EXPECT_EQ(read_file(final / "new"), "new") << there;
    EXPECT_FALSE(fs::exists(final / "old")) << there;
    EXPECT_EQ(folder.entries(), 1) << there;
  }
  EXPECT_TRUE(has(error_of<InputError>([&] { replace_folder(folder / "none", folder / "gone"); }), "gone"));
  EXPECT_TRUE(has(error_of<InputError>([&] { replace_folder(folder / "none", final); }), "final"));
  EXPECT_EQ(read_file(final / "new"), "new");  // what could not be replaced is still there
}

TEST(Files, ARunsFolderIsHeldOnce) {
  const Scratch folder;
  {
    const RunFolder held(folder / "run/below");
    const std::string said = error_of<InputError>([&] { RunFolder second(folder / "run/below"); });
    EXPECT_TRUE(has(said, "run/below") && has(said, concat("process ", ::getpid()))) << said;
    const RunFolder other(folder / "other");
    for (const char* name : {".saving-00000003", "step-00000001", ".replaced-step-00000001", ".replaced-step-00000002"})
      folder.write(concat("run/below/", name), name);
  }
  const RunFolder again(folder / "run/below");
  std::set<std::string> left;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "run/below"))
    left.insert(entry.path().filename());
  EXPECT_EQ(left, (std::set<std::string>{".lock", "step-00000001", "step-00000002"}));
  EXPECT_EQ(read_file(folder / "run/below/step-00000001"), "step-00000001");
}

// To open a pipe for reading waits for one who writes it.
TEST(Files, APipeIsRefusedWhetherAnyoneWritesItOrNot) {
  const Scratch dir;
  ASSERT_EQ(::mkfifo((dir / "pipe").c_str(), 0600), 0);
  EXPECT_TRUE(has(error_of<InputError>([&] { read_file(dir / "pipe"); }), "not a regular file"));
  EXPECT_TRUE(has(error_of<InputError>([&] { LongRead file(dir / "pipe"); }), "not a regular file"));
}

TEST(Files, MissingOrWrongNamesAreErrorsWithARemedy) {
  const Scratch dir;
  EXPECT_TRUE(has(error_of<InputError>([&] { read_file(dir / "none"); }), "check the name"));
  EXPECT_TRUE(has(error_of<InputError>([&] { read_file(dir / ""); }), "is a folder: name a file"));
  EXPECT_TRUE(has(error_of<InputError>([&] { write_file(dir / "no/folder", "x"); }), "create its folder"));
  EXPECT_TRUE(has(error_of<InputError>([&] { write_file(dir / "", "x"); }), "name a file"));
}

TEST(Files, AMachineThatCannotOpenAFileIsNoWrongName) {
  for (const int error : {EIO, ENOMEM, EMFILE, ENFILE, ESTALE, ETIMEDOUT}) {
    EXPECT_FALSE(is_wrong_name(error)) << error;
    EXPECT_TRUE(has(error_of<SystemError>([&] { refused_path("read", "a.tokens", error); }), "cannot read 'a.tokens'"));
  }
  const Scratch dir;
  write_file(dir / "a", "x");
  struct NoMoreFiles {
    NoMoreFiles() {
      ::getrlimit(RLIMIT_NOFILE, &before);
      rlimit none = before;
      none.rlim_cur = 0;
      ::setrlimit(RLIMIT_NOFILE, &none);
    }
    ~NoMoreFiles() { ::setrlimit(RLIMIT_NOFILE, &before); }
    rlimit before{};
  };
  const auto refused = [&](auto&& f) {
    const NoMoreFiles limit;
    return error_of<SystemError>(f);
  };
  EXPECT_TRUE(has(refused([&] { read_file(dir / "a"); }), "raise the limit of open files"));
  // To a resume, no checkpoints would mean to start anew.
  std::filesystem::create_directory(dir / "step-00000001");
  write_file(dir / "step-00000001/COMPLETE", "");
  std::error_code why;
  try {
    const NoMoreFiles limit;
    complete_checkpoints(dir / "");
  } catch (const std::filesystem::filesystem_error& e) { why = e.code(); }
  EXPECT_EQ(why, std::errc::too_many_files_open);
  EXPECT_EQ(complete_checkpoints(dir / "").size(), 1u);
  EXPECT_TRUE(complete_checkpoints(dir / "none").empty() && complete_checkpoints(dir / "a").empty());
}

}  // namespace
}  // namespace octet
