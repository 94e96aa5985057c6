// Progress and numbers as people read them.
#include <gtest/gtest.h>

#include "base/log.h"
#include "base/progress.h"

namespace octet {
namespace {

TEST(Progress, NumbersReadWell) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1536), "1.50 KiB");
  EXPECT_EQ(human_bytes(1024.0 * 1024 - 1), "1.00 MiB");
  EXPECT_EQ(human_bytes(139.8 * 1073741824), "140 GiB");
  EXPECT_EQ(human_count(0), "0");
  EXPECT_EQ(human_count(999), "999");
  EXPECT_EQ(human_count(12345), "12.3k");
  EXPECT_EQ(human_count(6738415616), "6.74B");
  EXPECT_EQ(human_count(999999), "1.00M");
  EXPECT_EQ(human_duration(0.45), "450 ms");
  EXPECT_EQ(human_duration(9.2), "9.2 s");
  EXPECT_EQ(human_duration(59.6), "1m 00s");
  EXPECT_EQ(human_duration(7620), "2h 07m");
  EXPECT_EQ(human_duration(4 * 86400 + 7200), "4d 02h");
  EXPECT_EQ(with_commas(6738415616), "6,738,415,616");
  EXPECT_EQ(with_commas(-1000), "-1,000");
  EXPECT_EQ(with_commas(999), "999");
}

TEST(Progress, ALineTellsAmountRateAndTimeLeft) {
  const Progress steps({.what = "training", .total = 100, .done = 40, .unit = "steps", .shown = false});
  // 20 steps in 10 s since it began at 40: two a second, 40 left.
  EXPECT_EQ(steps.line(60, 10, "loss 2.5"), "training: 60 of 100 steps (60 %), 2 steps/s, 20 s left, loss 2.5");
  const Progress bytes({.what = "reading", .unit = "B", .shown = false});
  EXPECT_EQ(bytes.line(2048, 2, ""), "reading: 2.00 KiB, 1.00 KiB/s");
}

TEST(Progress, ABarFillsWithTheShareAndFitsTheTerminal) {
  const Progress p({.what = "x", .total = 10, .unit = "steps", .shown = false});
  const std::string half = p.bar(5, 0, "", 80);
  EXPECT_EQ(half, "[" + std::string(20, '=') + std::string(20, ' ') + "] x: 5 of 10 steps (50 %)");
  EXPECT_LE(p.bar(5, 1, std::string(300, 'n'), 80).size(), 79u);
  EXPECT_EQ(p.bar(10, 0, "", 80).find(' '), 42u);
}

TEST(Progress, WithoutATerminalItSaysPlainLinesNowAndThen) {
  testing::internal::CaptureStderr();
  {
    Progress p({.what = "work", .total = 3, .unit = "parts", .line_seconds = 0});
    p.update(1);
    p.update(3);
    p.finish();
  }
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(text.find('\r'), std::string::npos);
  EXPECT_NE(text.find("work: 1 of 3 parts (33 %)"), std::string::npos);
  EXPECT_NE(text.find("took "), std::string::npos);
}

TEST(Log, LinesGoToTheirStreamWithTheRankAndOnlyRankZeroInforms) {
  const auto said = [](int rank, int ranks) {
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    start_logging({.rank = rank, .ranks = ranks});
    log_debug("hidden");
    log_info("step ", 3);
    log_warning("odd");
    const std::string out = testing::internal::GetCapturedStdout();
    return out + "|" + testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(said(0, 1), "step 3\n|warning: odd\n");
  EXPECT_EQ(said(0, 2), "rank 0: step 3\n|rank 0: warning: odd\n");
  EXPECT_EQ(said(1, 2), "|rank 1: warning: odd\n");
}

}  // namespace
}  // namespace octet
