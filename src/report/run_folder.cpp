#include "report/run_folder.h"

#include <yaml-cpp/yaml.h>

#include <filesystem>

#include "base/config_text.h"
#include "base/error.h"
#include "report/metrics.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

constexpr const char* kMetrics = "metrics.jsonl";

std::string as_written(const YAML::Node& node) {
  if (node.IsScalar()) return node.Scalar();
  if (node.IsNull()) return "";
  YAML::Emitter emitter;
  emitter << YAML::Flow << node;
  return emitter.c_str();
}

}  // namespace

std::vector<std::pair<std::string, std::string>> read_run_settings(const std::string& path) {
  std::vector<std::pair<std::string, std::string>> settings;
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return settings;
  try {
    const YAML::Node root = YAML::Load(read_config_text(path, "YAML"));
    if (!root.IsMap()) return settings;
    for (const auto& entry : root) settings.emplace_back(entry.first.Scalar(), as_written(entry.second));
  } catch (const YAML::Exception& error) {
    fail("[{}:{}] {}, expected the configuration of a run", path, error.mark.line + 1, error.msg);
  }
  return settings;
}

std::string RunFolder::setting(std::string_view key) const {
  for (const auto& [setting_key, value] : settings) {
    if (setting_key == key) return value;
  }
  return "";
}

bool is_run_folder(const std::string& path) {
  std::error_code ignored;
  return fs::exists(fs::path(path) / kMetrics, ignored);
}

RunFolder read_run_folder(const std::string& given) {
  fs::path path = given;
  std::error_code ignored;
  if (!fs::exists(path, ignored))
    fail_config("[{}] is not there, expected the folder of a run or its metrics.jsonl", given);
  if (fs::is_directory(path, ignored)) {
    if (!is_run_folder(given))
      fail_config("[{}] has no metrics.jsonl, so it is not the folder of a run, or the run has no step yet",
                  given);
    path /= kMetrics;
  }
  RunFolder run;
  const fs::path folder = fs::absolute(path).lexically_normal().parent_path();
  const bool whole = path.filename() == kMetrics;
  run.name = whole ? folder.filename().string() : path.filename().string();
  if (whole) run.folder = path.parent_path().empty() ? "." : path.parent_path().string();
  run.records = drop_superseded(read_metrics(path));
  if (whole) run.settings = read_run_settings((folder / "config.yaml").string());
  return run;
}

}  // namespace octet
