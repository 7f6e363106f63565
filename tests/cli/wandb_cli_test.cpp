// Runs that are sent to Weights & Biases: with the real client in offline mode, and with clients that misbehave.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>

#include <chrono>

#include "wandb_cli.h"
#include "support/places.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
// The values of all records, in the order of the steps.
std::vector<json> history_of(const json& files) {
  std::vector<json> all;
  for (const json& file : files) all.insert(all.end(), file["history"].begin(), file["history"].end());
  return all;
}

void expect_history_is(const std::vector<json>& history, const std::vector<json>& metrics) {
  ASSERT_EQ(history.size(), metrics.size());
  const std::pair<const char*, const char*> names[] = {
      {"step", "train/global_step"},    {"step", "_step"},
      {"loss", "train/loss"},           {"lr", "train/learning_rate"},
      {"grad_norm", "train/grad_norm"}, {"tokens_per_second", "train/tokens_per_second"},
      {"step_ms", "train/step_ms"},     {"tokens", "train/tokens"},
      {"epoch", "train/epoch"},         {"eval_loss", "eval/loss"}};
  for (size_t i = 0; i < metrics.size(); ++i) {
    for (const auto& [ours, theirs] : names) {
      EXPECT_EQ(metrics[i].contains(ours), history[i].contains(theirs)) << i << ' ' << theirs;
      if (metrics[i].contains(ours)) {
        EXPECT_EQ(metrics[i][ours], history[i][theirs]) << i << ' ' << theirs;
      }
    }
  }
}

TEST_F(WandbCli, AStoppedAndResumedRunIsOneRunThere) {
  REQUIRE_WANDB();
  setenv("OCTET_WANDB_WAIT", "60", 1);
  const std::map<std::string, std::string> names = {
      {"wandb_project", "letters"}, {"wandb_entity", "us"}, {"wandb_run_name", "first try"},
      {"wandb_mode", "offline"},    {"sample_steps", "2"},  {"sample_tokens", "4"}};
  auto longer = names;
  longer["max_steps"] = "100000";
  const pid_t child = start_process(test::octet_program(), arguments(longer), folder.path());
  ASSERT_TRUE(becomes_true([&] { return metrics().size() >= 5; })) << output();
  kill(child, SIGTERM);
  ASSERT_EQ(wait_for_process(child), 75) << read_text(folder.path() + "/out.txt");
  EXPECT_THAT(read_text(folder.path() + "/out.txt"),
              HasSubstr("wandb sync " + run_path() + "/wandb/offline-run-"));
  const size_t before = metrics().size();
  ASSERT_GE(before, 5u);
  const std::string last = std::to_string(before + 4);

  auto rest = names;
  rest["max_steps"] = last;
  rest["resume"] = "latest";
  const ProcessResult resumed = octet(arguments(rest));
  ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_THAT(resumed.err, HasSubstr("continued after step " + std::to_string(before)));

  const json files = recorded();
  ASSERT_EQ(files.size(), 2u);
  EXPECT_EQ(files[0]["id"], files[1]["id"]);
  EXPECT_EQ(files[0]["id"], state()["id"]);
  ASSERT_EQ(files[0]["history"].size(), before);
  EXPECT_EQ(files[0]["exit_code"], 75);
  EXPECT_EQ(files[0]["preempting"], true);
  EXPECT_EQ(files[1]["exit_code"], 0);
  EXPECT_EQ(state()["last_step"]["offline"], before + 4);
  EXPECT_EQ(files[1]["project"], "letters");
  EXPECT_EQ(files[1]["entity"], "us");
  EXPECT_EQ(files[1]["name"], "first try");
  EXPECT_EQ(files[1]["config"]["max_steps"], before + 4);
  EXPECT_EQ(files[1]["config"]["mixed_precision"], "fp8");
  EXPECT_EQ(files[1]["config"]["wandb_project"], "letters");
  expect_history_is(history_of(files), metrics());

  // FP8 statistics and samples, of the steps that have them.
  const json& second = files[0]["history"][1];
  const json tensors = metrics()[1]["fp8"];
  ASSERT_FALSE(tensors.empty());
  EXPECT_EQ(second["fp8/log2_amax/_type"], "histogram");
  int64_t counted = 0;
  for (const json& count : second["fp8/log2_scale/values"]) counted += count.get<int64_t>();
  EXPECT_EQ(counted, static_cast<int64_t>(tensors.size()));
  double largest = 0;
  for (const json& tensor : tensors) largest = std::max(largest, tensor["amax"].get<double>());
  EXPECT_EQ(second["fp8/amax_max"], largest);
  EXPECT_EQ(second["fp8/fwd_scale"], metrics()[1]["fp8_fwd_scale"]);
  EXPECT_EQ(second["fp8/bwd_scale"], metrics()[1]["fp8_bwd_scale"]);
  EXPECT_EQ(second["samples/table/_type"], "table-file");
  const json table = json::parse(read_text(fs::path(files[0]["file"].get<std::string>()).parent_path() /
                                           "files" / second["samples/table/path"].get<std::string>()));
  EXPECT_EQ(table["data"], json::array({json::array({2, metrics()[1]["samples"][0]})}));
  EXPECT_FALSE(files[0]["history"][0].contains("fp8/log2_amax/_type"));
}

