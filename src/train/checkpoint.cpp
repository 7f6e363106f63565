#include "train/checkpoint.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "tensor/floats.h"
#include "train/guards.h"
#include "train/hf_folder.h"

namespace octet {
namespace {

using Json = nlohmann::ordered_json;

struct NamedTensor {
  std::string name;
  Tensor tensor;
};

// What the optimizer keeps of a parameter, by name.
std::vector<NamedTensor> optimizer_tensors(const Parameter& parameter) {
  std::vector<NamedTensor> tensors;
  const auto add = [&](const char* what, Tensor tensor) {
    if (tensor) tensors.push_back({fmt::format("{}.{}", parameter.spec.name, what), tensor});
  };
  add("remainder", parameter.remainder);
  add("m", parameter.m);
  add("v", parameter.v);
  return tensors;
}

SafeDType safe_dtype(DType dtype) {
  switch (dtype) {
    case DType::F32:
      return SafeDType::F32;
    case DType::BF16:
      return SafeDType::BF16;
    case DType::E4M3:
      return SafeDType::F8_E4M3;
    case DType::E5M2:
      return SafeDType::F8_E5M2;
    case DType::E8M0:
      return SafeDType::F8_E8M0;
    case DType::I32:
      return SafeDType::I32;
    case DType::U16:
      return SafeDType::U16;
    case DType::U8:
      return SafeDType::U8;
  }
  return SafeDType::U8;
}

std::vector<int64_t> dimensions(const Shape& shape) {
  std::vector<int64_t> dims;
  for (int i = 0; i < shape.rank(); ++i) dims.push_back(shape[i]);
  return dims;
}

// Numbers that JSON cannot hold stand there as text.
Json number_json(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

double number_from(const nlohmann::json& value) {
  if (value.is_number()) return value.get<double>();
  const std::string text = value.get<std::string>();
  if (text == "nan") return std::nan("");
  if (text == "inf") return INFINITY;
  if (text == "-inf") return -INFINITY;
  fail("a number is '{}'", text);
}

// Elements of a checkpoint's moment as fp32.
std::vector<float> as_floats(const SafeTensor& tensor, const std::string& place) {
  require(tensor.dtype == SafeDType::F32 || tensor.dtype == SafeDType::BF16,
          "[{}] {} is {}, which cannot be converted to this run's optimizer_state", place, tensor.name,
          safe_dtype_name(tensor.dtype));
  std::vector<float> values(static_cast<size_t>(tensor.count()));
  if (tensor.dtype == SafeDType::F32) {
    std::memcpy(values.data(), tensor.bytes.data(), tensor.bytes.size());
    return values;
  }
#pragma omp parallel for
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, tensor.bytes.data() + 2 * i, 2);
    values[i] = to_float(Bf16{bits});
  }
  return values;
}

void set_converted(Backend& backend, Tensor to, const SafeTensor& from, const std::string& place) {
  const std::vector<float> values = as_floats(from, place);
  if (to.dtype == DType::F32) {
    backend.copy_to_device(to, values.data());
    return;
  }
  require(to.dtype == DType::BF16,
          "[{}] {} is {}, this run keeps it as {}, and the one is not made of the other", place, from.name,
          safe_dtype_name(from.dtype), name_of(to.dtype));
  std::vector<Bf16> rounded(values.size());
#pragma omp parallel for
  for (size_t i = 0; i < values.size(); ++i) rounded[i] = to_bf16(values[i]);
  backend.copy_to_device(to, rounded.data());
}

// The lower halves of fp32 weights, added to their rounded upper halves.
void add_remainder(std::vector<float>& values, const SafeTensor& remainder) {
#pragma omp parallel for
  for (size_t i = 0; i < values.size(); ++i) {
    int16_t low = 0;
    std::memcpy(&low, remainder.bytes.data() + 2 * i, 2);
    values[i] =
        std::bit_cast<float>(std::bit_cast<uint32_t>(values[i]) + static_cast<uint32_t>(int32_t{low}));
  }
}

// Restores the parameters one by one and notes what had to be converted.
class ParameterRestorer {
 public:
  ParameterRestorer(Env& env, const Checkpoint& checkpoint, Backend& backend)
      : backend_(backend),
        weights_(SafetensorsFile::open(env, checkpoint.file_path(checkpoint_file::kWeights))),
        optimizer_(SafetensorsFile::open(env, checkpoint.file_path(checkpoint_file::kOptimizer))) {}

