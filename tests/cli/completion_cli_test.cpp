// The completion scripts, in the shells that they are for, and the manual page.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "support/places.h"
#include "support/process.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::UnorderedElementsAre;
namespace fs = std::filesystem;

bool has(const char* program) {
  return run_process("sh", {"-c", std::string("command -v ") + program}).exit_code == 0;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    if (!line.empty()) lines.push_back(line);
  }
  return lines;
}

struct CompletionCli : testing::Test {
  // The scripts ask the program that is on the PATH.
  CompletionCli() {
    const std::string folders = fs::path(octet_program()).parent_path().string() + ":" + std::getenv("PATH");
    setenv("PATH", folders.c_str(), 1);
    folder.write("run.yaml", "");
    folder.write("notes.txt", "");
    fs::create_directories(folder.path() + "/runs/first");
    for (const char* shell : {"bash", "zsh", "fish"}) {
      const ProcessResult made = run_process(test::octet_program(), {"completion", shell});
      EXPECT_EQ(made.exit_code, 0);
      folder.write(std::string("octet.") + shell, made.out);
    }
  }

  // What bash offers behind these words, the last of which is being typed. The shell splits words at "=".
  std::vector<std::string> bash(const std::vector<std::string>& words) {
    std::string array;
    for (const std::string& word : words) array += " '" + word + "'";
    const std::string script = "set -u\nsource ./octet.bash\nCOMP_WORDS=(" + array +
                               ")\nCOMP_CWORD=" + std::to_string(words.size() - 1) +
                               "\n_octet\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n";
    const ProcessResult result = run_process("bash", {"--norc", "-c", script}, folder.path());
    EXPECT_EQ(result.err, "");
    return lines_of(result.out);
  }

  std::vector<std::string> fish(const std::string& line) {
    const ProcessResult result = run_process(
        "fish", {"--no-config", "-c", "source ./octet.fish; complete -C '" + line + "'"}, folder.path());
    EXPECT_EQ(result.err, "");
    std::vector<std::string> words;
    for (const std::string& each : lines_of(result.out)) words.push_back(each.substr(0, each.find('\t')));
    return words;
  }

  // Types the line into a zsh on a pseudo terminal, asks for the list of completions, and returns what is shown once
  // `last` is among it.
  std::string zsh(const std::string& line, const std::string& last) {
    folder.write(
        "setup.zsh",
        "PROMPT=\nautoload -Uz compinit\ncompinit -u -D\nsource ./octet.zsh\nstty cols 200 rows 500\n"
        "COLUMNS=200\nLINES=500\n"  // a longer list would wait for a key
        "LISTMAX=0\nzstyle ':completion:*' list-prompt ''\nbindkey '^D' list-choices\n"
        "zle-line-init() { print -n PROM; print -n PT }\nzle -N zle-line-init\n");
    const std::string script =
        "zmodload zsh/zpty\nzpty z zsh -f -i\nzpty -w z 'source ./setup.zsh'\n"
        "text=\nwant() {\n"
        "  for i in {1..1200}; do\n"  // 60 s: much other work may go on
        "    while zpty -r -t z chunk; do text+=$chunk; done\n"
        "    [[ $text == *$1* ]] && return\n    sleep 0.05\n  done\n"
        "  print -r -- \"zsh did not show '$1' within 60 s\" >&2\n  exit 3\n}\n"
        "want PROMPT\ntext=\nzpty -n -w z $'" +
        line + "\\C-D'\nwant '" + last + "'\nprint -r -- $text\nzpty -d z\n";
    const ProcessResult result = run_process("zsh", {"-f", "-c", script}, folder.path());
    EXPECT_EQ(result.exit_code, 0) << result.err << result.out;
    return result.out;
  }

  TemporaryFolder folder;
};

