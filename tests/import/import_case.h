#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "import_support.h"

namespace octet {

// A configuration of another tool and what becomes of it.
struct ImportCase {
  std::string name;
  std::string tool;
  std::string text;
  std::vector<std::pair<std::string, std::string>> settings = {};  // key and value; "-": not set
  std::vector<std::string> refused = {};                           // names of all refused keys
  std::vector<std::string> warned = {};                            // names of some keys that are warned of
  std::vector<std::string> findings = {};                          // all mistakes
};

inline std::vector<std::string> names_with(const ImportResult& result, Fate fate) {
  std::vector<std::string> names;
  for (const Verdict& verdict : result.verdicts) {
    if (verdict.fate == fate) names.push_back(verdict.leaf.name);
  }
  return names;
}

inline void expect_result(const ImportCase& given, const ImportResult& result) {
  SCOPED_TRACE(given.name);
  EXPECT_EQ(result.tool, given.tool);
  for (const auto& [key, value] : given.settings) {
    EXPECT_EQ(result.find(key) ? result.value(key) : "-", value) << key << "\n" << import_report(result);
  }
  EXPECT_EQ(names_with(result, Fate::Refused), given.refused) << import_report(result);
  const std::vector<std::string> warned = names_with(result, Fate::Warned);
  for (const std::string& name : given.warned)
    EXPECT_TRUE(std::ranges::find(warned, name) != warned.end()) << name << "\n" << import_report(result);
  EXPECT_EQ(test::mistakes_of(result), given.findings);
  for (const Verdict& verdict : result.verdicts) {
    EXPECT_TRUE(verdict.fate == Fate::Mapped || !verdict.reason.empty()) << verdict.leaf.name;
  }
  if (given.refused.empty()) {
    EXPECT_NO_THROW(test::load(result));
  }
}

// Imports it, compares, and loads the result if nothing is refused.
inline void expect_import(const ImportCase& given) {
  expect_result(given, import_tree(parse_tree(given.text, given.name + ".yaml")));
}

}  // namespace octet
