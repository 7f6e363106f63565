#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "import/import.h"

namespace octet::test {

inline ImportResult import_text(const std::string& text, const std::string& name = "given.yaml") {
  return import_tree(parse_tree(text, name));
}

// A LLaMA-Factory file with these lines added.
inline ImportResult import_lf(const std::string& lines) {
  return import_text("stage: sft\ndo_train: true\ntemplate: llama3\nmodel_name_or_path: org/llama\n" + lines);
}

inline bool has_finding(const ImportResult& result, const std::string& name) {
  return std::ranges::find(result.findings, name, &Finding::name) != result.findings.end();
}

// The names of the findings that are mistakes, in their order.
inline std::vector<std::string> mistakes_of(const ImportResult& result) {
  std::vector<std::string> names;
  for (const Finding& finding : result.findings) {
    if (!finding.is_note) names.push_back(finding.name);
  }
  return names;
}

// "mapped", "refused"... of a key, or "" if the file does not have it.
inline std::string fate_of(const ImportResult& result, const std::string& name) {
  const auto found = std::ranges::find_if(result.verdicts,
                                          [&](const Verdict& verdict) { return verdict.leaf.name == name; });
  if (found == result.verdicts.end()) return "";
  constexpr const char* kNames[] = {"mapped", "derived", "ignored", "warned", "refused"};
  return kNames[static_cast<int>(found->fate)];
}

inline std::string reason_of(const ImportResult& result, const std::string& name) {
  const auto found = std::ranges::find_if(result.verdicts,
                                          [&](const Verdict& verdict) { return verdict.leaf.name == name; });
  return found == result.verdicts.end() ? "" : found->reason;
}

inline std::string config_error_of(const auto& function) {
  try {
    function();
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

inline TrainConfig load(const ImportResult& result) {
  return load_train_config(
      {.path = result.file, .settings = import_settings(result), .errors = refusals(result)}, {});
}

}  // namespace octet::test
