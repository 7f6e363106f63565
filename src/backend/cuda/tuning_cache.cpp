#include "backend/cuda/tuning_cache.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/log.h"

namespace octet {

TuningCache::TuningCache(std::string file, std::string gpu, std::string library, std::string version)
    : file_(std::move(file)),
      gpu_(std::move(gpu)),
      library_(std::move(library)),
      version_(std::move(version)) {
  if (file_.empty()) return;
  std::ifstream lines(file_);
  for (std::string line; std::getline(lines, line);) {
    const auto entry = nlohmann::json::parse(line, nullptr, false);
    const auto text = [&](const std::string& name) {
      return entry.is_object() && entry.contains(name) && entry[name].is_string()
                 ? entry[name].get<std::string>()
                 : "";
    };
    if (text("gpu") == gpu_ && text(library_) == version_) choices_[text("key")] = text("algo");
  }
}

std::optional<std::string> TuningCache::find(const std::string& key) const {
  const auto entry = choices_.find(key);
  if (entry == choices_.end()) return std::nullopt;
  return entry->second;
}

void TuningCache::add(const std::string& key, const std::string& choice, float ms) {
  choices_[key] = choice;
  if (file_.empty()) return;
  const nlohmann::json entry = {
      {"gpu", gpu_}, {library_, version_}, {"key", key}, {"algo", choice}, {"ms", ms}};
  std::ofstream lines(file_, std::ios::app);
  lines << entry.dump() + "\n" << std::flush;
  if (!lines) log_warning("[cuda] the tuning cache {} cannot be written", file_);
}

}  // namespace octet
