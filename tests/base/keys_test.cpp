// How flags are read, whatever command they belong to.
#include "base/keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/process.h"

namespace octet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

struct Values {
  std::string text;
  std::vector<std::string> list, repeated;
  bool flag = false;
  int64_t number = 0;
  double share = 0, weight = 0;
  std::string kind;
};

struct Read {
  Values values;
  std::vector<std::string> positionals, errors;
  bool help = false;
};

KeyTable<Values> table() {
  KeyTable<Values> keys;
  keys.group("Flags");
  keys.add("text", &Values::text, "Some text.").short_flag('t').value("FILE").must_be_given();
  keys.add("list", &Values::list, "Names.");
  keys.add("repeated", &Values::repeated, "Texts.").repeatable().alias("again");
  keys.add("flag", &Values::flag, "On or off.");
  keys.add("number", &Values::number, "A count.").at_least(0);
  keys.add("share", &Values::share, "A part.").at_least(0).below(1);
  keys.add("weight", &Values::weight, "A factor.");
  keys.add("kind", &Values::kind, {"small", "large"}, "A size.").note("the right one");
  return keys;
}

Read read(const std::vector<std::string>& arguments, PositionalKind kind = PositionalKind::Any) {
  const KeyTable<Values> keys = table();
  Read result;
  KeyArguments parsed = parse_key_arguments(keys.keys(), arguments, result.errors, kind);
  for (const KeyAssignment& assignment : resolve_settings(keys.keys(), parsed.settings, result.errors))
    keys.set(result.values, assignment.index, assignment.value);
  result.positionals = parsed.positionals;
  result.help = parsed.help;
  return result;
}

TEST(Keys, ARepeatedKeyTakesOneWholeItemPerFlag) {
  const Read given = read({"--repeated", "a, b", "--again=", "--repeated", "- c"});
  EXPECT_THAT(given.errors, IsEmpty());
  EXPECT_THAT(given.values.repeated, ElementsAre("a, b", "", "- c"));
  EXPECT_THAT(read({"--list", "a, b"}).values.list, ElementsAre("a", "b"));
  EXPECT_THAT(read({"--list", "a", "--list", "b"}).errors, ElementsAre("--list is given twice"));
  EXPECT_THAT(read({"--repeated", "\xff"}).errors, ElementsAre("--repeated is '\\xff'; expected UTF-8 text"));
}

// Such as a file of another kind: a search for every one would take minutes.
TEST(Keys, OnlyTheFirstUnknownKeysComeWithSuggestions) {
  std::vector<std::string> arguments;
  for (int i = 0; i < 100; ++i) arguments.push_back("--nmber" + std::string(static_cast<size_t>(i % 2), 'r'));
  const std::vector<std::string> errors = read(arguments).errors;
  const auto suggestions =
      std::ranges::count_if(errors, [](const std::string& e) { return e.find("'--number'") != e.npos; });
  EXPECT_GT(suggestions, 0);
  EXPECT_LT(suggestions, 50);
  EXPECT_GE(errors.size(), 100u) << "every unknown key is named";
}

TEST(Keys, AValueMayStartWithADash) {
  for (const char* value : {"-1", "- item", "-", "--- a title", "--help me", "--1"})
    EXPECT_EQ(read({"--text", value}).values.text, value);
  for (const char* value : {"--flag", "-h", "--help", "--unknown", "--flag=no", "-t"}) {
    EXPECT_THAT(read({"--text", value}).errors, testing::Contains("--text needs a value. Some text."))
        << value;
    EXPECT_EQ(read({std::string("--text=") + value}).values.text, value);
  }
}

// A share of 1 that was given as less, or a limit of 0 that means off, would train something else.
TEST(Keys, ANumberThatFp32CannotHoldIsRefused) {
  const auto error = [](const char* flag, const char* value) {
    const Read given = read({flag, value});
    return given.errors.empty() ? "" : given.errors.front();
  };
  EXPECT_THAT(
      error("--share", "0.9999999999"),
      HasSubstr("--share is '0.9999999999', which becomes 1 in fp32; expected a number of at least 0"));
  EXPECT_THAT(error("--share", "1e-300"), HasSubstr("becomes 0 in fp32"));
  EXPECT_THAT(error("--weight", "-1e308"), HasSubstr("becomes infinite in fp32"));
  for (const char* fine : {"0", "1e-40", "0.9999999", "0.1"}) EXPECT_EQ(error("--share", fine), "") << fine;
  EXPECT_EQ(error("--weight", "3e38"), "");
}

