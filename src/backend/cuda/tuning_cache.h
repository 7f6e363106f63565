#pragma once

#include <map>
#include <optional>
#include <string>

namespace octet {

// The fastest choice per problem, kept in a file so that later runs on the same GPU with the same library start at
// once. Several libraries may share a file. It has one JSON object per line; lines of another GPU, library or version
// are skipped.
class TuningCache {
 public:
  // Empty `file`: kept only in memory. `library` and `version` as in ("cublaslt", "130100").
  TuningCache(std::string file, std::string gpu, std::string library, std::string version);

  std::optional<std::string> find(const std::string& key) const;
  void add(const std::string& key, const std::string& choice, float ms);
  // Where the choices are kept, for messages.
  const char* place() const { return file_.empty() ? "memory" : file_.c_str(); }

 private:
  std::string file_, gpu_, library_, version_;
  std::map<std::string, std::string> choices_;
};

}  // namespace octet
