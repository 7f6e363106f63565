#include <fmt/format.h>

#include "checkpoint/export.h"
#include "command.h"
#include "report/text.h"

namespace octet {
namespace {

struct Options {
  std::string model, output, dtype, tokenizer;
  bool best = false;
  double max_shard_size_gb = 5;
};

int run(const Options& options) {
  ExportOptions to;
  to.tokenizer = options.tokenizer;
  if (!options.dtype.empty()) to.dtype = options.dtype == "bf16" ? SafeDType::BF16 : SafeDType::F32;
  to.shard_bytes = static_cast<int64_t>(options.max_shard_size_gb * 1e9);

  const ModelFolder model = find_model(options.model, options.best);
  const Exported exported = export_model(posix_env(), model, options.output, to);
  fmt::print("{}\n{}: {} tensors, {} in {} file{}, {}; tokenizer: {}\n", model.source, options.output,
             exported.tensors, human_bytes(static_cast<double>(exported.bytes)), exported.files,
             exported.files == 1 ? "" : "s", exported.dtype == SafeDType::F32 ? "fp32" : "bf16",
             exported.tokenizer.empty() ? "none, the model has no tokenizer" : exported.tokenizer);
  return kExitDone;
}

}  // namespace

Command export_command() {
  CommandBuilder<Options> builder("export", "Write a model as a Hugging Face folder");
  builder.line.about = "Writes a model as a Hugging Face folder that Transformers can load.";
  builder.word(&Options::model, {.name = "MODEL", .what = "model", .help = kModelHelp});
  builder.keys.add("output", &Options::output, "Folder to create. An existing folder must be empty.")
      .value("DIR")
      .short_flag('o')
      .must_be_given();
  builder.keys.add("best", &Options::best, kBestHelp);
  builder.keys.add("dtype", &Options::dtype, {"bf16", "fp32"}, "Data type of the written weights.")
      .note("the type they are stored in");
  builder.keys.add("tokenizer", &Options::tokenizer, "Tokenizer file or folder to copy into the output.")
      .value("FILE_OR_FOLDER")
      .note("the tokenizer of the model");
  builder.keys
      .add("max_shard_size_gb", &Options::max_shard_size_gb,
           "Maximum size of a weight file in GB. Larger models are split into several files.")
      .above(0);
  return builder.command(run);
}

}  // namespace octet
