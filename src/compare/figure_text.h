#pragma once

#include <optional>
#include <string>
#include <vector>

#include "compare/comparison.h"

namespace octet {

inline constexpr double kJoulesPerKwh = 3.6e6;

// A table of the comparison: one row per figure that any variant has, one cell per variant.
struct FigureRow {
  struct Cell {
    std::string text;
    std::optional<double> value;
  };
  std::string name;
  std::vector<Cell> cells;
};
std::vector<FigureRow> figure_rows(const Comparison& comparison);

std::string largest_text(const Difference& difference);  // "+0.0123 at step 40"; "-" of identical losses
std::string noise_text(const Difference& difference);    // "within noise"

}  // namespace octet
