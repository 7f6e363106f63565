#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/print.h"
#include "checkpoint/model_folder.h"
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
                   entry.is_whole() ? (verified ? "complete, checksums verified" : "complete")
                                    : fmt::format("BROKEN: {}", entry.broken)});
  }
  print_stdout("{}\n{}", folder, table.str());
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

struct Options {
  std::string directory;
  bool verify = false, json = false;
};

int list(const Options& options) {
  Env& env = posix_env();
  if (!env.is_directory(options.directory))
    fail_config("[{}] is not a folder, expected a run or its checkpoints", options.directory);
  const std::vector<std::string> folders = checkpoint_folders(env, options.directory);
  if (folders.empty()) {
    const std::filesystem::path folder =
        (std::filesystem::absolute(options.directory) / "").lexically_normal().parent_path();
    const std::string parent = folder.parent_path().string();
    for (const CheckpointListing& entry : CheckpointStore(env, parent).list()) {
      if (std::filesystem::path(entry.checkpoint.path) == folder)
        fail_config("[{}] is a single checkpoint; use 'octet checkpoints {}'", options.directory, parent);
    }
    fail_config("[{}] holds no checkpoints, expected step_N, checkpoints/step_N or checkpoints_fp8/step_N",
                options.directory);
  }
  bool all_whole = true;
  nlohmann::ordered_json array = nlohmann::ordered_json::array();
  for (const std::string& folder : folders) {
    const std::vector<CheckpointListing> entries = CheckpointStore(env, folder).list(options.verify);
    for (const CheckpointListing& entry : entries) {
      all_whole = all_whole && entry.is_whole();
      if (options.json) array.push_back(as_json(folder, entry));
    }
    if (!options.json) print_table(folder, entries, options.verify);
  }
  if (options.json)
    fmt::print("{}\n", array.dump(2, ' ', true, nlohmann::ordered_json::error_handler_t::replace));
  return all_whole ? kExitDone : kExitFailure;
}

}  // namespace

int list_checkpoints(const std::string& directory) {
  return list({.directory = directory});
}

Command checkpoints_command() {
  CommandBuilder<Options> builder("checkpoints", "List the checkpoints of a run");
  builder.line.about =
      "Lists checkpoints with their step, age, precision, loss and size, and says whether each one is "
      "complete.";
  builder.line.notes =
      "Exit code: 0 if every checkpoint is complete, 1 if one is damaged, 2 if there are none.";
  builder.word(
      &Options::directory,
      {.name = "DIR", .what = "folder", .help = "Folder of a run, or folder of checkpoints (step_N)."});
  builder.keys.add("verify", &Options::verify, "Also read every file and compare its checksum.");
  builder.keys.add("json", &Options::json, "Print a JSON array.");
  return builder.command(list);
}

}  // namespace octet
