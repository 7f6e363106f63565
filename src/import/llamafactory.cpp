// LLaMA-Factory's YAML files.

#include "import/rules.h"
#include "import/tools.h"

namespace octet {
namespace {

constexpr ToolKey kKeys[] = {
    {"model_name_or_path", Fate::Mapped, "model_name_or_path", "", model_rule},
};

constexpr ToolDefault kDefaults[] = {
    {"num_train_epochs", "3", "max_steps"},
};

int score(const SettingsTree& tree) {
  constexpr std::string_view kCertain[] = {"stage", "do_train"};
  return count_keys(tree, kCertain, 60);
}

}  // namespace

const Tool& llamafactory_tool() {
  static const Tool tool{
      .name = "LLaMA-Factory", .keys = kKeys, .defaults = kDefaults, .score = score, .finish = nullptr};
  return tool;
}

const Tool& llamafactory_v1_tool() {
  static const Tool tool{.name = "LLaMA-Factory v1",
                         .keys = {},
                         .defaults = {},
                         .score = [](const SettingsTree&) { return 0; },
                         .finish = nullptr};
  return tool;
}

}  // namespace octet
