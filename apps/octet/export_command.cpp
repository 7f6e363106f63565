#include "base/log.h"
#include "checkpoint/export.h"
#include "cli.h"
#include "command.h"
#include "report/text.h"

namespace octet {

int export_command(std::span<const std::string> arguments) {
  std::string path, output, dtype;
  bool best = false;
  double shard_gb = 5;
  ExportOptions options;
  CLI::App app("Writes a model as a Hugging Face folder that Transformers loads.", "octet export");
  app.add_option("MODEL", path, "Checkpoint folder (step_N), run folder or Hugging Face folder")->required();
  app.add_option("--output", output, "Folder to make; one that exists must be empty")->required();
  app.add_flag("--best", best, "Of a run, the checkpoint with the best evaluation loss, not the latest");
  app.add_option("--dtype", dtype, "bf16 or fp32; default: as the weights are stored")
      ->check(CLI::IsMember({"bf16", "fp32"}));
  app.add_option("--tokenizer", options.tokenizer,
                 "Its files go into the folder; default: what the model came with");
  app.add_option("--max_shard_size_gb", shard_gb,
                 "Weights above this are cut into files of at most this size")
      ->check(above_zero())
      ->capture_default_str();
  if (!parse_arguments(app, arguments)) return kExitDone;
  if (!dtype.empty()) options.dtype = dtype == "bf16" ? SafeDType::BF16 : SafeDType::F32;
  options.shard_bytes = static_cast<int64_t>(shard_gb * 1e9);

  const ModelFolder model = find_model(path, best);
  const Exported exported = export_model(posix_env(), model, output, options);
  fmt::print("{}\n{}: {} tensors, {} in {} file{}, {}; tokenizer: {}\n", model.source, output,
             exported.tensors, human_bytes(static_cast<double>(exported.bytes)), exported.files,
             exported.files == 1 ? "" : "s", exported.dtype == SafeDType::F32 ? "fp32" : "bf16",
             exported.tokenizer.empty() ? "none, the model came without one" : exported.tokenizer);
  return kExitDone;
}

}  // namespace octet
