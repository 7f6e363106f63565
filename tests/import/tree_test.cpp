#include "import/tree.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "import_support.h"
#include "support/places.h"
#include "support/process.h"

namespace octet {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

std::string parse_error(const std::string& text) {
  return test::config_error_of([&] { parse_tree(text, "f.yaml"); });
}

TEST(SettingsTree, NestedMapsBecomeDottedNamesWithTheirLines) {
  const SettingsTree tree = parse_tree(
      "# c\na: 1\nzero:\n  stage: 3\n  offload: {device: cpu}\nlist: [x, y]\nempty: {}\n", "f.yaml");
  ASSERT_EQ(tree.leaves.size(), 5u);
  EXPECT_EQ(tree.find("zero.stage")->text, "3");
  EXPECT_EQ(tree.find("zero.stage")->place, "f.yaml:4");
  EXPECT_EQ(tree.text("zero.offload.device"), "cpu");
  EXPECT_THAT(tree.find("list")->items, ElementsAre("x", "y"));
  EXPECT_EQ(tree.find("empty")->kind, TreeLeaf::Kind::EmptyMap);
  EXPECT_TRUE(tree.has("zero"));
  EXPECT_FALSE(tree.has("zer"));
}

TEST(SettingsTree, ListsOfMapsAreIndexed) {
  const SettingsTree tree = parse_tree("datasets:\n  - path: a\n    type: alpaca\n  - path: b\n", "f.yaml");
  EXPECT_EQ(tree.text("datasets.0.path"), "a");
  EXPECT_EQ(tree.text("datasets.0.type"), "alpaca");
  EXPECT_EQ(tree.find("datasets.1.path")->place, "f.yaml:4");
}

TEST(SettingsTree, JsonMayHaveCommentsTabsAndTrailingCommas) {
  const SettingsTree tree = parse_tree(
      "// head\n{\n\t\"a\": 1, # one\n\t/* two\n lines */ \"b\": {\"c\": \"//no\\\\\"},\n\t\"d\":[1,2,],\n}\n",
      "f.json");
  EXPECT_EQ(tree.text("a"), "1");
  EXPECT_EQ(tree.text("b.c"), "//no\\");
  EXPECT_THAT(tree.find("d")->items, ElementsAre("1", "2"));
  EXPECT_EQ(tree.find("d")->place, "f.json:6");
}

TEST(SettingsTree, ValuesAreReadAsPeopleWriteThem) {
  const SettingsTree tree = parse_tree(
      "rate: 1e-4\nnone: None\ntilde: ~\nnothing:\nword: \"null\"\noff: no\ncount: 1_000\nflag: True\n",
      "f.yaml");
  EXPECT_EQ(tree.number("rate"), 1e-4);
  EXPECT_TRUE(tree.find("none")->is_null());
  EXPECT_TRUE(tree.find("tilde")->is_null());
  EXPECT_TRUE(tree.find("nothing")->is_null());
  EXPECT_EQ(tree.text("word"), "null");
  EXPECT_TRUE(tree.find("off")->is_off());
  EXPECT_EQ(tree.number("count"), 1000);
  EXPECT_EQ(tree.flag("flag"), true);
}

TEST(SettingsTree, AnchorsAndMergeKeysAreExpanded) {
  const SettingsTree tree = parse_tree(
      "base: &b {lr: 1, seed: 2}\none:\n  <<: *b\n  lr: 3\ntwo: *b\nlist:\n  <<: [*b, {more: 4}]\n", "f");
  EXPECT_EQ(tree.text("one.lr"), "3");
  EXPECT_EQ(tree.text("one.seed"), "2");
  EXPECT_EQ(tree.text("two.lr"), "1");
  EXPECT_EQ(tree.text("list.more"), "4");
}

TEST(SettingsTree, InterpolationsAreFilledIn) {
  setenv("OCTET_TEST_TREE", "from-env", 1);
  const SettingsTree tree = parse_tree(
      "dir: /out\nmodel:\n  name: m\na: ${dir}/${model.name}\nb: ${oc.env:OCTET_TEST_TREE}\nc: ${oc.env:OCTET_NONE,x}\n"
      "d: ${unknown}/y\nlist: [\"${dir}/1\"]\n",
      "f");
  EXPECT_EQ(tree.text("a"), "/out/m");
  EXPECT_EQ(tree.text("b"), "from-env");
  EXPECT_EQ(tree.text("c"), "x");
  EXPECT_EQ(tree.text("d"), "${unknown}/y");
  EXPECT_THAT(tree.find("list")->items, ElementsAre("/out/1"));
  EXPECT_THAT(parse_error("a: ${b}\nb: ${a}\n"), HasSubstr("refers to itself"));
}

TEST(SettingsTree, BrokenFilesAreErrorsWithTheirPlace) {
  EXPECT_THAT(parse_error("a: 1\nb: [1, 2\n"), HasSubstr("f.yaml"));
  EXPECT_THAT(parse_error("a: 1\n  b: : 2\n"), AllOf(HasSubstr("f.yaml:2"), HasSubstr("not valid YAML")));
  EXPECT_THAT(parse_error("{\"a\": \"b\n}"), HasSubstr("not closed"));
  EXPECT_THAT(parse_error("a: 1\nb: 2\na: 3\n"), HasSubstr("a in f.yaml:3 is given twice, first in line 1"));
  EXPECT_THAT(parse_error("- a\n- b\n"), HasSubstr("does not hold a map"));
  EXPECT_THAT(parse_error("just text\n"), HasSubstr("does not hold a map"));
  EXPECT_THAT(parse_error("a: 1\n---\nb: 2\n"), HasSubstr("second YAML document"));
  EXPECT_THAT(parse_error("? [a, b]\n: c\n"), HasSubstr("not a word"));
  EXPECT_THAT(parse_error("a: \xff\n"), HasSubstr("not UTF-8"));
  EXPECT_THAT(parse_error("a: &x [*x]\n"), HasSubstr("f.yaml"));
  EXPECT_THAT(parse_error("<<: 3\n"), HasSubstr("not a map"));
  const std::string brackets(40, '['), ends(40, ']');
  EXPECT_THAT(parse_error("a: " + brackets + ends), HasSubstr("nested deeper than 32 levels"));
  // Aliases of aliases: each line has ten of the one before.
  std::string bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n";
  for (int i = 1; i < 9; ++i) {
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [";
    for (int k = 0; k < 10; ++k) bomb += (k ? ",*a" : "*a") + std::to_string(i - 1);
    bomb += "]\n";
  }
  EXPECT_THAT(parse_error(bomb), HasSubstr("more than 50000 values"));
}

TEST(SettingsTree, FilesThatCannotBeReadAreErrors) {
  const test::TemporaryFolder folder;
  const auto error = [](const std::string& path) {
    return test::config_error_of([&] { read_tree_file(path); });
  };
  EXPECT_THAT(error(folder.path()), HasSubstr("is a folder"));
  EXPECT_THAT(error(folder.path() + "/none.yaml"), HasSubstr("does not exist"));
  EXPECT_THAT(error(folder.write("big.yaml", std::string(2 << 20, '#'))), HasSubstr("larger than 1 MiB"));
  EXPECT_TRUE(read_tree_file(folder.write("empty.yaml", "# nothing\n")).leaves.empty());
}

// Cut anywhere, and with bytes replaced anywhere: an error or a tree, never a crash.
TEST(SettingsTree, DamagedFilesNeverCrash) {
  const std::string files = test::source_path("/tests/import/files/");
  for (const char* name : {"lf_anchors.yaml", "ds_zero2.json", "lf_v1.yaml", "hf_training_args.json"}) {
    const std::string text = test::read_text(files + name);
    ASSERT_FALSE(text.empty()) << name;
    const auto attempt = [&](const std::string& damaged) {
      try {
        const SettingsTree tree = parse_tree(damaged, name);
        refusals(import_tree(tree));
      } catch (const ConfigError&) {
      }
    };
    for (size_t length = 0; length < text.size(); length += 7) attempt(text.substr(0, length));
    uint64_t state = 12345;
    const std::string_view kBytes = "{}[]:,\"'#&*!|>-?% \n\t\\$<0\x80\xff";
    for (int i = 0; i < 300; ++i) {
      std::string damaged = text;
      for (int k = 0; k < 3; ++k) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        damaged[(state >> 20) % damaged.size()] = kBytes[(state >> 50) % kBytes.size()];
      }
      attempt(damaged);
    }
  }
}

}  // namespace
}  // namespace octet
