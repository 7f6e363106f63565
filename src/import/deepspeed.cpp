// DeepSpeed's JSON files.

#include "import/rules.h"
#include "import/tools.h"

namespace octet {
namespace {

constexpr ToolKey kKeys[] = {
    {"zero_optimization.**", Fate::Ignored, "", "how DeepSpeed does it; octet plans its own"},
};

int score(const SettingsTree& tree) {
  constexpr std::string_view kCertain[] = {"zero_optimization", "train_micro_batch_size_per_gpu"};
  return count_keys(tree, kCertain, 60);
}

}  // namespace

const Tool& deepspeed_tool() {
  static const Tool tool{
      .name = "DeepSpeed", .keys = kKeys, .defaults = {}, .score = score, .finish = nullptr};
  return tool;
}

}  // namespace octet
