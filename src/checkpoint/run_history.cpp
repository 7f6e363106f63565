#include "checkpoint/run_history.h"

#include <filesystem>
#include <fstream>

#include "base/log.h"
#include "base/regular_file.h"

namespace octet {
namespace {

constexpr const char* kLastCheckpoint = "last_checkpoint";

}  // namespace

void note_last_checkpoint(Env& env, const std::string& run_folder, const std::string& checkpoint) {
  try {
    env.replace_file(join_path(run_folder, kLastCheckpoint),
                     std::filesystem::absolute(checkpoint).lexically_normal().string() + "\n");
  } catch (const Error& error) {
    log_warning("{}", error.what());
  }
}

std::optional<std::string> last_checkpoint_of(Env& env, const std::string& run_folder) {
  if (const std::string path = join_path(run_folder, kLastCheckpoint); env.exists(path)) {
    const std::string text = env.read_text(path, 1 << 16);
    return text.substr(0, text.find('\n'));
  }
  // The record after a save tells of it.
  const std::string path = join_path(run_folder, "metrics.jsonl");
  require_regular_file(path);
  std::ifstream metrics(path, std::ios::binary);
  for (std::string line; std::getline(metrics, line);) {
    if (line.find(R"("checkpoint":{)") != std::string::npos) return "";
  }
  return std::nullopt;
}

}  // namespace octet
