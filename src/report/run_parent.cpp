#include "report/run_parent.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "base/regular_file.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostParents = 100;  // a chain may lead back to itself if folders were renamed

fs::path whole(const std::string& path) {
  return fs::absolute(path).lexically_normal();
}

}  // namespace

std::string run_parent_json(const std::string& run, const RunParent& parent) {
  const nlohmann::ordered_json json = {
      {"run", whole(parent.folder).string()},
      {"from_here", whole(parent.folder).lexically_relative(whole(run)).string()},
      {"step", parent.step}};
  return json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::optional<RunParent> read_run_parent(const std::string& run) {
  const std::string place = (fs::path(run) / kRunParent).string();
  require_regular_file(place);
  std::ifstream file(place, std::ios::binary);
  if (!file.is_open()) return std::nullopt;
  const nlohmann::json json = parse_json(std::string{std::istreambuf_iterator<char>(file), {}}, place);
  const auto text = [&](const char* name) {
    return json.is_object() && json.contains(name) && json[name].is_string() ? json[name].get<std::string>()
                                                                             : "";
  };
  require(json.is_object() && json.contains("step") && json["step"].is_number_integer(),
          "[{}] has no number 'step', expected what octet writes for a run that continues another one",
          place);
  RunParent parent{.folder = "", .step = json["step"].get<int64_t>()};
  const std::string here = (fs::path(run) / text("from_here")).lexically_normal().string(),
                    there = text("run");
  if (!text("from_here").empty() && is_run_folder(here)) {
    parent.folder = here;
  } else if (!there.empty() && is_run_folder(there)) {
    parent.folder = there;
  }
  return parent;
}

RunLineage add_parents(RunFolder& run) {
  RunLineage lineage;
  std::optional<RunParent> parent = run.folder.empty() ? std::nullopt : read_run_parent(run.folder);
  if (parent) lineage.fork = parent->step;
  std::string child = run.folder;
  while (parent) {
    if (parent->folder.empty() || lineage.parents.size() == kMostParents) {
      lineage.missing = fmt::format("the run that {} continues after step {}", child, parent->step);
      break;
    }
    RunFolder before = read_run_folder(parent->folder);
    std::erase_if(before.records, [&](const StepRecord& record) { return record.step > parent->step; });
    const StepRecord* end = before.records.empty() ? nullptr : &before.records.back();
    for (StepRecord& record : run.records) {
      if (end && record.device_seconds && end->device_seconds) *record.device_seconds += *end->device_seconds;
      if (end && record.gpu && end->gpu) record.gpu->energy_joules += end->gpu->energy_joules;
    }
    std::erase_if(run.records, [&](const StepRecord& record) { return record.step <= parent->step; });
    run.records.insert(run.records.begin(), std::make_move_iterator(before.records.begin()),
                       std::make_move_iterator(before.records.end()));
    lineage.parents.push_back(parent->folder);
    child = parent->folder;
    parent = read_run_parent(child);
  }
  return lineage;
}

}  // namespace octet