  void restore(ParameterSet& parameters) {
    check_fit(parameters);
    const HfWeights weights([this](std::string_view name) { return weights_.find(name); }, weights_.place());
    for (Parameter& parameter : parameters.all()) {
      restore_weight(parameter, weights.values(parameter.spec));
      for (const auto& [name, tensor] : optimizer_tensors(parameter)) restore_state(name, tensor);
    }
  }

  std::vector<std::string> remarks() const { return {remarks_.begin(), remarks_.end()}; }

 private:
  // Everything that does not fit is found before anything is changed.
  void check_fit(const ParameterSet& parameters) const {
    std::vector<std::string> faults;
    for (const Parameter& parameter : parameters.all()) {
      for (const auto& [name, tensor] : optimizer_tensors(parameter)) {
        const SafeTensor* found = optimizer_.find(name);
        const std::vector<int64_t> expected = dimensions(tensor.shape);
        if (!found) {
          if (!name.ends_with(".remainder")) faults.push_back(fmt::format("{} is missing", name));
        } else if (!std::equal(expected.begin(), expected.end(), found->shape.begin(), found->shape.end())) {
          faults.push_back(fmt::format("{} has shape ({}), expected ({})", name,
                                       fmt::join(found->shape, ", "), fmt::join(expected, ", ")));
        }
      }
    }
    require(faults.empty(), "[{}] does not fit the model:\n  {}", optimizer_.place(),
            fmt::join(faults, "\n  "));
  }

  void restore_weight(Parameter& parameter, std::vector<float> values) {
    require(all_finite(std::as_bytes(std::span(values)), DType::F32),
            "[{}] {} holds values that are not finite", weights_.place(), parameter.spec.hf.front().name);
    const SafeTensor* remainder = optimizer_.find(parameter.spec.name + ".remainder");
    if (remainder) {
      require(remainder->dtype == SafeDType::U16 && remainder->count() == parameter.weight.numel(),
              "[{}] {} is not the remainder of a weight of {} elements", optimizer_.place(), remainder->name,
              parameter.weight.numel());
    }
    if (remainder && !parameter.remainder) {
      if (parameter.weight.dtype == DType::F32) {
        add_remainder(values, *remainder);
        note("weights: the exact fp32 values of the bf16 checkpoint");
      } else {
        note("weights: bf16 as in the checkpoint, whose 16-bit remainders this run does not keep");
      }
    }
    if (!remainder && parameter.remainder) note("weights: split into bf16 and an exact remainder");
    ParameterSet::set_weight(backend_, parameter,
                             values);  // the remainder, where kept, is restored with the state
  }

  void restore_state(const std::string& name, Tensor to) {
    const SafeTensor* from = optimizer_.find(name);
    if (!from) return;  // a remainder, which set_weight has made
    if (from->dtype == safe_dtype(to.dtype)) {
      require(all_finite(from->bytes, to.dtype), "[{}] {} holds values that are not finite",
              optimizer_.place(), name);
      backend_.copy_to_device(to, from->bytes.data());
      return;
    }
    set_converted(backend_, to, *from, optimizer_.place());
    note(fmt::format("AdamW's moments: converted from {} to {}", safe_dtype_name(from->dtype),
                     name_of(to.dtype)));
  }

  void note(std::string remark) {
    if (std::find(remarks_.begin(), remarks_.end(), remark) == remarks_.end())
      remarks_.push_back(std::move(remark));
  }

