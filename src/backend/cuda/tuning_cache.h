#pragma once

#include <map>
#include <optional>
#include <string>

namespace octet {

// What timing found best, by problem, kept in a file so that later runs on the same GPU with the same library start at
// once. Several libraries may share a file: one JSON object per line, and lines of another GPU, library or version are
// passed over.
class TuningCache {
 public:
  // Empty `file`: kept in memory alone. `library` and `version` as in ("cublaslt", "130100").
  TuningCache(std::string file, std::string gpu, std::string library, std::string version);

  std::optional<std::string> find(const std::string& key) const;
  void add(const std::string& key, const std::string& choice, float ms);
  // Where the winners are kept, in words.
  const char* place() const { return file_.empty() ? "memory" : file_.c_str(); }

 private:
  std::string file_, gpu_, library_, version_;
  std::map<std::string, std::string> choices_;
};

}  // namespace octet
