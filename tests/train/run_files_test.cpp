// What a run checks before it writes.

#include "train/run_files.h"

#include <gmock/gmock.h>

#include <limits>

#include "base/exit_codes.h"
#include "plan/run_stages.h"
#include "resume_support.h"
#include "support/captured_log.h"
#include "support/error_of.h"
#include "train/trainer.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

struct RunFilesSpace : Resume {
  void check(int64_t bytes, int64_t kept, const Settings& changes = {}) {
    const std::optional<Checkpoint> none;
    RunFiles(posix_env(), config("run", changes), true, std::nullopt, none).check_space(bytes, kept);
  }
  CapturedLog log;
};

TEST_F(RunFilesSpace, ACheckpointThatDoesNotFitIsRefused) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max() / 4;
  check(1, 1);
  EXPECT_THAT(log.messages, IsEmpty());
  EXPECT_THAT(error_of([&] { check(kHuge, 1); }),
              AllOf(HasSubstr("a checkpoint takes "), HasSubstr("are free where output_dir is (")));
  EXPECT_THAT(error_of([&] {
                check(kHuge, 1, {{"checkpoint_dir", folder.path() + "/here"}});
              }),
              HasSubstr("are free where checkpoint_dir is (" + folder.path() + "/here)"));
  check(kHuge, 1, {{"save_strategy", "no"}});
}

TEST_F(RunFilesSpace, CheckpointsThatDoNotAllFitAreWarnedOf) {
  check(1 << 20, int64_t{1} << 40);
  ASSERT_EQ(log.messages.size(), 1u);
  EXPECT_THAT(
      log.messages.front(),
      testing::ContainsRegex("set save_total_limit to [1-9][0-9]*, free .* or choose another folder$"));
}

// Otherwise every resume on a disk of the right size would warn.
TEST_F(RunFilesSpace, CheckpointsThatAreThereNeedNoMoreRoom) {
  const auto free = static_cast<int64_t>(fs::space(folder.path()).available);
  const int64_t one = free / 10 * 6;  // two do not fit
  check(one, 2);
  ASSERT_EQ(log.messages.size(), 1u);
  EXPECT_THAT(log.messages.front(), Not(HasSubstr("save_total_limit"))) << "no limit helps";
  log.messages.clear();
  CheckpointStore store(posix_env(), folder.path() + "/runs/run/checkpoints_fp8");
  store.save(3,
             [&](CheckpointWriter& writer) {  // a file with a hole, which takes no room
               std::ofstream(writer.directory() + "/weights") << "x";
               fs::resize_file(writer.directory() + "/weights", static_cast<uintmax_t>(one));
               writer.add({.name = "weights", .size = one});
             },
             {});
  check(one, 2);
  EXPECT_THAT(log.messages, IsEmpty());
  check(one, 4);
  EXPECT_EQ(log.messages.size(), 1u);
}

TEST_F(RunFilesSpace, ThePlanKnowsTheSizeOfACheckpoint) {
  for (const Settings& changes :
       {Settings{}, Settings{{"optimizer_state", "bf16"}}, Settings{{"mixed_precision", "fp32"}},
        Settings{{"finetuning_type", "lora"}}}) {
    const TrainConfig keys = config("run", changes);
    ASSERT_EQ(train(keys), kExitDone);
    double written = 0;
    const bool fp8 = keys.mixed_precision == Precision::Fp8;
    for (const char* name : {"model.safetensors", "adapter_model.safetensors", "optimizer.safetensors"}) {
      const std::string file = checkpoint("run", 12, fp8) + "/" + name;
      if (fs::exists(file)) written += static_cast<double>(fs::file_size(file));
    }
    fs::remove_all(folder.path() + "/runs");
    const RunStages stages = prepare_run(keys);
    EXPECT_NEAR(static_cast<double>(stages.plan.checkpoint_bytes) / written, 1, 0.1) << changes.size();
  }
}

}  // namespace
}  // namespace octet::test
