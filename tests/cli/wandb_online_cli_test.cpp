// Runs that are sent to Weights & Biases online: with a package that stands for wandb, and a folder for the server.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/file.h>

#include <chrono>

#include "wandb_cli.h"
#include "support/places.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

struct WandbOnlineCli : WandbCli {
  WandbOnlineCli() {
    fs::create_directories(server());
    setenv("FAKE_WANDB", server().c_str(), 1);
    setenv("PYTHONDONTWRITEBYTECODE", "1", 1);
    setenv("WANDB_API_KEY", std::string(40, 'a').c_str(), 1);
    use_fake_python("export PYTHONPATH='" + test::source_path("/tests/cli/fake_wandb") + "'\nexec " + python() +
                    " \"$@\"\n");
  }

  std::string server() const { return folder.path() + "/server"; }
  void tell_server(const std::string& name, const std::string& text = "") const {
    folder.write("server/" + name, text);
  }

  // The only run that the server has; null if there is none.
  json sent() const {
    json found;
    for (const auto& file : fs::directory_iterator(server())) {
      if (file.path().extension() != ".json") continue;
      EXPECT_TRUE(found.is_null()) << "there are two runs";
      found = json::parse(read_text(file.path()), nullptr, false);
      found["id"] = file.path().stem().string();
    }
    return found;
  }
  std::vector<int64_t> sent_steps() const {
    std::vector<int64_t> steps;
    const json run = sent();
    for (const json& record : run.value("history", json::array())) steps.push_back(record["_step"]);
    return steps;
  }
  void make_run(const std::string& config) const {
    fs::create_directories(run_path());
    folder.write("runs/a/metrics.jsonl", kRecords);  // steps 1 and 3
    folder.write("runs/a/config.yaml", config);
  }
  pid_t sender() const { return static_cast<pid_t>(std::stol(read_text(folder.path() + "/pid"))); }
};

using Steps = std::vector<int64_t>;

