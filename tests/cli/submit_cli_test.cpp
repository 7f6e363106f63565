// octet submit from the command line, without SLURM: tests/slurm/submit.py has it.

#include <gmock/gmock.h>

#include <filesystem>

#include "ops/device.h"
#include "support/places.h"
#include "support/process.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
namespace fs = std::filesystem;

struct SubmitCli : testing::Test {
  SubmitCli() { folder.write("run.yaml", "max_steps: 10\ndevice: cpu\n"); }
  ProcessResult submit(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "submit");
    return run_process(test::octet_program(), arguments, folder.path());
  }
  // With only these programs on the path.
  ProcessResult submit_with_path(const std::string& path, const std::vector<std::string>& arguments) {
    std::vector<std::string> words = {"PATH=" + path, test::octet_program(), "submit"};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return run_process("/usr/bin/env", words, folder.path());
  }
  void expect_error(const std::vector<std::string>& arguments, const std::string& text) {
    const ProcessResult result = submit(arguments);
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_THAT(result.err, HasSubstr(text));
    EXPECT_EQ(result.out, "");
    EXPECT_FALSE(fs::exists(folder.path() + "/slurm"));
  }
  TemporaryFolder folder;
};

TEST_F(SubmitCli, PrintShowsTheScriptAndWritesNothing) {
  const ProcessResult result = submit({"run.yaml", "--nodes", "2", "--gpus_per_node", "8", "--time",
                                       "4:00:00", "-p", "gpu", "--learning_rate", "1e-3", "--fp8_head",
                                       "--run_name", "big", "--sbatch_arg=--mail-type=END", "--print"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(StartsWith("#!/bin/bash\n"), HasSubstr("#SBATCH --partition=gpu\n"),
                    HasSubstr("#SBATCH --mail-type=END\n"),
                    HasSubstr("octet train ${config:+\"$config\"} --learning_rate=1e-3 --fp8_head=true "
                              "--resume=latest \"--run_name=$run_name\")")));
  EXPECT_FALSE(fs::exists(folder.path() + "/slurm"));
}

// A job that waits for GPUs must not train on the CPU.
TEST_F(SubmitCli, AJobWithGpusInsistsOnThemUnlessADeviceIsChosen) {
  folder.write("auto.yaml", "device: auto\n");
  folder.write("any.yaml", "max_steps: 10\n");
  folder.write("s.yaml", "parameters: {seed: {values: [1, 2]}}\n");
  const auto script = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--time", "60", "--print"});
    return submit(arguments).out;
  };
  const auto insists = HasSubstr(" --device=cuda");
  EXPECT_THAT(script({"any.yaml"}), insists);
  EXPECT_THAT(script({"s.yaml", "--config", "any.yaml"}), insists);
  EXPECT_THAT(script({"any.yaml", "--gpus_per_node", "0"}), Not(insists));
  EXPECT_THAT(script({"auto.yaml"}), Not(insists));
  EXPECT_THAT(script({"s.yaml", "--config", "auto.yaml"}), Not(insists));
  EXPECT_THAT(script({"s.yaml", "--device", "auto"}), Not(insists));
  EXPECT_THAT(script({"s.yaml", "--sweep_arg=--device=cpu"}), Not(insists));
  // Where this program cannot use them, that is said before the job waits in the queue.
  const auto warned = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--time", "60", "--print"});
    return submit(arguments).err.find("the job asks for GPUs, but this program was built without CUDA") !=
           std::string::npos;
  };
  EXPECT_EQ(warned({"any.yaml"}), !cuda_backend_built());
  EXPECT_FALSE(warned({"any.yaml", "--gpus_per_node", "0"}));
  EXPECT_FALSE(warned({"any.yaml", "--octet", "/opt/octet"}));
}

// As octet train would, but before the job waits in the queue.
TEST_F(SubmitCli, WarnsOfSettingsThatMayCostAccuracy) {
  const ProcessResult costly = submit({"run.yaml", "--time", "60", "--print", "--fp8_format", "e5m2"});
  EXPECT_EQ(costly.exit_code, 0) << costly.err;
  EXPECT_THAT(costly.err, HasSubstr("fp8_format e5m2 may cost accuracy"));
  const ProcessResult sound = submit({"run.yaml", "--time", "60", "--print"});
  EXPECT_EQ(sound.exit_code, 0) << sound.err;
  EXPECT_THAT(sound.err, Not(HasSubstr("may cost accuracy")));
}

