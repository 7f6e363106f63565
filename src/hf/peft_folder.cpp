#include "hf/peft_folder.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace octet {
namespace {

constexpr size_t kListedFaults = 10;

SafetensorsFile open_weights(Env& env, const std::string& folder) {
  const std::string path = join_path(folder, kAdapterWeightsName);
  if (!env.exists(path) && env.exists(join_path(folder, "adapter_model.bin"))) {
    fail(
        "[{0}] holds adapter_model.bin, which octet does not read because a pickle can run code; load the adapter with "
        "PEFT and write it with save_pretrained(folder, safe_serialization=True) to get {1}",
        folder, kAdapterWeightsName);
  }
  require(env.exists(path), "[{}] holds {} but no {}", folder, kAdapterConfigName, kAdapterWeightsName);
  return SafetensorsFile::open(env, path);
}

// A spec for a tensor of the adapter file alone.
ParameterSpec tensor_spec(std::string name, int64_t rows, int64_t cols) {
  ParameterSpec spec;
  spec.name = name;
  spec.shape = {rows, cols};
  spec.hf = {{std::move(name), 0, rows, false}};
  return spec;
}

// For messages: without what all names begin with.
std::string short_name(std::string_view name) {
  constexpr std::string_view kPrefix = "base_model.model.";
  if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
  return std::string(name);
}

}  // namespace

PeftConfig read_peft_config(Env& env, const std::string& folder) {
  const std::string path = join_path(folder, kAdapterConfigName);
  require(env.exists(path), "[{}] is not an adapter: it holds no {}", folder, kAdapterConfigName);
  return peft_config_from_json(env.read_text(path), path);
}

std::vector<AdaptedPart> adapted_parts(std::span<const ParameterSpec> table, const AdapterPlan& plan) {
  std::map<std::string, const Adapter*, std::less<>> by_name;
  for (const Adapter& adapter : plan.adapters) by_name[adapter.module] = &adapter;
  std::vector<AdaptedPart> parts;
  for (const ParameterSpec& spec : table) {
    if (spec.shape.rank() != 2) continue;  // biases belong to modules too
    for (const HfPart& part : spec.hf) {
      if (const auto found = by_name.find(part.module()); found != by_name.end())
        parts.push_back({&spec, &part, found->second});
    }
  }
  return parts;
}

PeftAdapter::PeftAdapter(Env& env, const std::string& folder, const ModelConfig& base)
    : folder_(folder),
      config_(read_peft_config(env, folder)),
      plan_(plan_of(config_, base, join_path(folder, kAdapterConfigName))),
      file_(open_weights(env, folder)) {
  check(base);
}

HfWeights PeftAdapter::weights() const {
  return HfWeights([this](std::string_view name) { return file_.find(name); }, file_.place());
}

std::vector<float> PeftAdapter::rows(const Adapter& adapter, char matrix, int64_t begin, int64_t rows,
                                     int64_t cols) const {
  const std::string name = peft_tensor_name(adapter.module, matrix);
  return weights().values(tensor_spec(name, file_.at(name).shape[0], cols), begin, rows);
}

void PeftAdapter::check(const ModelConfig& base) const {
  std::vector<std::string> faults;
  bool fits_rows = true;  // of the base, whatever the rank
  std::set<std::string, std::less<>> known;
  const std::vector<ParameterSpec> table = parameter_table(base);
  for (const AdaptedPart& part : adapted_parts(table, plan_)) {
    for (const char matrix : {'A', 'B'}) {
      const std::string name = peft_tensor_name(part.adapter->module, matrix);
      known.insert(name);
      const SafeTensor* tensor = file_.find(name);
      if (!tensor) {
        faults.push_back(fmt::format("{} is missing", short_name(name)));
        continue;
      }
      const int64_t rank = part.adapter->rank;
      const int64_t expected[] = {matrix == 'A' ? rank : part.out(), matrix == 'A' ? part.in() : rank};
      if (!std::ranges::equal(tensor->shape, expected)) {
        faults.push_back(fmt::format("{} has shape ({}), expected ({})", short_name(name),
                                     fmt::join(tensor->shape, ", "), fmt::join(expected, ", ")));
        const size_t model_side = matrix == 'A' ? 1 : 0;
        if (tensor->shape.size() != 2 || tensor->shape[model_side] != expected[model_side]) fits_rows = false;
        continue;
      }
      if (tensor->dtype != SafeDType::F32 && tensor->dtype != SafeDType::BF16 &&
          tensor->dtype != SafeDType::F16) {
        faults.push_back(fmt::format("{} is {}, expected F32, BF16 or F16", short_name(name),
                                     safe_dtype_name(tensor->dtype)));
        continue;
      }
      const std::vector<float> values = rows(*part.adapter, matrix, 0, expected[0], expected[1]);
      if (!std::ranges::all_of(values, [](float value) { return std::isfinite(value); }))
        faults.push_back(fmt::format("{} holds values that are not finite", short_name(name)));
    }
  }
  for (const SafeTensor& tensor : file_.tensors()) {
    if (!known.contains(tensor.name))
      faults.push_back(
          fmt::format("{} belongs to no module of the model that gets an adapter", short_name(tensor.name)));
  }
  if (faults.empty()) return;
  const size_t listed = std::min(faults.size(), kListedFaults);
  std::string text =
      fmt::format("{}", fmt::join(faults.begin(), faults.begin() + static_cast<ptrdiff_t>(listed), "\n  "));
  if (listed < faults.size()) text += fmt::format("\n  and {} more", faults.size() - listed);
  fail("[{}] does not fit {}:\n  {}{}", file_.place(), base.name, text,
       fits_rows
           ? ""
           : fmt::format("\nThe adapter is for another base model{}.",
                         config_.base.empty() ? "" : fmt::format("; its config names {}", config_.base)));
}

}  // namespace octet