TEST_F(WandbCli, ARunThatIsKilledIsMarkedAsFailed) {
  REQUIRE_WANDB();
  const pid_t child =
      start_process(test::octet_program(), arguments({{"max_steps", "100000"}, {"save_steps", "0"}}), folder.path());
  ASSERT_TRUE(becomes_true([&] {
    return fs::exists(run_path() + "/wandb.json") && state().contains("last_step");
  })) << output();
  kill(child, SIGKILL);
  EXPECT_EQ(wait_for_process(child), 128 + SIGKILL);
  EXPECT_THAT(
      read_text(folder.path() + "/out.txt"),
      HasSubstr("no W&B key was found (WANDB_API_KEY, or 'wandb login'), so the run is recorded offline"));
  json files;
  EXPECT_TRUE(becomes_true([&] {
    files = recorded();
    return !files.empty() && !files[0]["exit_code"].is_null();
  })) << read_text(run_path() + "/wandb.log");
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(files[0]["exit_code"], 1);
  EXPECT_EQ(files[0]["project"], "octet");
  EXPECT_EQ(files[0]["name"], "a");
  expect_history_is(history_of(files), metrics());
}

TEST_F(WandbCli, FinishedRunsAreSentOnce) {
  REQUIRE_WANDB();
  fs::create_directories(run_path());
  folder.write("runs/a/metrics.jsonl", kRecords);
  folder.write("runs/a/config.yaml", "learning_rate: 0.5\nrun_name: a\n");
  const ProcessResult first = octet({"wandb", "runs/a", "--mode", "offline", "--project", "p"});
  ASSERT_EQ(first.exit_code, 0) << first.err;
  EXPECT_THAT(first.err,
              HasSubstr("recorded 2 steps offline; send them with: wandb sync " + run_path() + "/wandb/"));
  json files = recorded();
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(files[0]["project"], "p");
  EXPECT_EQ(files[0]["config"]["learning_rate"], 0.5);
  ASSERT_EQ(files[0]["history"].size(), 2u);
  const json one = files[0]["history"][0], three = files[0]["history"][1];
  EXPECT_EQ(one["train/loss"], "NaN");
  EXPECT_EQ(one["train/grad_norm"], "Infinity");
  EXPECT_EQ(one["_timestamp"], 1700000000.5);
  EXPECT_EQ(one["train/memory_bytes"], 1024);
  EXPECT_EQ(one["gpu/power_watts"], 300.5);
  EXPECT_EQ(one["tasks/hellaswag/acc_norm"], 0.25);
  EXPECT_EQ(one["eval/loss/wiki"], 2.5);
  EXPECT_EQ(one["train/data_wait_ms"], 1.5);
  EXPECT_EQ(one["train/a_new_figure"], 7);
  EXPECT_EQ(three["_step"], 3);
  EXPECT_EQ(three["checkpoint/wait_ms"], 0.5);
  EXPECT_EQ(three["red_flags/saturation"], 1);
  ASSERT_EQ(files[0]["alerts"].size(), 1u);
  EXPECT_EQ(files[0]["alerts"][0]["text"], "layers.0 saturates");
  const std::string page = read_text(fs::path(files[0]["file"].get<std::string>()).parent_path() / "files" /
                                     three["samples/latest/path"].get<std::string>());
  EXPECT_THAT(page, AllOf(HasSubstr("&lt;script&gt;"), Not(HasSubstr("<script>"))));

  const ProcessResult second = octet({"wandb", "runs/a", "--mode", "offline"});
  ASSERT_EQ(second.exit_code, 0) << second.err;
  EXPECT_THAT(second.err, HasSubstr("there is nothing new after step 3"));
  EXPECT_EQ(history_of(recorded()).size(), 2u);
  const std::string id = state()["id"];
  ASSERT_EQ(octet({"wandb", "runs/a", "--mode", "offline", "--again"}).exit_code, 0);
  files = recorded();
  EXPECT_EQ(history_of(files).size(), 4u);
  EXPECT_NE(state()["id"], id);

  folder.write("runs/a/wandb.json", "{");
  const ProcessResult broken = octet({"wandb", "runs/a", "--mode", "offline"});
  EXPECT_EQ(broken.exit_code, 1);
  EXPECT_THAT(broken.err, HasSubstr("wandb.json cannot be read"));
}

