#include "report/table.h"

#include <algorithm>

#include "base/error.h"
#include "report/text.h"

namespace octet {
namespace {

constexpr size_t kGap = 2;

}  // namespace

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {
  require(!columns_.empty(), "[table] no columns, expected at least one");
}

void Table::add_row(std::vector<std::string> cells) {
  require(cells.size() == columns_.size(), "[table] a row of {} cells, expected {}", cells.size(),
          columns_.size());
  rows_.push_back(std::move(cells));
}

void Table::add_rule() {
  rows_.emplace_back();
}

std::string Table::str(bool utf8) const {
  std::vector<size_t> widths;
  for (size_t i = 0; i < columns_.size(); ++i) {
    int width = display_width(columns_[i].title);
    for (const auto& row : rows_) width = std::max(width, row.empty() ? 0 : display_width(row[i]));
    widths.push_back(static_cast<size_t>(width));
  }

  std::string result;
  const auto end_line = [&] {
    while (result.ends_with(' ')) result.pop_back();
    result += '\n';
  };
  const auto add_cell = [&](size_t i, const std::string& cell) {
    const size_t padding = widths[i] - static_cast<size_t>(display_width(cell));
    if (i > 0) result.append(kGap, ' ');
    if (columns_[i].align == Align::Right) result.append(padding, ' ');
    result += cell;
    if (columns_[i].align == Align::Left) result.append(padding, ' ');
  };
  const auto add_rule_line = [&] {
    for (size_t i = 0; i < widths.size(); ++i) {
      if (i > 0) result.append(kGap, ' ');
      for (size_t column = 0; column < widths[i]; ++column) result += utf8 ? "─" : "-";
    }
    end_line();
  };

  for (size_t i = 0; i < columns_.size(); ++i) add_cell(i, columns_[i].title);
  end_line();
  add_rule_line();
  for (const auto& row : rows_) {
    if (row.empty()) {
      add_rule_line();
      continue;
    }
    for (size_t i = 0; i < row.size(); ++i) add_cell(i, row[i]);
    end_line();
  }
  return result;
}

}  // namespace octet
