#include "model/family.h"

namespace octet {

std::span<const FamilySpec* const> model_families() {
  static const FamilySpec* const families[] = {&gpt2_family(), &llama_family(), &qwen2_family(),
                                               &qwen3_family(), &mistral_family()};
  return families;
}

const FamilySpec* find_family(std::string_view name) {
  for (const FamilySpec* family : model_families()) {
    if (family->name == name || (!name.empty() && family->alias == name)) return family;
  }
  return nullptr;
}

}  // namespace octet