TEST_F(WandbCli, ARunOfAnotherProcessIsFollowedToItsEnd) {
  REQUIRE_WANDB();
  const pid_t run = start_process(test::octet_program(), arguments({{"max_steps", "100000"}, {"use_wandb", "false"}}),
                                  folder.path());
  EXPECT_TRUE(becomes_true([&] { return metrics().size() >= 2; })) << output();
  const std::string holder = read_text(run_path() + "/run.lock");
  const pid_t follower = start_process(test::octet_program(), {"wandb", "runs/a", "--follow", "--mode", "offline"},
                                       folder.path(), "follower.txt");
  EXPECT_TRUE(becomes_true([&] {
    return fs::exists(run_path() + "/wandb.json") && state().contains("last_step");
  })) << output("follower.txt");
  EXPECT_EQ(read_text(run_path() + "/run.lock"), holder);  // whoever follows only looks
  kill(run, SIGTERM);
  EXPECT_EQ(wait_for_process(run), 75);
  EXPECT_EQ(wait_for_process(follower), 0) << read_text(folder.path() + "/follower.txt");
  const json files = recorded();
  ASSERT_EQ(files.size(), 1u);
  EXPECT_EQ(files[0]["exit_code"], 1);  // it has not done all its steps
  expect_history_is(history_of(files), metrics());
}

