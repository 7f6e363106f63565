#pragma once

#include <string>
#include <utility>
#include <vector>

namespace octet {

enum class Health { Ok, Warning, Failure };

// One line of the report.
struct CheckResult {
  Health health = Health::Ok;
  std::string area;                                          // "GPU"
  std::string name;                                          // "power limit"
  std::string text;                                          // what was found
  std::string remedy;                                        // what to do; empty only where it is ok
  std::vector<std::pair<std::string, double>> figures = {};  // for --json
};

// The results of one area, in order.
class CheckResults {
 public:
  explicit CheckResults(std::string area) : area_(std::move(area)) {}

  CheckResult& ok(std::string name, std::string text) {
    return add(Health::Ok, std::move(name), std::move(text), "");
  }
  CheckResult& warning(std::string name, std::string text, std::string remedy) {
    return add(Health::Warning, std::move(name), std::move(text), std::move(remedy));
  }
  CheckResult& failure(std::string name, std::string text, std::string remedy) {
    return add(Health::Failure, std::move(name), std::move(text), std::move(remedy));
  }
  CheckResult& add(Health health, std::string name, std::string text, std::string remedy) {
    all_.push_back({health, area_, std::move(name), std::move(text), std::move(remedy)});
    return all_.back();
  }
  void add(CheckResult result) { all_.push_back(std::move(result)); }
  std::vector<CheckResult> take() { return std::move(all_); }

 private:
  std::string area_;
  std::vector<CheckResult> all_;
};

}  // namespace octet
