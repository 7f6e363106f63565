#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "data/temporary_folder.h"
#include "data/tiny_tokenizer.h"
#include "support/places.h"

namespace octet {
namespace {

using ::testing::HasSubstr;

class TokenizeCommand : public ::testing::Test {
 protected:
  TokenizeCommand() {
    nlohmann::json file = tiny_tokenizer({{"t", "h"}, {" ", "th"}, {" th", "e"}});
    file["added_tokens"] = nlohmann::json::array({added_token(300, "<s>", {"special"})});
    file["post_processor"] = {
        {"type", "TemplateProcessing"},
        {"single", {{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
        {"special_tokens", {{"<s>", {{"ids", {300}}}}}}};
    tokenizer_ = folder_.write("tokenizer.json", file.dump());
  }

  // What `octet tokenize FLAGS` prints for this input; the exit code goes to code_, stderr to errors_.
  std::string run(const std::string& input, const std::string& flags) {
    folder_.write("in", input);
    const std::string command = test::octet_program() + " tokenize " + flags + " < " +
                                folder_.file("in") + " > " + folder_.file("out") + " 2> " +
                                folder_.file("err");
    code_ = WEXITSTATUS(std::system(command.c_str()));
    errors_ = read("err");
    return read("out");
  }
  std::string read(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(folder_.file(name), std::ios::binary).rdbuf();
    return text.str();
  }

  TemporaryFolder folder_;
  std::string tokenizer_, errors_;
  int code_ = -1;
};

TEST_F(TokenizeCommand, IdsOnOneLineAndBack) {
  EXPECT_EQ(run("the the\n<s>", "--tokenizer " + tokenizer_), "256 101 258 10 300\n");
  EXPECT_EQ(code_, 0);
  EXPECT_EQ(run("256 101 258\n10 300", "--decode --tokenizer " + tokenizer_), "the the\n<s>");
  EXPECT_EQ(run("the", "--add_special --tokenizer " + folder_.path()), "300 256 101\n");
  EXPECT_EQ(run("", "--tokenizer " + tokenizer_), "\n");
  EXPECT_EQ(run("", "--decode --tokenizer " + tokenizer_), "");
  EXPECT_EQ(run("a\xFF", "--tokenizer bytes"), "97 255\n");
}

TEST_F(TokenizeCommand, BytesThatAreNotUtf8ComeBack) {
  std::string bytes;
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  const std::string ids = run(bytes, "--tokenizer " + tokenizer_);
  EXPECT_EQ(run(ids, "--decode --tokenizer " + tokenizer_), bytes);
}

TEST_F(TokenizeCommand, LinesOfJson) {
  EXPECT_EQ(run("\"the\"\n\"\"\n\"a\\n\\u00e9\"\n", "--jsonl --tokenizer " + tokenizer_),
            "256 101\n\n97 10 195 169\n");
  EXPECT_EQ(run("256 101\n\n195\n", "--jsonl --decode --tokenizer " + tokenizer_),
            "\"the\"\n\"\"\n\"\uFFFD\"\n");
  run("\"a\"\n[[[[", "--jsonl --tokenizer " + tokenizer_);
  EXPECT_EQ(code_, 2);
  EXPECT_THAT(errors_, HasSubstr("line 2"));
}

TEST_F(TokenizeCommand, Errors) {
  run("1 x", "--decode --tokenizer " + tokenizer_);
  EXPECT_EQ(code_, 2);
  EXPECT_THAT(errors_, HasSubstr("byte 2"));
  run("299", "--decode --tokenizer " + tokenizer_);
  EXPECT_EQ(code_, 2);
  EXPECT_THAT(errors_, HasSubstr("299"));
  run("a", "");
  EXPECT_EQ(code_, 2);
  EXPECT_THAT(errors_, HasSubstr("--tokenizer"));
  run("a", "--tokenizer /no/such/file");
  EXPECT_EQ(code_, 2);
  EXPECT_THAT(errors_, HasSubstr("/no/such/file"));
}

}  // namespace
}  // namespace octet