TEST(Keys, ShortFlags) {
  EXPECT_EQ(read({"-t", "x"}).values.text, "x");
  EXPECT_EQ(read({"-t=x"}).values.text, "x");
  EXPECT_THAT(read({"-t", "x", "--text", "y"}).errors, ElementsAre("--text is given twice"));
  EXPECT_THAT(read({"-x"}).errors, ElementsAre("'-x' is not a flag; flags are written --key value"));
}

TEST(Keys, WhatFollowsABoolFlagDependsOnThePositionals) {
  EXPECT_THAT(read({"--flag", "word"}).positionals, ElementsAre("word"));
  EXPECT_TRUE(read({"--flag", "word"}).values.flag);
  EXPECT_FALSE(read({"--flag", "off"}).values.flag);
  for (const PositionalKind kind : {PositionalKind::None, PositionalKind::ConfigFile}) {
    EXPECT_THAT(read({"--flag", "word"}, kind).errors,
                ElementsAre("--flag is 'word'; expected true or false"));
  }
  EXPECT_THAT(read({"--flag", "run.yaml"}, PositionalKind::ConfigFile).positionals, ElementsAre("run.yaml"));
}

// A configuration is known by its name, or by being there. Any other word is a mistake in the value.
TEST(Keys, ABoolFlagBeforeTheConfigurationDoesNotTakeItsName) {
  const test::TemporaryFolder folder;
  const std::string file = folder.write("plain", "");
  const auto with = [](const std::vector<std::string>& arguments) {
    return read(arguments, PositionalKind::ConfigFile);
  };
  EXPECT_THAT(with({"--flag", file}).positionals, ElementsAre(file));
  EXPECT_THAT(with({"--flag", "nowhere.yaml"}).positionals, ElementsAre("nowhere.yaml"));
  const auto is_an_error = ElementsAre("--flag is 'maybe'; expected true or false");
  EXPECT_THAT(with({"--flag", "maybe"}).errors, is_an_error);
  EXPECT_THAT(with({"run.yaml", "--flag", "maybe"}).errors, is_an_error);
  EXPECT_THAT(with({"--flag", "maybe", "run.yaml"}).errors, is_an_error);
  EXPECT_THAT(with({"--flag", ""}).errors, ElementsAre("--flag is ''; expected true or false"));
}

TEST(Keys, TwoDashesEndTheFlags) {
  const Read given = read({"--flag", "--", "--text", "-h"});
  EXPECT_THAT(given.positionals, ElementsAre("--text", "-h"));
  EXPECT_TRUE(given.values.flag);
  EXPECT_FALSE(given.help);
}

TEST(Keys, AChoiceWithoutADefault) {
  EXPECT_EQ(read({}).values.kind, "");
  EXPECT_EQ(read({"--kind", "large"}).values.kind, "large");
  EXPECT_THAT(read({"--kind", "huge"}).errors, ElementsAre("--kind is 'huge'; expected one of small, large"));
}

TEST(Keys, MistypedHelpIsSuggested) {
  EXPECT_THAT(read({"--hlep"}).errors, ElementsAre("unknown flag '--hlep'; did you mean '--help'?"));
}

TEST(Keys, HelpShowsHowAFlagIsWritten) {
  const std::string help = keys_help(table().keys());
  for (const char* line :
       {"\n  -t, --text FILE                 Some text. [required]\n",
        "\n  --list A,B,...                  Names. [default: none]\n",
        "\n  --repeated TEXT                 Texts. [may be repeated; also --again]\n",
        "\n  --flag                          On or off.\n",
        "\n  --number N                      A count. [0 or more; default: 0]\n",
        "\n  --kind NAME                     A size. [small | large; default: the right one]\n"}) {
    EXPECT_THAT(help, HasSubstr(line));
  }
}

}  // namespace
}  // namespace octet
