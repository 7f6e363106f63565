#include "report/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "base/error.h"
#include "base/log.h"
#include "report/table.h"
#include "support/captured_log.h"

namespace octet {
namespace {

TEST(Text, DisplayWidthCountsColumnsNotBytes) {
  EXPECT_EQ(display_width(""), 0);
  EXPECT_EQ(display_width("loss"), 4);
  EXPECT_EQ(display_width("größe"), 5);
  EXPECT_EQ(display_width("█▌"), 2);
  EXPECT_EQ(display_width("訓練"), 4);
  EXPECT_EQ(display_width("e\u0301"), 1);  // e and a combining accent
  EXPECT_EQ(display_width("🚀"), 2);
  EXPECT_EQ(display_width("\xff\xfe"), 2);  // not UTF-8: one column a byte
  EXPECT_EQ(display_width("\xe8\xa8"), 2);  // cut in the middle of a character
  EXPECT_EQ(display_width("\xc0\x80"), 2);  // overlong
}

TEST(Text, TruncatesBetweenCharacters) {
  EXPECT_EQ(truncate_to_width("abc", 5), "abc");
  EXPECT_EQ(truncate_to_width("abc", 2), "ab");
  EXPECT_EQ(truncate_to_width("abc", 0), "");
  EXPECT_EQ(truncate_to_width("訓練", 3), "訓");
  EXPECT_EQ(truncate_to_width("e\u0301x", 1), "e\u0301");
}

TEST(Text, PrintableDisarmsControlCharacters) {
  EXPECT_EQ(terminal_safe("plain\tüñ\n"), "plain\tüñ\n");
  EXPECT_EQ(terminal_safe("\x1b[2J\r"), "\\x1b[2J\\x0d");
  EXPECT_EQ(terminal_safe(std::string_view("a\0b", 3)), "a\\x00b");
  EXPECT_EQ(terminal_safe("\u009b31m"), "\\x9b31m");  // the one-character form of ESC [
  EXPECT_EQ(terminal_safe("a\xff"), "a\uFFFD");
}

TEST(Text, LoginsInUrlsAreHidden) {
  EXPECT_EQ(terminal_safe("[http://ann:secret@hub:9/api/x@y] no route"),
            "[http://***@hub:9/api/x@y] no route");
  EXPECT_EQ(terminal_safe("proxy 'socks5h://token@p' and https://a:b@c@d/"),
            "proxy 'socks5h://***@p' and https://***@d/");
  for (const char* plain : {"https://huggingface.co/a@b", "ann@host: http://x/ y@z", "://", "a://b", ""})
    EXPECT_EQ(terminal_safe(plain), plain);
}

// Wherever the text comes from, the line is safe.
TEST(Text, LogLinesAreSafe) {
  const test::CapturedLog log;
  log_warning("{}", "\x1b[31mred of http://ann:secret@hub/");
  EXPECT_THAT(log.messages, testing::ElementsAre("\\x1b[31mred of http://***@hub/"));
}

TEST(Text, HumanBytes) {
  EXPECT_EQ(human_bytes(0), "0 B");
  EXPECT_EQ(human_bytes(1023), "1023 B");
  EXPECT_EQ(human_bytes(1024), "1.00 KiB");
  EXPECT_EQ(human_bytes(1536), "1.50 KiB");
  EXPECT_EQ(human_bytes(1024.0 * 1024 - 1), "1.00 MiB");
  EXPECT_EQ(human_bytes(139.2 * 1024 * 1024 * 1024), "139 GiB");
  EXPECT_EQ(human_bytes(-2048), "-2.00 KiB");
}

TEST(Text, HumanCount) {
  EXPECT_EQ(human_count(0), "0");
  EXPECT_EQ(human_count(999), "999");
  EXPECT_EQ(human_count(1000), "1K");
  EXPECT_EQ(human_count(1500), "1.5K");
  EXPECT_EQ(human_count(999'999), "1M");
  EXPECT_EQ(human_count(124'439'808), "124M");
  EXPECT_EQ(human_count(1'235'814'400), "1.24B");
  EXPECT_EQ(human_count(2.1e12), "2.1T");
  EXPECT_EQ(human_count(5e15), "5000T");
}

TEST(Text, HumanDuration) {
  EXPECT_EQ(human_duration(0.45), "450 ms");
  EXPECT_EQ(human_duration(0.9999), "1.0 s");
  EXPECT_EQ(human_duration(12.34), "12.3 s");
  EXPECT_EQ(human_duration(59.97), "1m 00s");
  EXPECT_EQ(human_duration(125), "2m 05s");
  EXPECT_EQ(human_duration(3599.6), "1h 00m");
  EXPECT_EQ(human_duration(3725), "1h 02m");
  EXPECT_EQ(human_duration(24 * 3600 - 1), "1d 00h");
  EXPECT_EQ(human_duration(76 * 3600.0), "3d 04h");
  EXPECT_EQ(human_duration(std::numeric_limits<double>::infinity()), "inf s");
}

TEST(Text, ClockDuration) {
  EXPECT_EQ(clock_duration(0), "00:00");
  EXPECT_EQ(clock_duration(39.9), "00:39");
  EXPECT_EQ(clock_duration(3723), "1:02:03");
  EXPECT_EQ(clock_duration(-1), "--:--");
  EXPECT_EQ(clock_duration(std::numeric_limits<double>::quiet_NaN()), "--:--");
}

TEST(Table, AlignsByDisplayedWidth) {
  Table table({{"layer"}, {"memory", Align::Right}, {"why", Align::Left}});
  table.add_row({"größe", "1.5 GiB", ""});
  table.add_row({"訓練データ", "2 B", "BF16"});
  table.add_rule();
  table.add_row({"total", "3", ""});
  EXPECT_EQ(table.str(),
            "layer        memory  why\n"
            "----------  -------  ----\n"
            "größe       1.5 GiB\n"
            "訓練データ      2 B  BF16\n"
            "----------  -------  ----\n"
            "total             3\n");
  EXPECT_NE(table.str(true).find("──────────  ───────  ────\n"), std::string::npos);
}

TEST(Table, RejectsARowOfAnotherWidth) {
  Table table({{"a"}, {"b"}});
  EXPECT_THROW(table.add_row({"1"}), Error);
  EXPECT_THROW(Table({}), Error);
}

TEST(Text, CountsHaveTheRightNoun) {
  EXPECT_EQ(counted(1, "step"), "1 step");
  EXPECT_EQ(counted(0, "step"), "0 steps");
  EXPECT_EQ(counted(8, "micro-batch", "micro-batches"), "8 micro-batches");
}

}  // namespace
}  // namespace octet
