// TrainingArguments of Transformers and SFTConfig of TRL, as JSON or YAML.

#include "import/rules.h"
#include "import/tools.h"

namespace octet {
namespace {

constexpr ToolKey kKeys[] = {
    {"model_name_or_path", Fate::Mapped, "model_name_or_path", "", model_rule},
};

}  // namespace

const Tool& hf_trainer_tool() {
  static const Tool tool{.name = "Hugging Face TrainingArguments",
                         .keys = kKeys,
                         .defaults = {},
                         .score = [](const SettingsTree&) { return 0; },
                         .finish = nullptr};
  return tool;
}

}  // namespace octet
