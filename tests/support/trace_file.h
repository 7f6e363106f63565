#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

namespace octet::test {

// A trace file as a viewer reads it.
class TraceFile {
 public:
  explicit TraceFile(const std::string& text);

  // What breaks the trace event format, or a span that overlaps another on its track without lying in it; empty: nothing.
  const std::string& fault() const { return fault_; }
  // "process/thread" of those with spans.
  std::set<std::string> tracks() const;
  // By their start, the longer one first.
  std::vector<nlohmann::json> spans(const std::string& track) const;

 private:
  void read(const nlohmann::json& file);

  std::string fault_;
  std::map<std::string, std::vector<nlohmann::json>> spans_;
};

}  // namespace octet::test
