#include "eval/python_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace octet {
namespace {

using testing::ElementsAre;

TEST(PythonText, LengthCountsCharacters) {
  EXPECT_EQ(count_characters(""), 0);
  EXPECT_EQ(count_characters("Zürich"), 6);
  EXPECT_EQ(count_characters("日本"), 2);
}

TEST(PythonText, StripKnowsTheSpacesOfUnicode) {
  EXPECT_EQ(strip(" \t a b\n "), "a b");
  EXPECT_EQ(strip("\u3000\u00a0x\u2028\x1f"), "x");
  EXPECT_EQ(strip("\u200bx"), "\u200bx");  // not a space
  EXPECT_EQ(strip(" \n"), "");
  EXPECT_EQ(strip_end(" a \t"), " a");
}

// The expected texts are what Python's str.capitalize() gives.
TEST(PythonText, CapitalizeRaisesTheFirstAndLowersTheRest) {
  EXPECT_EQ(capitalize("the BAKER"), "The baker");
  EXPECT_EQ(capitalize(""), "");
  EXPECT_EQ(capitalize(" the"), " the");
  EXPECT_EQ(capitalize("ÉMILE ÉTÉ"), "Émile été");
  EXPECT_EQ(capitalize("ﬁNALLY"), "Finally");  // a ligature becomes two letters
  EXPECT_EQ(capitalize("ßA"), "Ssa");
  EXPECT_EQ(capitalize("ǆX"), "ǅx");  // title case, not upper case
  EXPECT_EQ(capitalize("xİ"), "Xi\u0307");
  EXPECT_EQ(capitalize("ΟΔΟΣ ΣΟΦΟΣ"), "Οδος σοφος");
  EXPECT_EQ(capitalize("мОКРЫЙ"), "Мокрый");
  EXPECT_EQ(capitalize("日本A"), "日本a");
}

TEST(PythonText, BracketsAreRemovedUpToTheFirstClosingOne) {
  EXPECT_EQ(remove_brackets("a [b] c[d]e"), "a  ce");
  EXPECT_EQ(remove_brackets("[[a]b]"), "b]");
  EXPECT_EQ(remove_brackets("a [b"), "a [b");
  EXPECT_EQ(remove_brackets("[a\nb] [c]"), "[a\nb] ");  // not across lines
  EXPECT_EQ(remove_brackets("[]x"), "x");
}

TEST(PythonText, ReplaceGoesFromLeftToRight) {
  EXPECT_EQ(replace_all("a   b", "  ", " "), "a  b");
  EXPECT_EQ(replace_all("aaa", "a", "aa"), "aaaaaa");
}

// python3 -c "import random; r = random.Random(1234); print(r.sample(range(5), 3), ...)"
TEST(PythonText, SamplesAreThoseOfPython) {
  PythonRandom random(1234);
  EXPECT_THAT(random.sample(5, 3), ElementsAre(3, 0, 4));
  EXPECT_THAT(random.sample(1000, 3), ElementsAre(92, 932, 965));
  EXPECT_THAT(random.sample(40, 6), ElementsAre(37, 2, 5, 6, 22, 15));
  EXPECT_THAT(random.sample(39905, 5), ElementsAre(1142, 2019, 1038, 22681, 31735));
}

}  // namespace
}  // namespace octet
