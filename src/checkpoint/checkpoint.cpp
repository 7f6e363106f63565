#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "base/json.h"
#include "hf/hf_folder.h"
#include "tensor/split_fp32.h"

namespace octet {
namespace {

using Json = nlohmann::ordered_json;

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

}  // namespace

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
  json["loss_window"] = Json::array();
  for (const double loss : state.loss_window) json["loss_window"].push_back(number_json(loss));
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
    for (const nlohmann::json& loss : json.at("loss_window")) state.loss_window.push_back(number_from(loss));
    state.spikes_in_a_row = json.at("spikes_in_a_row").get<int>();
    return state;
  } catch (const nlohmann::json::exception& e) {
    fail("[{}] {}", place, plain_json_error(e.what()));
  } catch (const Error& e) {
    fail("[{}] {}", place, e.what());
  }
}

int64_t state_bytes(const ParameterSet& parameters) {
  const bool adapters = has_adapters(parameters);
  int64_t total = 0;
  for (const Parameter& parameter : parameters.all()) {
    if (adapters && !parameter.spec.is_adapter()) continue;
    for (const NamedTensor& named : parameter.state()) total += named.tensor.bytes();
  }
  return total;
}

void Snapshot::add(std::vector<StateTensor>& tensors, size_t index, const std::string& name, Tensor device,
                   bool in_place) {
  if (index == tensors.size()) tensors.emplace_back();
  StateTensor& to = tensors[index];
  const size_t size = static_cast<size_t>(device.bytes());
  if (in_place || !to.copy || size != to.size()) to.copy.reset();
  to.name = name;
  to.device = device;
  if (in_place) return;
  // Not zeroed: gigabytes of fresh memory are touched once, by the copy.
  if (!to.copy) to.copy = std::make_unique_for_overwrite<std::byte[]>(size);
  device_->copy_to_host(to.copy.get(), device);
}

void Snapshot::take(Device& device, Transformer& model, TrainerState state, std::string train_config,
                    bool in_place) {
  device_ = &device;
  adapters_ = model.has_adapters();
  const std::vector<Parameter>& all = model.parameters().all();
  size_t states = 0;
  table_.clear();
  for (const Parameter& p : all) {
    if (adapters_ && !p.spec.is_adapter()) continue;
    add(weights_, table_.size(), p.spec.name, p.weight, in_place);
    if (adapters_ && p.remainder) add(remainders_, table_.size(), p.spec.name, p.remainder, in_place);
    for (const auto& [name, tensor] : p.state()) {
      const bool in_weights = tensor.data == p.weight.data || (adapters_ && tensor.data == p.remainder.data);
      if (!in_weights) add(optimizer_, states++, name, tensor, in_place);
    }
    table_.push_back(p.spec);
  }
  fp8_.clear();
  if (model.numerics().precision == Precision::Fp8 && model.scales().count() > 0)
    fp8_ = model.scales().save(device);
  state_ = std::move(state);
  model_config_ = to_hf_config(model.config(), model.numerics().dense());
  train_config_ = std::move(train_config);
}

int64_t Snapshot::bytes() const {
  size_t total = fp8_.size();
  for (const auto* tensors : {&weights_, &remainders_, &optimizer_}) {
    for (const StateTensor& tensor : *tensors) total += tensor.size();
  }
  return static_cast<int64_t>(total);
}

std::vector<std::byte> Snapshot::weight_rows(size_t index, int64_t begin, int64_t rows) const {
  std::vector<std::byte> bytes = rows_of(weights_[index], begin, rows);
  if (remainders_.empty()) return bytes;
  const std::vector<std::byte> low = rows_of(remainders_[index], begin, rows);
  std::vector<std::byte> exact(2 * bytes.size());
  for (size_t i = 0; i < bytes.size() / 2; ++i) {
    uint16_t parts[2];
    std::memcpy(&parts[0], bytes.data() + 2 * i, 2);
    std::memcpy(&parts[1], low.data() + 2 * i, 2);
    const float value = join_fp32(parts[0], parts[1]);
    std::memcpy(exact.data() + 4 * i, &value, 4);
  }
  return exact;
}

std::vector<std::byte> Snapshot::rows_of(const StateTensor& tensor, int64_t begin, int64_t rows) const {
  const int64_t height = tensor.device.shape[0];
  const size_t row = tensor.size() / static_cast<size_t>(height);
  std::vector<std::byte> bytes(row * static_cast<size_t>(rows));
  if (tensor.copy) {
    std::memcpy(bytes.data(), tensor.copy.get() + row * static_cast<size_t>(begin), bytes.size());
  } else {
    const Tensor matrix = tensor.device.reshaped({height, tensor.device.numel() / height});
    device_->copy_to_host(bytes.data(), matrix.row_range(begin, rows));
  }
  return bytes;
}

template <class Use>
void Snapshot::for_pieces(const StateTensor& tensor, Use&& use) const {
  if (tensor.copy) {
    use(std::span<const std::byte>(tensor.copy.get(), tensor.size()));
    return;
  }
  constexpr size_t kPiece = size_t{64} << 20;
  const int64_t height = tensor.device.shape[0];
  const int64_t rows =
      std::max<int64_t>(1, static_cast<int64_t>(kPiece / (tensor.size() / static_cast<size_t>(height) + 1)));
  for (int64_t begin = 0; begin < height; begin += rows) {
    const std::vector<std::byte> piece = rows_of(tensor, begin, std::min(rows, height - begin));
    use(std::span<const std::byte>(piece));
  }
}

void Snapshot::check() const {
  for (const auto* tensors : {&weights_, &optimizer_}) {
    for (const StateTensor& tensor : *tensors) {
      for_pieces(tensor, [&](std::span<const std::byte> bytes) {
        require(all_finite(bytes, tensor.device.dtype),
                "[checkpoint] {} holds values that are not finite at step {}; the state is not saved",
                tensor.name, state_.step);
      });
    }
  }
}

void Snapshot::write(CheckpointWriter& writer) const {
  using namespace checkpoint_file;
  writer.file(kModelConfig, [&](Sink& sink) { sink.append(model_config_); });
  writer.file(adapters_ ? kAdapterWeights : kWeights, [&](Sink& sink) {
    write_hf_tensors(
        sink, hf_tensors(table_), adapters_ ? SafeDType::F32 : safe_dtype(weights_.front().device.dtype),
        [&](size_t index, int64_t begin, int64_t rows) { return weight_rows(index, begin, rows); });
  });
  writer.file(kOptimizer, [&](Sink& sink) {
    std::map<std::string_view, const StateTensor*> by_name;
    std::vector<SafeTensorSpec> specs;
    for (const StateTensor& tensor : optimizer_) {
      by_name[tensor.name] = &tensor;
      specs.push_back({tensor.name, safe_dtype(tensor.device.dtype), dimensions(tensor.device.shape)});
    }
    SafetensorsWriter tensors(sink, std::move(specs));
    for (const SafeTensorSpec& spec : tensors.specs()) {
      for_pieces(*by_name.at(spec.name),
                 [&](std::span<const std::byte> bytes) { tensors.append(spec.name, bytes); });
    }
    tensors.finish();
  });
  if (!fp8_.empty()) writer.file(kFp8, [&](Sink& sink) { sink.append(fp8_); });
  writer.file(kState, [&](Sink& sink) { sink.append(to_json(state_)); });
  writer.file(kTrainConfig, [&](Sink& sink) { sink.append(train_config_); });
}

}  // namespace octet
