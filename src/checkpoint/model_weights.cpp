#include "checkpoint/model_weights.h"

#include <algorithm>

#include "base/log.h"
#include "checkpoint/base_identity.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/stored_remainder.h"

namespace octet {
namespace {

int64_t row_width(const ParameterSpec& spec) {
  return spec.shape.rank() == 1 ? 1 : spec.shape[1];
}

// A checkpoint of adapters says which base they were trained on.
void check_base(const ModelFolder& model, std::span<const ParameterSpec> table) {
  const std::optional<Checkpoint>& checkpoint = model.adapter->checkpoint;
  if (!checkpoint || !checkpoint->has_file(checkpoint_file::kBase)) return;
  const std::string path = checkpoint->file_path(checkpoint_file::kBase);
  const BaseIdentity saved = base_identity_from_json(posix_env().read_text(path), path);
  const std::string text =
      differences(saved, model.random_seed ? identity_of_random(model.config, *model.random_seed)
                                           : identity_of_folder(model.folder, model.folder, table));
  if (text.empty()) return;
  if (!model.base_given) fail("[{}] {}", path, text);
  log_warning("[{}] {}", path, text);
}

}  // namespace

ModelWeights::ModelWeights(const ModelFolder& model, std::span<const ParameterSpec> table, Device& device)
    : table_(table), device_(device), source_(model.source) {
  if (model.random_seed) {
    seed_ = *model.random_seed;
    // The run drew the base in the type in which it computes.
    if (model.run && model.run->mixed_precision != Precision::Fp32) drawn_ = DType::BF16;
  } else {
    files_.emplace(model.folder);
    weights_.emplace(files_->weights());
    weights_->check(table, surplus_faults(*files_, table));
  }
  if (model.adapter) {
    adapter_.emplace(posix_env(), model.adapter->folder, model.config);
    merge_.emplace(*adapter_, table);
    check_base(model, table);
  }
}

void ModelWeights::open_remainders(Env& env, const Checkpoint& checkpoint) {
  if (std::ranges::none_of(checkpoint.files, [](const CheckpointFile& file) {
        return is_tensor_file(file.name, kOptimizerStem);
      }))
    return;
  optimizer_.emplace(env, checkpoint, kOptimizerStem);
  if (std::ranges::none_of(table_, [this](const ParameterSpec& spec) {
        return static_cast<bool>(StoredRemainder(*optimizer_, spec));
      }))
    return;
  const std::vector<std::string> names = tensor_file_names(checkpoint, kOptimizerStem);
  verify_files(env, checkpoint, std::vector<std::string_view>(names.begin(), names.end()));
}

SafeDType ModelWeights::stored_dtype() const {
  if (!files_) return drawn_ == DType::F32 ? SafeDType::F32 : SafeDType::BF16;
  for (const ParameterSpec& spec : table_) {
    for (const HfPart& part : spec.hf) {
      if (files_->find(part.name)->dtype != SafeDType::BF16) return SafeDType::F32;
    }
  }
  return SafeDType::BF16;
}

std::vector<float> ModelWeights::rows(const ParameterSpec& spec, int64_t begin, int64_t rows) const {
  std::vector<float> values = files_ ? weights_->values(spec, begin, rows) : drawn_rows(spec, begin, rows);
  add_remainder(spec, begin, values);
  const bool is_merged = merge_ && merge_->changes(spec);
  if (is_merged) merge_->add_to(spec, begin, values);
  if (!all_finite(std::as_bytes(std::span(values)), DType::F32))
    fail_config("[{}] {}{} holds values that are not finite", source_, spec.hf.front().name,
                is_merged ? " with the adapter merged" : "");
  return values;
}

void ModelWeights::load(Parameter& parameter) const {
  const ParameterSpec& spec = parameter.spec;
  if (files_ && !(merge_ && merge_->changes(spec))) {
    weights_->load(device_, parameter);
  } else {
    ParameterSet::set_weight(device_, parameter, rows(spec, 0, spec.shape[0]));
  }
}

// A checkpoint keeps the bits of a bf16 run's weights that bf16 does not hold.
void ModelWeights::add_remainder(const ParameterSpec& spec, int64_t begin, std::vector<float>& values) const {
  if (!optimizer_) return;
  const StoredRemainder remainder(*optimizer_, spec);
  if (const std::string fault = remainder.fault(); !fault.empty())
    fail("[{}] {}", optimizer_->place(), fault);
  remainder.add_to(values, begin);
}

std::vector<float> ModelWeights::drawn_rows(const ParameterSpec& spec, int64_t begin, int64_t rows) const {
  Parameter part{.spec = spec};
  const Shape shape{rows, row_width(spec)};
  if (spec.init != Init::Normal)
    return std::vector<float>(static_cast<size_t>(shape.numel()), spec.init == Init::One ? 1.0f : 0.0f);
  const std::shared_ptr<void> memory =
      device_.allocate(shape.numel() * static_cast<int64_t>(size_of(drawn_)));
  part.own_rows = {memory.get(), drawn_, shape};
  fill_rows(device_, part.own_rows, part, seed_, begin);
  return ParameterSet::weight_values(device_, part);
}

void load_weights(Device& device, ParameterSet& parameters, const ModelFolder& model) {
  std::vector<ParameterSpec> table;
  for (const Parameter& parameter : parameters.all()) table.push_back(parameter.spec);
  const ModelWeights weights(model, table, device);
  for (Parameter& parameter : parameters.all()) weights.load(parameter);
}

}  // namespace octet
