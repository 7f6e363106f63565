#include "import/tools.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/error.h"
#include "config/config.h"

namespace octet {

std::span<const Tool* const> tools() {
  static const std::array all = {&llamafactory_tool(), &llamafactory_v1_tool(), &deepspeed_tool(),
                                 &hf_trainer_tool(),   &axolotl_tool(),         &accelerate_tool()};
  return all;
}

bool is_own_configuration(const SettingsTree& tree) {
  return std::ranges::all_of(tree.leaves, [](const TreeLeaf& leaf) {
    return key_called(train_keys().keys(), leaf.name) != nullptr;
  });
}

std::string tool_names() {
  std::string names;
  for (const Tool* tool : tools()) names += fmt::format("{}{}", names.empty() ? "" : ", ", tool->name);
  return names;
}

const Tool* tool_of(const SettingsTree& tree) {
  if (is_own_configuration(tree)) return nullptr;
  const auto is_torchtune = [](const TreeLeaf& leaf) {
    return leaf.name.ends_with("_component_") && leaf.text.starts_with("torchtune.");
  };
  if (std::ranges::any_of(tree.leaves, is_torchtune))
    fail_config("{} is a recipe of torchtune, whose development has ended; octet imports {}", tree.file,
                tool_names());
  const Tool* best = nullptr;
  int best_score = kLikelyScore - 1;
  for (const Tool* tool : tools()) {
    const int score = tool->score(tree);
    if (score > best_score) {
      best = tool;
      best_score = score;
    }
  }
  return best;
}

int count_keys(const SettingsTree& tree, std::string_view names, int points) {
  const std::vector<std::string_view> all = parts_of(names, ' ');
  return points *
         static_cast<int>(std::ranges::count_if(all, [&](std::string_view name) { return tree.has(name); }));
}

}  // namespace octet
