// What a machine does to a run: consoles that go away, files that change under it, odd files where data is expected.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <map>

#include "support/model_fixture.h"
#include "support/places.h"
#include "support/process.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
namespace fs = std::filesystem;
using Flags = std::map<std::string, std::string>;

struct BadLuck : testing::Test {
  BadLuck() {
    std::string text;
    for (int i = 0; i < 300; ++i) text += "line " + std::to_string(i * 7919 % 1000) + " of the text\n";
    folder.write("text.txt", text);
  }
  static std::vector<std::string> arguments(const std::string& name, const Flags& changes = {}) {
    Flags flags = {{"model_preset", "llama-tiny"},
                   {"dataset", "text.txt"},
                   {"device", "cpu"},
                   {"max_seq_length", "32"},
                   {"max_steps", "8"},
                   {"eval_batches", "1"},
                   {"eval_steps", "0"},
                   {"progress", "plain"},
                   {"run_name", name},
                   {"per_device_train_batch_size", "2"},
                   {"num_threads", "1"},
                   {"sample_steps", "0"}};
    for (const auto& [key, value] : changes) flags[key] = value;
    std::vector<std::string> result = {"train"};
    for (const auto& [key, value] : flags) result.push_back("--" + key + "=" + value);
    return result;
  }
  ProcessResult run(const std::vector<std::string>& words) {
    return run_process(test::octet_program(), words, folder.path());
  }
  ProcessResult bash(const std::string& line) {
    return run_process("/bin/bash", {"-c", line}, folder.path());
  }
  static std::string line_of(const std::vector<std::string>& words) {
    std::string line = test::octet_program();
    for (const std::string& word : words) line += " '" + word + "'";
    return line;
  }
  std::string path(const std::string& name) const { return folder.path() + "/" + name; }
  TemporaryFolder folder;
};

// Such as a tee that dies, or a terminal that is closed.
TEST_F(BadLuck, AConsoleThatGoesAwayDoesNotEndARun) {
  const auto before = signal(SIGPIPE, SIG_DFL);  // the programs of the line inherit it
  const ProcessResult result =
      bash(line_of(arguments("run")) + " 2>&1 | head -1 > head.txt; exit ${PIPESTATUS[0]}");
  signal(SIGPIPE, before);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_TRUE(fs::exists(path("runs/run/checkpoints_fp8/step_8")));
}

// Ranks ask for another start, because there is a launcher; a process on its own has failed.
TEST_F(BadLuck, ATokenFileThatBecomesShorterIsNamed) {
  const auto train_and_cut = [&](const std::string& run, std::vector<std::string> words) {
    std::string tokens;
    for (int i = 0; i < 100'000; ++i) tokens += {'A', '\0', 'B', '\0'};
    folder.write("tokens.bin", tokens);
    for (const std::string& word :
         arguments(run, {{"dataset", "tokens.bin"}, {"max_steps", "1000000"}, {"save_steps", "2"}}))
      words.push_back(word);
    const pid_t child = start_process(test::octet_program(), words, folder.path());
    // The second one is begun after the run has noted the first.
    const std::string second = path("runs/" + run + "/checkpoints_fp8/step_4");
    for (int i = 0; i < 1200 && !fs::exists(second); ++i) usleep(20'000);
    if (!fs::exists(second)) kill(child, SIGKILL);
    fs::resize_file(path("tokens.bin"), 0);
    return wait_for_process(child);
  };
  EXPECT_EQ(train_and_cut("ranks", {"launch", "-n", "2"}), 75);
  EXPECT_THAT(read_text(path("out.txt")), HasSubstr("error: [tokens.bin] cannot be read any more"));
  EXPECT_EQ(train_and_cut("run", {}), 1);
  EXPECT_THAT(read_text(path("out.txt")),
              AllOf(HasSubstr("error: [tokens.bin] cannot be read any more"), HasSubstr("--resume latest")));
  EXPECT_EQ(run({"checkpoints", "runs/run", "--verify"}).exit_code, 0);
}

// A FIFO would be waited for without end, and /dev/zero has none.
TEST_F(BadLuck, PipesAndDevicesAreNoData) {
  const auto refuses = [&](std::vector<std::string> words, const char* file) {
    words.insert(words.begin(), {"60", test::octet_program()});
    const ProcessResult result = run_process("/usr/bin/timeout", words, folder.path());
    EXPECT_THAT(result.err, HasSubstr(std::string(file) + "] is not a regular file"));
    EXPECT_NE(result.exit_code, 0);
  };
  ASSERT_EQ(mkfifo(path("pipe.jsonl").c_str(), 0600), 0);
  fs::create_symlink("/dev/zero", path("zero.txt"));
  refuses(arguments("run", {{"dataset", "pipe.jsonl"}}), "pipe.jsonl");
  refuses(arguments("run", {{"dataset", "zero.txt"}}), "zero.txt");
  fs::create_directory(path("model"));
  fs::create_symlink("/dev/zero", path("model/config.json"));
  refuses({"eval", "model", "--dataset", "text.txt"}, "config.json");
  // A configuration may come through a pipe.
  EXPECT_EQ(bash(line_of({"train"}) + " <(echo 'max_steps: 2') --dry_run --device cpu").exit_code, 0);
}

TEST_F(BadLuck, AFolderForTemporaryFilesThatIsMissingIsNamed) {
  const ProcessResult result =
      run_process("/usr/bin/env", {"TMPDIR=/absent", test::octet_program(), "launch", "-n", "2", "train"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("TMPDIR"));
}

TEST_F(BadLuck, AnEvaluationThatIsNotFiniteFails) {
  fs::create_directories(path("model"));
  RandomModel(two_layers("llama-tiny"), DType::F32).write_folder(path("model"));
  std::string weights = read_text(path("model/model.safetensors"));
  const float large = 3e38f;  // finite, but not its products
  for (size_t at = weights.size() - 64; at < weights.size(); at += sizeof large)
    std::memcpy(&weights[at], &large, sizeof large);
  folder.write("model/model.safetensors", weights);
  const ProcessResult result = run({"eval", "model", "--dataset", "text.txt", "--tokenizer", "bytes",
                                    "--device", "cpu", "--max_seq_length", "32", "--batches", "1"});
  EXPECT_EQ(result.exit_code, 1) << result.out;
  EXPECT_THAT(result.err, HasSubstr("expected a finite number"));
}

}  // namespace
}  // namespace octet::test
