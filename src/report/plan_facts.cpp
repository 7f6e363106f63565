#include "report/plan_facts.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "base/regular_file.h"

namespace octet {
namespace {

template <class T>
T field(const nlohmann::json& object, const char* name, const std::string& place) {
  const auto found = object.find(name);
  require(found != object.end(), "[{}] has no field '{}', expected the plan of a run", place, name);
  try {
    return found->get<T>();
  } catch (const nlohmann::json::exception&) {
    fail("[{}] '{}' is {}, expected another type", place, name, found->type_name());
  }
}

}  // namespace

std::string plan_facts_json(const PlanFacts& facts) {
  nlohmann::ordered_json work = nlohmann::ordered_json::array();
  for (const PlanFacts::Work& part : facts.work)
    work.push_back({{"kind", part.kind}, {"share", part.share}, {"in_fp8", part.in_fp8}});
  const nlohmann::ordered_json json = {{"model", facts.model},
                                       {"parameters", facts.parameters},
                                       {"device", facts.device},
                                       {"precision", facts.precision},
                                       {"fallback", facts.fallback},
                                       {"fp8_share", facts.fp8_share},
                                       {"memory_bytes", facts.memory_bytes},
                                       {"memory_limit", facts.memory_limit},
                                       {"sequences_per_step", facts.sequences_per_step},
                                       {"sequence_length", facts.sequence_length},
                                       {"ranks", facts.ranks},
                                       {"max_steps", facts.max_steps},
                                       {"work", work}};
  return json.dump(1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

std::optional<PlanFacts> read_plan_facts(const std::string& run_folder) {
  const std::string place = (std::filesystem::path(run_folder) / "plan.json").string();
  require_regular_file(place);
  std::ifstream file(place, std::ios::binary);
  if (!file.is_open()) return std::nullopt;
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const nlohmann::json json = parse_json(text, place);
  require(json.is_object(), "[{}] is {}, expected an object", place, json.type_name());
  PlanFacts facts{.model = field<std::string>(json, "model", place),
                  .parameters = field<int64_t>(json, "parameters", place),
                  .device = field<std::string>(json, "device", place),
                  .precision = field<std::string>(json, "precision", place),
                  .fallback = field<std::string>(json, "fallback", place),
                  .fp8_share = field<double>(json, "fp8_share", place),
                  .memory_bytes = field<int64_t>(json, "memory_bytes", place),
                  .memory_limit = field<int64_t>(json, "memory_limit", place),
                  .sequences_per_step = field<int64_t>(json, "sequences_per_step", place),
                  .sequence_length = field<int64_t>(json, "sequence_length", place),
                  .ranks = field<int64_t>(json, "ranks", place),
                  .max_steps = json.contains("max_steps") ? field<int64_t>(json, "max_steps", place) : 0};
  for (const nlohmann::json& part : field<nlohmann::json>(json, "work", place)) {
    require(part.is_object(), "[{}] 'work' holds {}, expected objects", place, part.type_name());
    facts.work.push_back({field<std::string>(part, "kind", place), field<double>(part, "share", place),
                          field<double>(part, "in_fp8", place)});
  }
  return facts;
}

}  // namespace octet