TEST_F(WandbCli, OneProcessSendsARun) {
  fs::create_directories(run_path());
  folder.write("runs/a/metrics.jsonl", kRecords);
  const int file = open((run_path() + "/wandb.lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  ASSERT_EQ(flock(file, LOCK_EX), 0);
  const ProcessResult second = octet({"wandb", "runs/a", "--mode", "offline"});
  close(file);
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_THAT(second.err, HasSubstr("another process is sending " + run_path() + " already"));
}

TEST_F(WandbCli, AServerThatIsNotThereMeansOffline) {
  REQUIRE_WANDB();
  setenv("WANDB_API_KEY", std::string(40, 'a').c_str(), 1);
  setenv("WANDB_BASE_URL", "http://127.0.0.1:9", 1);
  setenv("WANDB_INIT_TIMEOUT", "2", 1);
  fs::create_directories(run_path());
  folder.write("runs/a/metrics.jsonl", kRecords);
  const ProcessResult sent = octet({"wandb", "runs/a"});
  EXPECT_EQ(sent.exit_code, 0) << sent.err;
  EXPECT_THAT(sent.err, AllOf(HasSubstr("W&B refused or was not reached, so the run is recorded offline"),
                              HasSubstr("config.yaml] is missing: the run is sent without its configuration"),
                              HasSubstr("recorded 2 steps offline")));
  EXPECT_EQ(state()["last_step"].size(), 1u);
  EXPECT_EQ(state()["last_step"]["offline"], 3);
}

TEST_F(WandbCli, AClientThatHangsDoesNotHoldUpTheRun) {
  use_fake_python("exec sleep 1000\n");
  setenv("OCTET_WANDB_WAIT", "1", 1);
  const auto start = std::chrono::steady_clock::now();
  const ProcessResult trained = octet(arguments());
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_EQ(metrics().size(), 6u);
  EXPECT_LT(took.count(), 60);
  EXPECT_THAT(trained.err,
              HasSubstr("the process that sends to W&B does not answer and is ended; 'octet wandb " +
                        run_path() + "' sends the run"));
  EXPECT_TRUE(fake_python_is_gone());
}

TEST_F(WandbCli, AClientThatFailsDoesNotEndTheRun) {
  use_fake_python("echo broken >&2\nexit 3\n");
  const ProcessResult trained = octet(arguments());
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_EQ(metrics().size(), 6u);
  EXPECT_THAT(trained.err,
              HasSubstr("the process that sends to W&B has ended with exit code 3; the run is not affected"));
  EXPECT_EQ(read_text(run_path() + "/wandb.log"), "broken\n");
}

TEST_F(WandbCli, AMissingPackageIsOneLine) {
  // -S: without site-packages. -E: without PYTHONPATH.
  use_fake_python("exec " + python() + " -S -E \"$@\"\n");
  const ProcessResult trained = octet(arguments());
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_THAT(trained.err, AllOf(HasSubstr("has no package wandb"), HasSubstr("-m pip install wandb"),
                                 HasSubstr("'octet wandb " + run_path() + "'"),
                                 Not(HasSubstr("has ended with exit code"))));
  const ProcessResult sent = octet({"wandb", "runs/a"});
  EXPECT_EQ(sent.exit_code, 1);
  EXPECT_THAT(sent.err, AllOf(HasSubstr("then repeat this command"), Not(HasSubstr("'octet wandb"))));
}

TEST_F(WandbCli, AMissingPythonIsOneLine) {
  setenv("OCTET_PYTHON", "/no/python", 1);
  const ProcessResult trained = octet(arguments());
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_THAT(trained.err,
              HasSubstr("nothing is sent to W&B, because /no/python cannot be started: No such file"));
  EXPECT_EQ(octet({"wandb", "runs/a"}).exit_code, 1);
}

TEST_F(WandbCli, NothingIsStartedUnlessItIsWanted) {
  use_fake_python("exit 3\n");
  const std::vector<std::map<std::string, std::string>> cases = {
      {{"report_to", "tensorboard"}, {"use_wandb", "false"}}, {{"wandb_mode", "disabled"}}};
  for (const auto& changes : cases) {
    const ProcessResult trained = octet(arguments(changes));
    EXPECT_EQ(trained.exit_code, 0) << trained.err;
    EXPECT_FALSE(fs::exists(folder.path() + "/pid"));
    fs::remove_all(run_path());
  }
}

TEST_F(WandbCli, BadCallsAreRefused) {
  EXPECT_THAT(octet({"wandb"}).err, HasSubstr("octet wandb needs RUN"));
  EXPECT_EQ(octet({"wandb", "nowhere"}).exit_code, 2);
  EXPECT_THAT(octet({"wandb", "text.txt"}).err, HasSubstr("text.txt"));
  EXPECT_THAT(octet({"wandb", "a", "b", "--name", "x"}).err, HasSubstr("names one run"));
  EXPECT_THAT(octet({"train", "--report_to", "mailbox"}).err,
              HasSubstr("--report_to names 'mailbox'; expected wandb, tensorboard, all or none"));
  EXPECT_THAT(octet({"train", "--report_to", "none", "--use_wandb"}).err, HasSubstr("contradict each other"));
  EXPECT_THAT(octet({"train", "--wandb_mode", "sometimes"}).err, HasSubstr("online, offline, disabled"));
}

}  // namespace
}  // namespace octet::test
