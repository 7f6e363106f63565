#include "support/trace_file.h"

#include <fmt/format.h>

#include <algorithm>

namespace octet::test {

using nlohmann::json;

TraceFile::TraceFile(const std::string& text) {
  const json file = json::parse(text, nullptr, false);
  if (file.is_discarded() || !file.is_object() || !file.contains("traceEvents")) {
    fault_ = "not JSON with traceEvents";
    return;
  }
  read(file);
}

void TraceFile::read(const json& file) {
  const auto wrong = [&](const std::string& what) {
    if (fault_.empty()) fault_ = what;
  };
  std::map<int64_t, std::string> processes;
  std::map<std::pair<int64_t, int64_t>, std::string> threads;
  for (const json& event : file["traceEvents"]) {
    for (const char* field : {"ph", "name"}) {
      if (!event.contains(field) || !event[field].is_string()) return wrong(event.dump() + " lacks " + field);
    }
    for (const char* field : {"pid", "tid"}) {
      if (!event.contains(field) || !event[field].is_number_integer())
        return wrong(event.dump() + " lacks " + field);
    }
    if (event["ph"] == "M" && event["name"] == "process_name")
      processes[event["pid"]] = event["args"]["name"];
    if (event["ph"] == "M" && event["name"] == "thread_name")
      threads[{event["pid"], event["tid"]}] = event["args"]["name"];
  }
  for (const json& event : file["traceEvents"]) {
    if (event["ph"] == "M") continue;
    if (event["ph"] != "X") return wrong(event.dump() + ": neither X nor M");
    for (const char* field : {"ts", "dur"}) {
      if (!event.contains(field) || !event[field].is_number()) return wrong(event.dump() + " lacks " + field);
    }
    if (event["dur"] < 0) return wrong(event.dump() + ": negative dur");
    const int64_t pid = event["pid"], tid = event["tid"];
    if (!processes.contains(pid) || !threads.contains({pid, tid}))
      return wrong(fmt::format("track {} {} has no name", pid, tid));
    spans_[fmt::format("{}/{}", processes[pid], threads[{pid, tid}])].push_back(event);
  }
  for (auto& [track, spans] : spans_) {
    std::stable_sort(spans.begin(), spans.end(), [](const json& a, const json& b) {
      return std::pair(a["ts"].get<double>(), -a["dur"].get<double>()) <
             std::pair(b["ts"].get<double>(), -b["dur"].get<double>());
    });
    constexpr double kRounding = 0.01;  // microseconds
    std::vector<double> open;           // ends of the spans that a span lies in
    for (const json& span : spans) {
      const double begin = span["ts"], end = begin + span["dur"].get<double>();
      while (!open.empty() && open.back() <= begin + kRounding) open.pop_back();
      if (!open.empty() && end > open.back() + kRounding)
        return wrong(fmt::format("{}: {} overlaps the one before it", track, span.dump()));
      open.push_back(end);
    }
  }
}

std::set<std::string> TraceFile::tracks() const {
  std::set<std::string> result;
  for (const auto& [track, spans] : spans_) result.insert(track);
  return result;
}

std::vector<json> TraceFile::spans(const std::string& track) const {
  const auto found = spans_.find(track);
  return found == spans_.end() ? std::vector<json>{} : found->second;
}

}  // namespace octet::test
