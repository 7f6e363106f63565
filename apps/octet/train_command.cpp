#include "checkpoint/resume.h"
#include "command.h"
#include "import/import.h"
#include "train/trainer.h"

namespace octet {
namespace {

struct Options {
  RunArguments run;
};

int run(const Options& options) {
  return train(load_resumable_config(read_run_file(options.run.config_file), options.run.settings));
}

}  // namespace

Command train_command() {
  CommandBuilder<Options> builder(
      "train", "Pretrain or fine-tune a model; without arguments, train the built-in demo");
  builder.line.about =
      "Pretrains or fine-tunes a model. Without arguments it trains the built-in demo.\n"
      "Every key below may be set in the YAML file or as a flag. Flags override the file.";
  builder.run_arguments(&Options::run, RunKeys::Listed);
  return builder.command(run);
}

}  // namespace octet
