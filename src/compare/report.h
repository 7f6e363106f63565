#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "compare/checklist.h"
#include "compare/comparison.h"
#include "report/html_page.h"

namespace octet {

// Tables for the terminal, the verdict last. `utf8`: box-drawing rules.
std::string comparison_text(const Comparison& comparison, bool utf8);
nlohmann::ordered_json comparison_json(const Comparison& comparison);
// `checklist` may be null.
HtmlPage comparison_page(const Comparison& comparison, const Checklist* checklist);

}  // namespace octet