TEST_F(SubmitCli, ARunWithoutANameGetsOneAndCpuRunsAskForNoGpu) {
  const ProcessResult result = submit({"run.yaml", "--time", "60", "--print"});
  EXPECT_THAT(result.out, testing::ContainsRegex("run_name=run-[0-9]{8}-[0-9]{6}-fp8\n"));
  EXPECT_THAT(result.out, Not(HasSubstr("gpus-per-node")));
  const std::string long_name(240, 'x');
  folder.write(long_name + ".yaml", "device: cpu\n");
  EXPECT_EQ(submit({long_name + ".yaml", "--time", "60", "--print"}).exit_code, 0);
}

TEST_F(SubmitCli, OutputWritesTheScriptOnly) {
  const ProcessResult result =
      submit({"run.yaml", "--time", "60", "--output", "jobs/my job.sh", "--run_name", "a", "--resume"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, StartsWith("jobs/my job.sh written; submit it with: sbatch 'jobs/my job.sh'\n"));
  EXPECT_EQ(run_process("bash", {"-n", folder.path() + "/jobs/my job.sh"}).err, "");
  EXPECT_TRUE(fs::is_directory(folder.path() + "/slurm"));
  // Again is fine; another file is not replaced.
  EXPECT_EQ(submit({"run.yaml", "--time", "60", "--output", "jobs/my job.sh"}).exit_code, 0);
  folder.write("mine.sh", "echo mine\n");
  EXPECT_EQ(submit({"run.yaml", "--time", "60", "--output", "mine.sh"}).exit_code, 2);
  EXPECT_EQ(read_text(folder.path() + "/mine.sh"), "echo mine\n");
}

TEST_F(SubmitCli, WithoutSbatchTheScriptIsKept) {
  const ProcessResult result = submit_with_path("/nowhere", {"run.yaml", "--time", "60", "--run_name", "a"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(
      result.err,
      HasSubstr("sbatch is not installed here, so nothing was submitted. The script is slurm/a.sbatch"));
  EXPECT_TRUE(fs::exists(folder.path() + "/slurm/a.sbatch"));
}

TEST_F(SubmitCli, TheAnswerOfSbatch) {
  fs::create_directory(folder.path() + "/bin");
  const std::string sbatch =
      folder.write("bin/sbatch", "#!/bin/sh\necho \"Welcome, $1 $2\" >&2\necho '1234;cluster'\n");
  fs::permissions(sbatch, fs::perms::owner_all);
  const std::string path = folder.path() + "/bin:/usr/bin:/bin";
  ProcessResult result = submit_with_path(
      path, {"run.yaml", "--time", "60", "--run_name", "a", "--array", "1-2", "--nodes", "2"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              HasSubstr("submitted job 1234: a on 2 nodes, 1 CPU rank each, at most 1:00:00 per start\n"
                        "script   slurm/a.sbatch\nlog      slurm/a-1234_*.out\nmessages slurm/a-1234_*.err\n"
                        "cancel   scancel 1234\n"));
  EXPECT_THAT(result.out, HasSubstr("Welcome, --parsable slurm/a.sbatch\n"));
  // sbatch reads a % in the name of the log; the shell and the file system do not.
  result = submit_with_path(path, {"run.yaml", "--time", "60", "--run_name", "a", "--log_dir", "50%/x%j"});
  EXPECT_THAT(result.out, HasSubstr("script   50%/x%j/a.sbatch\nlog      50%/x%j/a-1234.out\n"))
      << result.err;
  EXPECT_THAT(read_text(folder.path() + "/50%/x%j/a.sbatch"), HasSubstr("--output=50%%/x%%j/a-%j.out\n"));
  folder.write("bin/sbatch", "#!/bin/sh\necho 'sbatch: error: no such account' >&2\nexit 1\n");
  result = submit_with_path(path, {"run.yaml", "--time", "60", "--run_name", "a"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err,
              AllOf(HasSubstr("sbatch refused the job (exit code 1): sbatch: error: no such account"),
                    HasSubstr("the script is slurm/a.sbatch")));
}

TEST_F(SubmitCli, ASweepFileStartsAgents) {
  folder.write("s.yaml", "method: grid\nname: 'a sweep'\nparameters: {seed: {values: [1, 2]}}\n");
  const ProcessResult result =
      submit({"s.yaml", "--config", "run.yaml", "--time", "60", "--nodes", "2", "--gpus_per_node", "4",
              "--max_steps", "3", "--sweep_arg=--max_failures=1", "--array", "0-1", "--print"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              AllOf(HasSubstr("#SBATCH --job-name=\"a sweep\"\n"), HasSubstr("#SBATCH --ntasks-per-node=1\n"),
                    HasSubstr("#SBATCH --gpus-per-node=4\n"), HasSubstr(" --wait=0 "),
                    HasSubstr("config=${CONFIG:-run.yaml}\nsweep=s.yaml\nfolder=sweeps/s\n"),
                    HasSubstr(" \"--folder=$folder\" --gpus=all --max_failures=1 --max_steps=3)\n")));
  expect_error({"s.yaml", "--time", "60", "--array", "0-1", "--array_key", "seed"},
               "the tasks of a sweep are agents");
  expect_error({"run.yaml", "--time", "60", "--folder", "x"},
               "--folder and --sweep_arg are for a sweep file");
  expect_error({"s.yaml", "--gpus_per_node", "1"}, "octet submit needs --time TIME");
  // What the agents would say.
  expect_error({"s.yaml", "--time", "60", "--run_name", "x"}, "--run_name cannot be set");
  expect_error({"s.yaml", "--config", "nowhere.yaml", "--time", "60"}, "nowhere.yaml");
  expect_error({"s.yaml", "--time", "60", "--sweep_arg=--paralel=2"}, "did you mean '--parallel'?");
  folder.write("s.yaml", "method: random\nparameters: {seed: {min: 1, max: 9}}\n");
  expect_error({"s.yaml", "--time", "60"}, "method random has no end");
  EXPECT_EQ(submit({"s.yaml", "--time", "60", "--print", "--sweep_arg=--runs=5"}).exit_code, 0);
  folder.write("s.yaml", "parameters: {decay_ratio: {values: [0.1, 0.5]}}\n");
  expect_error({"s.yaml", "--time", "60"}, "decay_ratio has no effect");
  folder.write("s.yaml", "method: gird\nparameters: {seed: {values: [1, 2]}}\n");
  expect_error({"s.yaml", "--time", "60"}, "method in s.yaml:1 is gird");
}

// What starts other processes that read the configuration again must not be given one that can be read once.
TEST_F(SubmitCli, AConfigurationFromAPipeIsRefusedWhereItIsReadAgain) {
  folder.write("sweep.yaml", "parameters: {seed: {values: [1, 2]}}\n");
  for (const char* words : {"submit PIPE --time 60 --print", "submit sweep.yaml --config PIPE --time 60 --print",
                            "sweep sweep.yaml --config PIPE --folder s", "launch -n 2 train PIPE"}) {
    std::string line = test::octet_program() + " " + words;
    line.replace(line.find("PIPE"), 4, "<(echo max_steps: 3)");
    const ProcessResult result = run_process("/bin/bash", {"-c", line}, folder.path());
    EXPECT_EQ(result.exit_code, 2) << words;
    EXPECT_THAT(result.err, HasSubstr(" is a pipe, but processes that are started read it again")) << words;
    EXPECT_EQ(result.out, "");
  }
}

TEST_F(SubmitCli, BadInput) {
  expect_error({"run.yaml"}, "octet submit needs --time TIME");
  expect_error({"run.yaml", "--time", "4h"}, "--time is '4h'; expected a time of SLURM");
  expect_error({"run.yaml", "--time", "4:00"}, "--time is 0:04:00, too short");
  expect_error({"run.yaml", "--time", "60", "--max_stepz", "3"}, "did you mean '--max_steps'?");
  expect_error({"run.yaml", "--time", "60", "--learning_rate", "x"}, "--learning_rate is 'x'");
  expect_error({"nowhere.yaml", "--time", "60"}, "nowhere.yaml");
  expect_error({"run.yaml", "--time", "60", "--resume", "runs/other"},
               "a job continues the run of its run_name");
  expect_error({"run.yaml", "--time", "60", "--array", "0-3", "--seed", "7"},
               "--seed is given, but --array sets seed to the number of each task");
  expect_error({"run.yaml", "--time", "60", "--array", "0-3", "--array_key", "learning_rate"},
               "--array_key is 'learning_rate'; expected a key that is an integer");
  expect_error({"run.yaml", "--time", "60", "--array_key", "seed"}, "--array_key needs --array");
  expect_error({"run.yaml", "--time", "60", "--print", "--output", "a"},
               "--print and --output exclude each other");
  expect_error({"run.yaml", "--time", "60", "--dry_run"}, "octet submit starts training");
  expect_error({"run.yaml", "--time", "60", "--export=CONFIG=other.yaml"}, "--export=ALL,CONFIG=OTHER.yaml");
  expect_error({"run.yaml", "--time", "60", "--job_name", "a\nb"}, "--job_name is 'a\\x0ab'");
}

}  // namespace
}  // namespace octet::test