TEST_F(CompletionCli, BashKnowsCommandsKeysChoicesAndFiles) {
  EXPECT_THAT(bash({"octet", "tr"}), ElementsAre("train"));
  EXPECT_THAT(bash({"octet", ""}), AllOf(Contains("train"), Contains("wandb"), Contains("completion")));
  EXPECT_THAT(bash({"octet", "train", "--max_st"}), ElementsAre("--max_steps"));
  EXPECT_THAT(bash({"octet", "train", "--device", ""}), UnorderedElementsAre("auto", "cpu", "cuda"));
  EXPECT_THAT(bash({"octet", "train", "--device", "=", "c"}), UnorderedElementsAre("cpu", "cuda"));
  EXPECT_THAT(bash({"octet", "train", "--device", "="}), UnorderedElementsAre("auto", "cpu", "cuda"));
  EXPECT_THAT(bash({"octet", "plan", "--fp8-recipe", "d"}), ElementsAre("delayed"));
  EXPECT_THAT(bash({"octet", "train", "--report_to", "w"}), ElementsAre("wandb"));
  EXPECT_THAT(bash({"octet", "train", "r"}), UnorderedElementsAre("run.yaml", "runs"));
  EXPECT_THAT(bash({"octet", "train", "n"}), IsEmpty());
  EXPECT_THAT(bash({"octet", "train", "--dataset", "n"}), ElementsAre("notes.txt"));
  EXPECT_THAT(bash({"octet", "train", "--output_dir", ""}), ElementsAre("runs"));
  EXPECT_THAT(bash({"octet", "plot", "runs/"}), ElementsAre("runs/first"));
  EXPECT_THAT(bash({"octet", "plot", "--max_st"}), IsEmpty());
  EXPECT_THAT(bash({"octet", "wandb", "--mod"}), IsEmpty());
  EXPECT_THAT(bash({"octet", "wandb", "--wandb_mode", "of"}), ElementsAre("offline"));
  EXPECT_THAT(bash({"octet", "help", "exp"}), ElementsAre("export"));
  EXPECT_THAT(bash({"octet", "completion", ""}), UnorderedElementsAre("bash", "zsh", "fish"));
  EXPECT_THAT(bash({"octet", "launch", "-n", "2", "tr"}), ElementsAre("train"));
  EXPECT_THAT(bash({"octet", "launch", "-n", "2", "train", "--sharding_m"}), ElementsAre("--sharding_mode"));
  EXPECT_THAT(bash({"octet", "nonsense", "--x"}), IsEmpty());
}

TEST_F(CompletionCli, FishKnowsCommandsKeysChoicesAndFiles) {
  if (!has("fish")) GTEST_SKIP() << "fish is not installed";
  EXPECT_THAT(fish("octet tra"), ElementsAre("train"));
  EXPECT_THAT(fish("octet train --max_st"), Contains("--max_steps"));
  EXPECT_THAT(fish("octet train --device "), UnorderedElementsAre("auto", "cpu", "cuda"));
  EXPECT_THAT(fish("octet train --dataset=n"), ElementsAre("--dataset=notes.txt"));
  EXPECT_THAT(fish("octet plan --fp8_recipe=d"), ElementsAre("--fp8_recipe=delayed"));
  EXPECT_THAT(fish("octet train r"), AllOf(Contains("run.yaml"), Contains("runs/")));
  EXPECT_THAT(fish("octet plot --max_st"), Not(Contains("--max_steps")));
  EXPECT_THAT(fish("octet help exp"), ElementsAre("export"));
}

TEST_F(CompletionCli, ZshKnowsCommandsKeysChoicesAndFiles) {
  if (!has("zsh")) GTEST_SKIP() << "zsh is not installed";
  EXPECT_THAT(zsh("octet ", "Weights & Biases"),
              AllOf(HasSubstr("tensorboard"), HasSubstr("Send runs to Weights & Biases")));
  EXPECT_THAT(zsh("octet train --device ", "cuda"),
              AllOf(HasSubstr("auto"), HasSubstr("cpu"), HasSubstr("cuda")));
  EXPECT_THAT(zsh("octet train --device=c", "cuda"), HasSubstr("cpu"));
  EXPECT_THAT(zsh("octet train --fp8_amax_", "history_len"),
              AllOf(HasSubstr("--fp8_amax_compute"), HasSubstr("--fp8_amax_history_len")));
  EXPECT_THAT(zsh("octet train r", "runs"), AllOf(HasSubstr("run.yaml"), HasSubstr("runs")));
}

TEST_F(CompletionCli, OtherShellsAreRefused) {
  const ProcessResult result = run_process(test::octet_program(), {"completion", "tcsh"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("there is no completion for 'tcsh'; expected bash, zsh or fish"));
}

TEST(ManCli, TheManualPageHasEveryCommandAndKey) {
  const ProcessResult page = run_process(test::octet_program(), {"man"});
  ASSERT_EQ(page.exit_code, 0);
  EXPECT_THAT(page.out, HasSubstr(".TH OCTET 1 \"\" \"octet "));
  for (const char* text : {".SS \"octet train\"", "\\-\\-fp8_amax_history_len N", "\\-\\-wandb_mode NAME",
                           ".SH \"EXIT STATUS\""})
    EXPECT_THAT(page.out, HasSubstr(text));
}

TEST(ManCli, GroffHasNothingToComplainAbout) {
  if (!has("groff")) GTEST_SKIP() << "groff is not installed";
  const TemporaryFolder folder;
  const ProcessResult page = run_process(test::octet_program(), {"man"});
  folder.write("octet.1", page.out);
  const ProcessResult shown = run_process("groff", {"-ww", "-man", "-Tutf8", "octet.1"}, folder.path());
  EXPECT_EQ(shown.exit_code, 0);
  EXPECT_EQ(shown.err, "");
  EXPECT_THAT(shown.out, HasSubstr("max_steps"));
}

}  // namespace
}  // namespace octet::test
