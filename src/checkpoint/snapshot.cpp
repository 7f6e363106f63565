#include "checkpoint/snapshot.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <new>

#include "hf/hf_folder.h"
#include "tensor/split_fp32.h"

namespace octet {

int64_t state_bytes(const ParameterSet& parameters) {
  const bool adapters = has_adapters(parameters);
  int64_t total = 0;
  for (const Parameter& parameter : parameters.all()) {
    if (adapters && !parameter.spec.is_adapter()) continue;
    for (const NamedTensor& named : parameter.state()) total += named.tensor.bytes();
  }
  return total;
}

namespace {

// A rank has recorded only what it has computed itself.
void merge_scales(Device& device, Transformer& model, const RankSaving& ranks) {
  for (Linear* linear : model.linears()) {
    // Without rows of its own, a rank's slot would bring the last value of an earlier step.
    if (linear->weight.sends_codes() && linear->weight.trains() && linear->weight.parameter().rows() == 0)
      linear->weight.quantize_part(device.ops(), ScaleFrom::Slot);
  }
  ranks.merge_slots();
}

}  // namespace

std::byte* Snapshot::add(std::vector<StateTensor>& tensors, size_t index, const SavedTensor& saved,
                         bool in_place) {
  if (index == tensors.size()) tensors.emplace_back();
  StateTensor& to = tensors[index];
  const Tensor whole = saved.whole();
  const auto size = static_cast<size_t>(whole.bytes());
  if (in_place || !to.copy || size != to.size()) to.copy.reset();
  to.name = saved.name;
  to.whole = whole;
  if (in_place) return nullptr;
  try {
    // Not zeroed: gigabytes of fresh memory are touched once, by the copy.
    if (!to.copy) to.copy = std::make_unique_for_overwrite<std::byte[]>(size);
  } catch (const std::bad_alloc&) {
    out_of_memory_ = true;
  }
  return to.copy.get();
}

void Snapshot::take(Device& device, Transformer& model, TrainerState state, std::string train_config,
                    bool in_place, const RankSaving* ranks) {
  device_ = &device;
  const SaveLayout layout(model.parameters(), ranks ? ranks->sharding : Sharding{});
  adapters_ = layout.has_adapters();
  weights_name_ = layout.my_weights();
  optimizer_name_ = layout.my_optimizer();
  weights_index_ = layout.weights_index();
  out_of_memory_ = false;
  gatherer_.reserve(device, layout);

  using Kind = SavedTensor::Kind;
  table_.clear();
  size_t low_halves = 0, states = 0;
  for (const SavedTensor& saved : layout.tensors()) {
    std::byte* to = nullptr;
    if (layout.is_mine(saved)) {
      if (saved.kind == Kind::Weight) {
        to = add(weights_, table_.size(), saved, in_place);
        table_.push_back(saved.parameter->spec);
      } else if (saved.kind == Kind::LowHalf) {
        to = add(remainders_, low_halves++, saved, in_place);
      } else {
        to = add(optimizer_, states++, saved, in_place);
      }
    }
    if (saved.is_spread()) {
      require(ranks != nullptr, "[checkpoint] {} is shared by {} ranks, but saved by one alone", saved.name,
              saved.parameter->storage.cut.parts);
      gatherer_.gather(saved, to, *ranks);
    } else if (to) {
      device.copy_to_host(to, saved.share);
    }
  }

  fp8_.clear();
  if (model.numerics().precision == Precision::Fp8 && model.scales().count() > 0) {
    if (ranks) merge_scales(device, model, *ranks);
    if (layout.sharding().rank == 0) fp8_ = model.scales().save(device);
  }
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
  const int64_t height = tensor.whole.shape[0];
  const size_t row = tensor.size() / static_cast<size_t>(height);
  std::vector<std::byte> bytes(row * static_cast<size_t>(rows));
  if (tensor.copy) {
    std::memcpy(bytes.data(), tensor.copy.get() + row * static_cast<size_t>(begin), bytes.size());
  } else {
    const Tensor matrix = tensor.whole.reshaped({height, tensor.whole.numel() / height});
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
  const int64_t height = tensor.whole.shape[0];
  const int64_t rows =
      std::max<int64_t>(1, static_cast<int64_t>(kPiece / (tensor.size() / static_cast<size_t>(height) + 1)));
  for (int64_t begin = 0; begin < height; begin += rows) {
    const std::vector<std::byte> piece = rows_of(tensor, begin, std::min(rows, height - begin));
    use(std::span<const std::byte>(piece));
  }
}

void Snapshot::check() const {
  require(!out_of_memory_, "there is not enough host memory for a copy of the state");
  for (const auto* tensors : {&weights_, &optimizer_}) {
    for (const StateTensor& tensor : *tensors) {
      for_pieces(tensor, [&](std::span<const std::byte> bytes) {
        require(all_finite(bytes, tensor.whole.dtype),
                "[checkpoint] {} holds values that are not finite at step {}; the state is not saved",
                tensor.name, state_.step);
      });
    }
  }
}

void Snapshot::write(CheckpointWriter& writer, const std::function<void()>& tensors) const {
  using namespace checkpoint_file;
  writer.file(kModelConfig, [&](Sink& sink) { sink.append(model_config_); });
  tensors();
  if (!weights_index_.empty()) writer.file(kWeightsIndex, [&](Sink& sink) { sink.append(weights_index_); });
  if (!fp8_.empty()) writer.file(kFp8, [&](Sink& sink) { sink.append(fp8_); });
  writer.file(kState, [&](Sink& sink) { sink.append(to_json(state_)); });
  writer.file(kRunConfig, [&](Sink& sink) { sink.append(train_config_); });
}

void Snapshot::write_tensors(CheckpointWriter& writer) const {
  if (!weights_name_.empty()) {
    writer.file(weights_name_, [&](Sink& sink) {
      write_hf_tensors(
          sink, hf_tensors(table_), adapters_ ? SafeDType::F32 : safe_dtype(weights_.front().whole.dtype),
          [&](size_t index, int64_t begin, int64_t rows) { return weight_rows(index, begin, rows); });
    });
  }
  if (optimizer_name_.empty()) return;
  writer.file(optimizer_name_, [&](Sink& sink) {
    std::map<std::string_view, const StateTensor*> by_name;
    std::vector<SafeTensorSpec> specs;
    for (const StateTensor& tensor : optimizer_) {
      by_name[tensor.name] = &tensor;
      specs.push_back({tensor.name, safe_dtype(tensor.whole.dtype), dimensions(tensor.whole.shape)});
    }
    SafetensorsWriter tensors(sink, std::move(specs));
    for (const SafeTensorSpec& spec : tensors.specs()) {
      for_pieces(*by_name.at(spec.name),
                 [&](std::span<const std::byte> bytes) { tensors.append(spec.name, bytes); });
    }
    tensors.finish();
  });
}

}  // namespace octet
