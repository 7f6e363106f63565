#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "hf/peft_folder.h"

namespace octet {

// Adds an adapter to the weights of its base: W + scale * B A, in fp32. Every row is computed alone, so the result does
// not depend on how the rows are cut into pieces.
class AdapterMerge {
 public:
  // Both must outlive this. The parameters are found by their names in the table.
  AdapterMerge(const PeftAdapter& adapter, std::span<const ParameterSpec> table);

  // Whether the parameter has an adapter.
  bool changes(const ParameterSpec& spec) const { return parts_.contains(spec.name); }
  // `values` are whole rows of the parameter from row `begin` on, in octet's layout (out, in).
  void add_to(const ParameterSpec& spec, int64_t begin, std::span<float> values) const;

 private:
  const PeftAdapter& adapter_;
  std::map<std::string, std::vector<AdaptedPart>, std::less<>> parts_;
};

}  // namespace octet
