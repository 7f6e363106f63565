#pragma once

#include <string>
#include <vector>

namespace octet {

enum class Align { Left, Right };

// A text table for summaries and plans. Columns are as wide as their widest cell, two spaces apart, with a
// rule under the titles; no line ends in spaces.
class Table {
 public:
  struct Column {
    std::string title;
    Align align = Align::Left;
  };

  explicit Table(std::vector<Column> columns);

  void add_row(std::vector<std::string> cells);  // as many cells as columns
  void add_rule();                               // before a row of totals

  // Every line ends in a newline. Box-drawing rules instead of dashes where `utf8`.
  std::string str(bool utf8 = false) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;  // an empty one is a rule
};

}  // namespace octet
