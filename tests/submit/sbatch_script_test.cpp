#include "submit/sbatch_script.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "submit/shell.h"
#include "support/process.h"

namespace octet {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::StartsWith;

SlurmJob usual_job() {
  SlurmJob job;
  job.name = job.run_name = "big";
  job.seconds = 4 * 3600;
  job.nodes = 2;
  job.tasks_per_node = job.gpus_per_node = 8;
  job.folder = "/home/me";
  job.log_folder = "slurm";
  job.octet = "octet";
  job.config = "run.yaml";
  job.arguments = {"--resume=latest"};
  return job;
}

SlurmJob sweep_job() {
  SlurmJob job = usual_job();
  job.run_name.clear();
  job.sweep = "grid.yaml";
  job.sweep_folder = "sweeps/grid";
  job.arguments = {"--gpus=all"};
  return job;
}

// What no name may do to a script.
constexpr const char* kOdd = "a 'b' \"c\" $(touch injected) `touch injected` \\ ; touch injected # %j";

TEST(SlurmTime, ReadsWhatSlurmReads) {
  EXPECT_EQ(parse_slurm_time("90"), 90 * 60);
  EXPECT_EQ(parse_slurm_time("1:30"), 90);
  EXPECT_EQ(parse_slurm_time("4:00:00"), 4 * 3600);
  EXPECT_EQ(parse_slurm_time("2-12"), 60 * 3600);
  EXPECT_EQ(parse_slurm_time("2-12:30"), 60 * 3600 + 1800);
  EXPECT_EQ(parse_slurm_time("2-12:30:05"), 60 * 3600 + 1805);
  for (const char* text : {"", ":", "1:", "4h", "-1", "1-", "1:2:3:4", "1.5", " 5", "99999999999", "infinite",
                           "1:99:99", "1:60", "1-24", "1-1:60", "367-0", "999999999-0:0:0"})
    EXPECT_FALSE(parse_slurm_time(text)) << text;
  EXPECT_EQ(parse_slurm_time("200:00:00"), 200 * 3600);
  EXPECT_EQ(slurm_time(4 * 3600), "4:00:00");
  EXPECT_EQ(slurm_time(60 * 3600 + 5), "2-12:00:05");
  for (const int64_t seconds : {61, 3600, 86399, 86400, 1'000'000})
    EXPECT_EQ(parse_slurm_time(slurm_time(seconds)), seconds);
}

TEST(ShellQuoting, BashReadsTheWordBack) {
  EXPECT_EQ(shell_quoted("runs/a-b_c.yaml"), "runs/a-b_c.yaml");
  EXPECT_EQ(shell_quoted(""), "''");
  for (const std::string word : {kOdd, "", "-n", "$HOME", "*", "~", "!!", "a\nb", "ä€", "'", "\\"}) {
    const test::ProcessResult result = test::run_process("bash", {"-c", "printf %s " + shell_quoted(word)});
    EXPECT_EQ(result.out, word);
    EXPECT_EQ(result.err, "");
  }
}

TEST(SbatchScript, AsksForWhatTheJobNeeds) {
  SlurmJob job = usual_job();
  job.cpus_per_task = 6;
  job.memory = "200G";
  job.partition = "gpu";
  job.account = "lab";
  job.qos = "long";
  job.constraint = "a100|h100";
  job.dependency = "afterok:7";
  job.gpu_type = "h100";
  job.sbatch_arguments = {"--exclusive", "--mail-type=END"};
  const std::string script = sbatch_script(job);
  for (const char* line : {"--job-name=big",
                           "--nodes=2",
                           "--ntasks-per-node=8",
                           "--gpus-per-node=h100:8",
                           "--cpus-per-task=6",
                           "--mem=200G",
                           "--time=4:00:00",
                           "--partition=gpu",
                           "--account=lab",
                           "--qos=long",
                           "--constraint=\"a100|h100\"",
                           "--dependency=afterok:7",
                           "--chdir=/home/me",
                           "--output=slurm/big-%j.out",
                           "--error=slurm/big-%j.err",
                           "--open-mode=append",
                           "--signal=USR1@180",
                           "--requeue",
                           "--exclusive",
                           "--mail-type=END"})
    EXPECT_THAT(script, HasSubstr(fmt::format("\n#SBATCH {}\n", line)));
  EXPECT_THAT(script, StartsWith(std::string(kScriptHeader)));
  EXPECT_THAT(script, HasSubstr("\nconfig=run.yaml\n"));
  EXPECT_THAT(script, HasSubstr("command=(octet train ${config:+\"$config\"} --resume=latest "
                                "\"--run_name=$run_name\")\n"));
  EXPECT_THAT(script, HasSubstr("--gpu-bind=none --cpus-per-task=6 \"${command[@]}\"\n"));
  EXPECT_THAT(script, HasSubstr("scontrol requeue \"$SLURM_JOB_ID\""));
  EXPECT_THAT(script, HasSubstr("export OCTET_SECRET\n"));
}

TEST(SbatchScript, ASmallJobAsksForLittle) {
  SlurmJob job = usual_job();
  job.nodes = job.tasks_per_node = 1;
  job.gpus_per_node = 0;
  job.requeues = false;
  const std::string script = sbatch_script(job);
  EXPECT_THAT(script, AllOf(Not(HasSubstr("gpu")), Not(HasSubstr("SECRET")), Not(HasSubstr("module")),
                            Not(HasSubstr("scontrol requeue")), HasSubstr("\n#SBATCH --no-requeue\n")));
  job.gpus_per_node = 2;
  job.gpu_request = GpuRequest::Gres;
  EXPECT_THAT(sbatch_script(job), HasSubstr("\n#SBATCH --gres=gpu:2\n"));
  job.gpu_request = GpuRequest::None;
  EXPECT_THAT(sbatch_script(job), Not(HasSubstr("gpu")));
}

TEST(SbatchScript, Containers) {
  SlurmJob job = usual_job();
  job.mounts = {"/data", "/scratch:/tmp"};
  job.container = "octet.sif";
  EXPECT_THAT(
      sbatch_script(job),
      HasSubstr(" apptainer exec --nv --bind /home/me --bind /data --bind /scratch:/tmp --pwd /home/me "
                "octet.sif \"${command[@]}\""));
  job.runtime = ContainerRuntime::Singularity;
  EXPECT_THAT(sbatch_script(job), HasSubstr(" singularity exec --nv "));
  job.runtime = ContainerRuntime::Auto;
  job.container = "nvcr.io#me/octet:1";
  EXPECT_THAT(sbatch_script(job), HasSubstr(" '--container-image=nvcr.io#me/octet:1' "
                                            "--container-mounts=/home/me:/home/me,/data:/data,/scratch:/tmp "
                                            "--container-workdir=/home/me \"${command[@]}\""));
  job.runtime = ContainerRuntime::Enroot;
  EXPECT_THAT(sbatch_script(job), AllOf(HasSubstr(" enroot start --env SLURM_PROCID "),
                                        HasSubstr("OCTET_* | OMP_NUM_THREADS) passed+=(--env \"$name\")"),
                                        HasSubstr(" --mount /data:/data "), HasSubstr(" \"${passed[@]}\" ")));
}

TEST(SbatchScript, ArrayTasksHaveTheirOwnSeedAndName) {
  SlurmJob job = usual_job();
  job.array = "0-3%2";
  job.array_key = "seed";
  const std::string script = sbatch_script(job);
  EXPECT_THAT(script, HasSubstr("#SBATCH --array=0-3%2\n"));
  EXPECT_THAT(script, HasSubstr("#SBATCH --output=slurm/big-%A_%a.out\n"));
  EXPECT_THAT(script, HasSubstr("run_name=\"$run_name-seed${SLURM_ARRAY_TASK_ID:?}\"\n"));
  EXPECT_THAT(script, HasSubstr("\"--seed=${SLURM_ARRAY_TASK_ID:?}\")"));
}

// Runs a script with srun and scontrol of our own, which print their words.
test::ProcessResult run_script(const test::TemporaryFolder& folder, const SlurmJob& job,
                               const std::string& variables) {
  const std::string script = folder.write("job.sh", sbatch_script(job));
  folder.write(
      "tools",
      "srun() { printf '<%s>\\n' \"$@\" \"$SETUP_DONE\" \"${#OCTET_SECRET}\"; return \"${FAKE_CODE:-0}\"; }\n"
      "scontrol() { echo \"scontrol $*\"; }\n");
  return test::run_process(
      "bash", {"-c", fmt::format(". ./tools; export SLURM_JOB_ID=77 {}; . {}", variables, script)},
      folder.path());
}

// Which words arrive, and what the exit code does.
TEST(SbatchScript, OddNamesStayNamesAndOnly75IsQueuedAgain) {
  SlurmJob job = usual_job();
  job.name = job.run_name = job.partition = job.container = kOdd;
  job.runtime = ContainerRuntime::Apptainer;
  job.config = kOdd;
  job.mounts = {"/with space"};
  job.setup = {"export SETUP_DONE='yes indeed'"};
  EXPECT_THAT(check_job(job), IsEmpty());
  const test::TemporaryFolder folder;
  job.folder = folder.path();
  const auto run = [&](int code) { return run_script(folder, job, fmt::format("FAKE_CODE={}", code)); };
  test::ProcessResult result = run(75);
  EXPECT_EQ(result.exit_code, 75);
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(result.out, HasSubstr(fmt::format(
                              "<{0}>\n<octet>\n<train>\n<{0}>\n<--resume=latest>\n<--run_name={0}>\n<yes "
                              "indeed>\n<64>\n",
                              kOdd)));
  EXPECT_THAT(result.out, HasSubstr("scontrol requeue 77\n"));
  for (const int code : {0, 1, 3, 137}) {
    result = run(code);
    EXPECT_EQ(result.exit_code, code);
    EXPECT_THAT(result.out, Not(HasSubstr("scontrol")));
  }
  EXPECT_NE(test::run_process("test", {"-e", folder.path() + "/injected"}).exit_code, 0);
  EXPECT_EQ(log_pattern(job).find_first_of(" '\"$;\\`#"), std::string::npos);
}

TEST(SbatchScript, ConfigTakesAnotherConfigurationAsARunOfItsOwn) {
  const test::TemporaryFolder folder;
  SlurmJob job = usual_job();
  const std::string given = std::string("configs/") + kOdd + ".yaml", quoted = shell_quoted(given);
  const std::string name = std::string(kOdd) + "-77";
  EXPECT_THAT(run_script(folder, job, "CONFIG=" + quoted).out,
              HasSubstr(fmt::format("<train>\n<{}>\n<--resume=latest>\n<--run_name={}>\n", given, name)));
  EXPECT_THAT(run_script(folder, job, "CONFIG=b.yaml RUN_NAME=mine").out,
              AllOf(HasSubstr("start 0, config=b.yaml of CONFIG: "),
                    HasSubstr("<b.yaml>\n<--resume=latest>\n<--run_name=mine>\n")));
  EXPECT_THAT(run_script(folder, job, "RUN_NAME=mine").out,
              AllOf(HasSubstr("start 0, config=run.yaml: "),
                    HasSubstr("<run.yaml>\n<--resume=latest>\n<--run_name=big>\n")))
      << "only with CONFIG";
  job.config = "";
  EXPECT_THAT(run_script(folder, job, "A=b").out, HasSubstr("<train>\n<--resume=latest>\n"));
  // All tasks of an array, and all its starts, have the name of one job.
  job.array = "0-3";
  job.array_key = "seed";
  EXPECT_THAT(run_script(folder, job, "CONFIG=b.yaml SLURM_ARRAY_JOB_ID=70 SLURM_ARRAY_TASK_ID=2").out,
              HasSubstr("<b.yaml>\n<--resume=latest>\n<--run_name=b-70-seed2>\n<--seed=2>\n"));
  EXPECT_NE(test::run_process("test", {"-e", folder.path() + "/injected"}).exit_code, 0);
}

TEST(SbatchScript, SweepIdNamesTheSweep) {
  const test::TemporaryFolder folder;
  const auto words = [&](const std::string& variables) {
    return run_script(folder, sweep_job(), variables).out;
  };
  EXPECT_THAT(words("A=b"),
              HasSubstr("<sweep>\n<grid.yaml>\n<run.yaml>\n<--folder=sweeps/grid>\n<--gpus=all>\n"));
  EXPECT_THAT(words("SWEEP_ID=" + shell_quoted(kOdd)),
              HasSubstr(fmt::format("<grid.yaml>\n<run.yaml>\n<--folder=sweeps/{}>\n", kOdd)));
  EXPECT_THAT(words("SWEEP_ID=/scratch/s CONFIG=b.yaml"),
              HasSubstr("<grid.yaml>\n<b.yaml>\n<--folder=/scratch/s>\n"));
  EXPECT_THAT(words("SWEEP_ID='configs/other one.yaml'"),
              HasSubstr("<configs/other one.yaml>\n<run.yaml>\n<--folder=sweeps/other one>\n"));
  EXPECT_NE(test::run_process("test", {"-e", folder.path() + "/injected"}).exit_code, 0);
}

TEST(SbatchScript, ShellcheckFindsNothing) {
  const test::ProcessResult found = test::run_process("bash", {"-c", "command -v shellcheck"});
  if (found.exit_code != 0) GTEST_SKIP() << "shellcheck is not installed";
  const test::TemporaryFolder folder;
  SlurmJob job = usual_job();
  job.modules = {"cuda/12.8", "odd name"};
  job.array = "0-3";
  job.array_key = "seed";
  job.container = "octet.sif";
  job.setup = {"export A=b"};
  const std::string script = folder.write("job.sh", sbatch_script(job));
  const std::string sweep = folder.write("sweep.sh", sbatch_script(sweep_job()));
  EXPECT_EQ(test::run_process(found.out.substr(0, found.out.find('\n')), {script, sweep}).out, "");
}

TEST(SbatchScript, FaultsOfAJob) {
  EXPECT_THAT(check_job(usual_job()), IsEmpty());
  SlurmJob job = usual_job();
  job.seconds = 240;
  EXPECT_THAT(check_job(job), ElementsAre(AllOf(HasSubstr("--time is 0:04:00, too short"),
                                                HasSubstr("expected more than 0:04:00"))));
  job.seconds = 241;
  EXPECT_THAT(check_job(job), IsEmpty());
  job = usual_job();
  job.name = std::string(300, 'x');
  EXPECT_THAT(check_job(job), IsEmpty());
  EXPECT_LT(log_pattern(job).size(), 255u);
  job.run_name = job.name;
  EXPECT_THAT(check_job(job),
              ElementsAre(HasSubstr("the name of the run has 300 bytes; expected at most 200")));
  job = usual_job();
  job.partition = "a\n#SBATCH --uid=0";
  job.array = "0-3 --hold";
  job.sbatch_arguments = {"END", "--mail-type END"};
  job.modules = {"-f"};
  EXPECT_THAT(check_job(job), ElementsAre(HasSubstr("--partition is 'a\\x0a#SBATCH --uid=0'"),
                                          HasSubstr("--modules has '-f'"), HasSubstr("--sbatch_arg is 'END'"),
                                          HasSubstr("--sbatch_arg is '--mail-type END'"),
                                          HasSubstr("--array is '0-3 --hold'")));
}

}  // namespace
}  // namespace octet