TEST_F(WandbOnlineCli, StepsThatAKilledSenderHadNotUploadedAreSentAgain) {
  tell_server("keep", "2");
  tell_server("hold");
  setenv("OCTET_WANDB_WAIT", "2", 1);
  const ProcessResult trained = octet(arguments());
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_THAT(trained.err, AllOf(HasSubstr("waiting for W&B, at most 2 s"),
                                 HasSubstr("has not received everything yet; process " +
                                           std::to_string(sender()) + " continues to send")));
  ASSERT_TRUE(becomes_true([&] { return state().contains("end"); }));
  ASSERT_EQ(kill(sender(), SIGKILL), 0);
  EXPECT_EQ(sent_steps(), (Steps{1, 2}));
  EXPECT_EQ(state()["last_step"]["online"], 6);
  fs::remove(server() + "/keep");
  fs::remove(server() + "/hold");
  const ProcessResult again = octet({"wandb", "runs/a"});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.err, AllOf(HasSubstr("continued after step 2"), HasSubstr("sent 4 steps")));
  EXPECT_EQ(sent_steps(), (Steps{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(sent()["exit_code"], 0);
  EXPECT_EQ(sent()["config"]["max_steps"], 6);

  // A run that the server does not have any more is sent from its beginning.
  fs::remove(server() + "/" + sent()["id"].get<std::string>() + ".json");
  ASSERT_EQ(octet({"wandb", "runs/a"}).exit_code, 0);
  EXPECT_EQ(sent_steps(), (Steps{1, 2, 3, 4, 5, 6}));
}

TEST_F(WandbOnlineCli, ARunWaitsForTheSenderOfItsEarlierPart) {
  fs::create_directories(run_path());
  const int file = open((run_path() + "/wandb.lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
  ASSERT_EQ(flock(file, LOCK_EX), 0);
  const pid_t run = start_process(test::octet_program(), arguments(), folder.path());
  EXPECT_TRUE(becomes_true([&] { return metrics().size() == 6; })) << output();
  EXPECT_TRUE(becomes_true([&] {
    return output().find("waiting for W&B, at most 60 s") != std::string::npos;
  })) << output();
  EXPECT_TRUE(sent().is_null());
  const std::string waits = "waiting for the earlier sender of this run to end";
  EXPECT_TRUE(becomes_true([&] { return output().find(waits) != std::string::npos; })) << output();
  close(file);
  EXPECT_EQ(wait_for_process(run), 0) << output();
  const std::string text = output();
  EXPECT_NE(text.find(waits), std::string::npos) << text;
  EXPECT_EQ(text.find(waits), text.rfind(waits));
  EXPECT_EQ(sent_steps(), (Steps{1, 2, 3, 4, 5, 6}));
}

TEST_F(WandbOnlineCli, ASignalEndsTheWaitingAndNotTheRunsExitCode) {
  tell_server("hold");
  const pid_t run = start_process(test::octet_program(), arguments(), folder.path());
  EXPECT_TRUE(becomes_true([&] {
    return output().find("waiting for W&B, at most 60 s") != std::string::npos;
  })) << output();
  const auto start = std::chrono::steady_clock::now();
  kill(run, SIGTERM);
  EXPECT_EQ(wait_for_process(run), 0) << output();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
  EXPECT_THAT(output(), HasSubstr("continues to send"));
  fs::remove(server() + "/hold");
  EXPECT_TRUE(becomes_true([&] { return !sent()["exit_code"].is_null(); }));
  EXPECT_EQ(sent()["exit_code"], 0);
}

TEST_F(WandbOnlineCli, CtrlCDoesNotMarkAFinishedRunAsFailed) {
  make_run("max_steps: 3\n");
  tell_server("hold");
  const pid_t sends = start_process(test::octet_program(), {"wandb", "runs/a"}, folder.path());
  EXPECT_TRUE(becomes_true([&] { return output().find("after Ctrl-C it goes on") != std::string::npos; }))
      << output();
  kill(sends, SIGINT);
  EXPECT_EQ(wait_for_process(sends), 1) << output();
  fs::remove(server() + "/hold");
  EXPECT_TRUE(becomes_true([&] { return !sent()["exit_code"].is_null(); }));
  EXPECT_EQ(sent()["exit_code"], 0);
  EXPECT_EQ(sent_steps(), (Steps{1, 3}));
}

TEST_F(WandbOnlineCli, AFinishedRunIsMarkedAsItEnded) {
  make_run("max_steps: 10\n");
  ASSERT_EQ(octet({"wandb", "runs/a"}).exit_code, 0);
  EXPECT_EQ(sent()["exit_code"], 1);  // it has not done all its steps, and nothing says why
  EXPECT_EQ(sent()["cwd"], "/");      // wandb reads settings there, which could name another server
  json known = state();
  known["end"] = {{"step", 3}, {"exit_code", 75}};
  folder.write("runs/a/wandb.json", known.dump());
  ASSERT_EQ(octet({"wandb", "runs/a"}).exit_code, 0);
  EXPECT_EQ(sent()["exit_code"], 75);
  EXPECT_EQ(sent()["preempting"], true);
  known["end"]["step"] = 2;  // it went on after that
  folder.write("runs/a/wandb.json", known.dump());
  ASSERT_EQ(octet({"wandb", "runs/a"}).exit_code, 0);
  EXPECT_EQ(sent()["exit_code"], 1);
  folder.write("runs/a/config.yaml", "max_steps: 3\n");
  ASSERT_EQ(octet({"wandb", "runs/a"}).exit_code, 0);
  EXPECT_EQ(sent()["exit_code"], 0);
}

TEST_F(WandbOnlineCli, WithoutAConfigurationNoneIsSent) {
  make_run("learning_rate: much\n");
  const ProcessResult broken = octet({"wandb", "runs/a"});
  EXPECT_EQ(broken.exit_code, 0);
  EXPECT_THAT(broken.err,
              HasSubstr("config.yaml] cannot be read, so the run is sent without its configuration"));
  json config = sent()["config"];
  EXPECT_EQ(config.size(), 1u) << config;
  EXPECT_TRUE(config.contains("octet_version"));
  fs::remove(run_path() + "/config.yaml");
  const ProcessResult missing = octet({"wandb", "runs/a"});
  EXPECT_THAT(missing.err, HasSubstr("config.yaml] is missing"));
  EXPECT_EQ(sent()["config"].size(), 1u) << sent();
}

TEST_F(WandbOnlineCli, TheIdOfTheEnvironmentIsForTheRunThatTrains) {
  setenv("WANDB_RUN_ID", "given", 1);
  make_run("max_steps: 3\n");
  ASSERT_EQ(octet({"wandb", "runs/a"}).exit_code, 0);
  EXPECT_NE(sent()["id"], "given");
  fs::remove_all(server());
  fs::create_directories(server());
  ASSERT_EQ(octet(arguments({{"run_name", "b"}})).exit_code, 0);
  EXPECT_EQ(sent()["id"], "given");
}

TEST_F(WandbOnlineCli, FollowEndsIfTheSenderDies) {
  const pid_t run = start_process(test::octet_program(), arguments({{"max_steps", "100000"}, {"use_wandb", "false"}}),
                                  folder.path());
  EXPECT_TRUE(becomes_true([&] { return metrics().size() >= 2; })) << output();
  tell_server("crash");
  const ProcessResult followed = octet({"wandb", "runs/a", "--follow"});
  EXPECT_EQ(followed.exit_code, 1);
  EXPECT_THAT(followed.err, AllOf(HasSubstr("has ended with exit code 3. "), HasSubstr("repeat the command"),
                                  Not(HasSubstr("the run is not affected")), Not(HasSubstr("'octet wandb"))));
  EXPECT_EQ(kill(run, 0), 0);
  kill(run, SIGTERM);
  EXPECT_EQ(wait_for_process(run), 75);
  fs::remove(server() + "/crash");
  const ProcessResult late = octet({"wandb", "runs/a", "--follow"});
  EXPECT_EQ(late.exit_code, 0);
  EXPECT_THAT(late.err, HasSubstr("no process of this machine is training this run"));
  EXPECT_EQ(sent_steps().size(), metrics().size());
}

}  // namespace
}  // namespace octet::test
