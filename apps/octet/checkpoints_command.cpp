#include <cmath>
#include <nlohmann/json.hpp>

#include "checkpoint/model_folder.h"
#include "cli.h"
#include "command.h"
#include "report/table.h"
#include "report/text.h"

namespace octet {
namespace {

std::string note_of(const CheckpointListing& entry) {
  std::vector<std::string> notes;
  if (entry.is_latest) notes.emplace_back("latest");
  if (entry.is_best) notes.emplace_back("best");
  return fmt::format("{}", fmt::join(notes, ", "));
}

void print_table(const std::string& folder, const std::vector<CheckpointListing>& entries, bool verified) {
  Table table({{"step", Align::Right},
               {"age", Align::Right},
               {"precision"},
               {"loss", Align::Right},
               {"size", Align::Right},
               {""},
               {"state"}});
  for (const CheckpointListing& entry : entries) {
    const Checkpoint& c = entry.checkpoint;
    const bool known = !c.files.empty();  // its manifest could be read
    table.add_row({fmt::format("{}", c.step), known ? human_duration(entry.age_seconds) : "-",
                   c.summary.precision.empty() ? "-" : c.summary.precision,
                   std::isfinite(c.summary.loss) ? fmt::format("{:.4f}", c.summary.loss) : "-",
                   known ? human_bytes(static_cast<double>(c.total_bytes())) : "-", note_of(entry),
                   entry.is_whole() ? (verified ? "whole, checksums verified" : "whole")
                                    : fmt::format("BROKEN: {}", terminal_safe(entry.broken))});
  }
  fmt::print("{}\n{}", folder, table.str());
}

nlohmann::ordered_json as_json(const std::string& folder, const CheckpointListing& entry) {
  const Checkpoint& c = entry.checkpoint;
  nlohmann::ordered_json object = {{"folder", folder}, {"path", c.path}, {"step", c.step}};
  if (!c.files.empty()) {
    object["saved_at"] = c.saved_at;
    object["age_seconds"] = entry.age_seconds;
    object["precision"] = c.summary.precision;
    object["loss"] = std::isfinite(c.summary.loss) ? nlohmann::ordered_json(c.summary.loss) : nullptr;
    object["bytes"] = c.total_bytes();
  }
  object["latest"] = entry.is_latest;
  object["best"] = entry.is_best;
  object["whole"] = entry.is_whole();
  if (!entry.is_whole()) object["broken"] = entry.broken;
  return object;
}

}  // namespace

int checkpoints_command(std::span<const std::string> arguments) {
  std::string directory;
  bool verify = false, json = false;
  CLI::App app("Lists checkpoints: step, age, precision, loss, size, and whether each is whole.",
               "octet checkpoints");
  app.add_option("DIR", directory, "Folder of a run, or of checkpoints (step_N)")->required();
  app.add_flag("--verify", verify, "Also read every file and compare its checksum");
  app.add_flag("--json", json, "Print a JSON array");
  app.footer("Exit code: 0 when every checkpoint is whole, 1 otherwise.");
  if (!parse_arguments(app, arguments)) return kExitDone;

  Env& env = posix_env();
  require(env.is_directory(directory), "[{}] is no folder, expected a run or its checkpoints", directory);
  const std::vector<std::string> folders = checkpoint_folders(env, directory);
  require(!folders.empty(),
          "[{}] holds no checkpoints, expected step_N, checkpoints/step_N or checkpoints_fp8/step_N",
          directory);
  bool all_whole = true;
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (const std::string& folder : folders) {
    const std::vector<CheckpointListing> entries = CheckpointStore(env, folder).list(verify);
    for (const CheckpointListing& entry : entries) {
      all_whole = all_whole && entry.is_whole();
      if (json) array.push_back(as_json(folder, entry));
    }
    if (!json) print_table(folder, entries, verify);
  }
  if (json) fmt::print("{}\n", array.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  return all_whole ? kExitDone : kExitFailure;
}

}  // namespace octet
