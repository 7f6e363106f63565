#include "report/run_folder.h"

#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <filesystem>
#include <regex>
#include <sstream>

#include "base/config_text.h"
#include "base/error.h"
#include "base/regular_file.h"
#include "report/metrics.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

std::string as_written(const YAML::Node& node) {
  if (node.IsScalar()) return node.Scalar();
  if (node.IsNull()) return "";
  YAML::Emitter emitter;
  emitter << YAML::Flow << node;
  return emitter.c_str();
}

// Keys that follow from others are comments in config.yaml: "# key: value  (from other)".
RunSettings decided_settings(const std::string& text) {
  static const std::regex kDecided(R"(# ([a-z0-9_]+): (.*)  \(from [a-z0-9_]+\))");
  RunSettings settings;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::smatch parts;
    if (!std::regex_match(line, parts, kDecided)) continue;
    try {
      settings.emplace_back(parts[1], as_written(YAML::Load(parts[2])));
    } catch (const YAML::Exception&) {  // a comment of somebody else
    }
  }
  return settings;
}

std::string find(const RunSettings& settings, std::string_view key) {
  const auto found = std::ranges::find(settings, key, &RunSettings::value_type::first);
  return found == settings.end() ? "" : found->second;
}

}  // namespace

void read_run_settings(const std::string& path, RunFolder& run) {
  run.settings.clear();
  run.decided.clear();
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return;
  require_regular_file(path);
  try {
    const std::string text = read_config_text(path, "YAML");
    const YAML::Node root = YAML::Load(text);
    if (!root.IsMap()) return;
    for (const auto& entry : root) run.settings.emplace_back(entry.first.Scalar(), as_written(entry.second));
    run.decided = decided_settings(text);
  } catch (const YAML::Exception& error) {
    fail("[{}:{}] {}, expected the configuration of a run", path, error.mark.line + 1, error.msg);
  }
}

std::string RunFolder::setting(std::string_view key) const {
  return find(settings, key);
}

std::string RunFolder::value(std::string_view key) const {
  const std::string own = setting(key);
  return own.empty() ? find(decided, key) : own;
}

bool is_run_folder(const std::string& path) {
  std::error_code ignored;
  return fs::exists(fs::path(path) / kMetricsName, ignored);
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
    path /= kMetricsName;
  }
  RunFolder run;
  const fs::path folder = fs::absolute(path).lexically_normal().parent_path();
  const bool whole = path.filename() == kMetricsName;
  run.name = whole ? folder.filename().string() : path.filename().string();
  if (whole) run.folder = path.parent_path().empty() ? "." : path.parent_path().string();
  run.records = drop_superseded(read_metrics(path));
  if (whole) read_run_settings((folder / "config.yaml").string(), run);
  return run;
}

}  // namespace octet