  Backend& backend_;
  SafetensorsFile weights_, optimizer_;
  std::vector<std::string> remarks_;
};

std::vector<std::byte> read_bytes(Env& env, const std::string& path) {
  ReadableFile file = env.open_read(path);
  std::vector<std::byte> bytes(static_cast<size_t>(file.size()));
  bytes.resize(file.read(bytes));
  return bytes;
}

// The scales go with recipe and format. Where those differ the run starts as a new one does: every tensor scaled by
// itself in the first micro-batch, from which the histories grow.
void restore_scales(Env& env, const Checkpoint& checkpoint, Backend& backend, Transformer& model,
                    std::vector<std::string>& remarks) {
  const bool fp8 = model.numerics().precision == Precision::Fp8 && model.scales().count() > 0;
  const bool saved = checkpoint.has_file(checkpoint_file::kFp8);
  if (!fp8) {
    if (saved)
      remarks.push_back(
          "FP8 to BF16: the checkpoint's FP8 scales are left aside, weights and moments are kept");
    return;
  }
  const bool delayed = model.scales().config().recipe == Fp8Recipe::Delayed;
  const char* anew = delayed ? "found anew from the first micro-batch" : "made anew with every tensor";
  if (!saved) {
    remarks.push_back(fmt::format("BF16 to FP8: the scales are {}, weights and moments are kept", anew));
    return;
  }
  const std::string path = checkpoint.file_path(checkpoint_file::kFp8);
  try {
    model.scales().restore(backend, read_bytes(env, path));
  } catch (const IoError&) {
    throw;
  } catch (const Error& reason) {
    remarks.push_back(fmt::format("FP8 scales: {} ({})", anew, reason.what()));
  }
}

}  // namespace

std::string to_json(const TrainerState& state) {
  Json json = {{"format", "octet trainer state"},
               {"version", 1},
               {"step", state.step},
               {"tokens", state.tokens},
               {"skipped_steps", state.skipped_steps},
               {"skipped_in_a_row", state.skipped_in_a_row},
               {"loader", loader_state_json(state.loader)},
               {"first_loss", number_json(state.first_loss)},
               {"last_loss", number_json(state.last_loss)}};
  if (state.first_eval) json["first_eval"] = number_json(*state.first_eval);
  if (state.best_eval) json["best_eval"] = number_json(*state.best_eval);
  json["loss_window"] = state.loss_window;
  json["spikes_in_a_row"] = state.spikes_in_a_row;
  return json.dump(1) + "\n";
}

TrainerState trainer_state_from_json(std::string_view text, const std::string& place) {
  const nlohmann::json json = parse_json(text, place, {.max_depth = 8, .refuse_duplicate_keys = true});
  require(json.is_object() && json.value("format", "") == "octet trainer state",
          "[{}] is not the state of an octet trainer", place);
  try {
    require(json.at("version") == 1, "version {}, this program reads 1", json.at("version").dump());
    TrainerState state;
    state.step = json.at("step").get<int64_t>();
    state.tokens = json.at("tokens").get<int64_t>();
    state.skipped_steps = json.at("skipped_steps").get<int64_t>();
    state.skipped_in_a_row = json.at("skipped_in_a_row").get<int>();
    state.loader = parse_loader_state(json.at("loader"), place);
    state.first_loss = number_from(json.at("first_loss"));
    state.last_loss = number_from(json.at("last_loss"));
    if (json.contains("first_eval")) state.first_eval = number_from(json["first_eval"]);
    if (json.contains("best_eval")) state.best_eval = number_from(json["best_eval"]);
    state.loss_window = json.at("loss_window").get<std::vector<double>>();
    state.spikes_in_a_row = json.at("spikes_in_a_row").get<int>();
    return state;
  } catch (const nlohmann::json::exception& e) {
    fail("[{}] {}", place, plain_json_error(e.what()));
  } catch (const Error& e) {
    fail("[{}] {}", place, e.what());
  }
}

void Snapshot::copy(HostTensor& to, Backend& backend, const std::string& name, Tensor from) {
  to.name = name;
  to.dtype = from.dtype;
  to.shape = from.shape;
  to.bytes.resize(static_cast<size_t>(from.bytes()));
  backend.copy_to_host(to.bytes.data(), from);
}

void Snapshot::take(Backend& backend, Transformer& model, TrainerState state, std::string train_config) {
  parameters_ = &model.parameters();
  const std::vector<Parameter>& all = parameters_->all();
  weights_.resize(all.size());
  size_t states = 0;
  for (size_t i = 0; i < all.size(); ++i) {
    copy(weights_[i], backend, all[i].spec.name, all[i].weight);
    for (const auto& [name, tensor] : optimizer_tensors(all[i])) {
      if (states == optimizer_.size()) optimizer_.emplace_back();
      copy(optimizer_[states++], backend, name, tensor);
    }
  }
  optimizer_.resize(states);
  fp8_.clear();
  if (model.numerics().precision == Precision::Fp8 && model.scales().count() > 0)
    fp8_ = model.scales().save(backend);
  state_ = std::move(state);
  model_config_ = to_hf_config(model.config(), all.front().weight.dtype);
  train_config_ = std::move(train_config);
}

int64_t Snapshot::bytes() const {
  size_t total = fp8_.size();
  for (const HostTensor& tensor : weights_) total += tensor.bytes.size();
  for (const HostTensor& tensor : optimizer_) total += tensor.bytes.size();
  return static_cast<int64_t>(total);
}

void Snapshot::check() const {
  for (const auto* tensors : {&weights_, &optimizer_}) {
    for (const HostTensor& tensor : *tensors) {
      require(all_finite(tensor.bytes, tensor.dtype),
              "[checkpoint] {} holds values that are not finite at step {}; the state is not saved",
              tensor.name, state_.step);
    }
  }
}

void Snapshot::write(CheckpointWriter& writer) const {
  using namespace checkpoint_file;
  writer.file(kModelConfig, [&](Sink& sink) { sink.append(model_config_); });
  writer.file(kWeights, [&](Sink& sink) {
    const auto rows_of = [&](size_t index, int64_t begin, int64_t rows) {
      const HostTensor& tensor = weights_[index];
      const size_t row = tensor.bytes.size() / static_cast<size_t>(tensor.shape[0]);
      const auto first = tensor.bytes.begin() + static_cast<std::ptrdiff_t>(static_cast<size_t>(begin) * row);
      return std::vector<std::byte>(first,
                                    first + static_cast<std::ptrdiff_t>(static_cast<size_t>(rows) * row));
    };
    save_hf_weights(sink, *parameters_, safe_dtype(weights_.front().dtype), rows_of);
  });
  writer.file(kOptimizer, [&](Sink& sink) {
    std::map<std::string_view, const HostTensor*> by_name;
    std::vector<SafeTensorSpec> specs;
    for (const HostTensor& tensor : optimizer_) {
      by_name[tensor.name] = &tensor;
      specs.push_back({tensor.name, safe_dtype(tensor.dtype), dimensions(tensor.shape)});
    }
    SafetensorsWriter tensors(sink, std::move(specs));
    for (const SafeTensorSpec& spec : tensors.specs())
      tensors.append(spec.name, by_name.at(spec.name)->bytes);
    tensors.finish();
  });
  if (!fp8_.empty()) writer.file(kFp8, [&](Sink& sink) { sink.append(fp8_); });
  writer.file(kState, [&](Sink& sink) { sink.append(to_json(state_)); });
  writer.file(kTrainConfig, [&](Sink& sink) { sink.append(train_config_); });
}

Restored restore_checkpoint(Env& env, const Checkpoint& checkpoint, Backend& backend, Transformer& model) {
  const std::string state_path = checkpoint.file_path(checkpoint_file::kState);
  Restored restored;
  restored.state = trainer_state_from_json(env.read_text(state_path), state_path);
  require(restored.state.step == checkpoint.step, "[{}] is of step {}, the manifest says {}", state_path,
          restored.state.step, checkpoint.step);
  ParameterRestorer parameters(env, checkpoint, backend);
  parameters.restore(model.parameters());
  restored.remarks = parameters.remarks();
  restore_scales(env, checkpoint, backend, model, restored.remarks);
  model.weights_changed();
  return restored;
}

}  // namespace octet
