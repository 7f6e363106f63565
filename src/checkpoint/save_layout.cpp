#include "checkpoint/save_layout.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "checkpoint/checkpoint.h"
#include "hf/hf_folder.h"

namespace octet {

Tensor SavedTensor::whole() const {
  if (!is_spread()) return share;
  const int64_t rows = parameter->spec.shape[0];
  return {nullptr, share.dtype, share.shape.rank() == 1 ? Shape{rows} : Shape{rows, share.shape[1]}};
}

std::vector<int> deal_by_bytes(std::span<const int64_t> bytes, int64_t writers) {
  std::vector<size_t> order(bytes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return bytes[a] > bytes[b]; });
  std::vector<int64_t> load(static_cast<size_t>(writers), 0);
  std::vector<int> writer_of(bytes.size());
  for (const size_t i : order) {
    const auto least = std::min_element(load.begin(), load.end());
    *least += std::max<int64_t>(bytes[i], 1);
    writer_of[i] = static_cast<int>(least - load.begin());
  }
  return writer_of;
}

SaveLayout::SaveLayout(const ParameterSet& parameters, const Sharding& sharding)
    : sharding_(sharding),
      adapters_(octet::has_adapters(parameters)),
      writers_(std::min(sharding.ranks, kMostWriters)) {
  for (const Parameter& p : parameters.all()) {
    if (adapters_ && !p.spec.is_adapter()) continue;
    for (const auto& [name, tensor] : p.state()) {
      SavedTensor saved{.parameter = &p, .name = name, .share = tensor};
      if (tensor.data != p.own_rows.data) {
        saved.kind = adapters_ && tensor.data == p.remainder.data ? SavedTensor::Kind::LowHalf
                                                                  : SavedTensor::Kind::Optimizer;
      }
      tensors_.push_back(std::move(saved));
    }
  }
  if (sharding_.ranks == 1) return;
  const auto deal = [&](SavedTensor::Kind kind) {
    std::vector<SavedTensor*> chosen;
    std::vector<int64_t> bytes;
    for (SavedTensor& tensor : tensors_) {
      if (tensor.kind != kind) continue;
      chosen.push_back(&tensor);
      bytes.push_back(tensor.bytes());
    }
    const std::vector<int> dealt = deal_by_bytes(bytes, writers_);
    for (size_t i = 0; i < chosen.size(); ++i) chosen[i]->file = dealt[i];
    return std::min<int64_t>(writers_, std::ssize(chosen));
  };
  if (!adapters_) weight_files_ = deal(SavedTensor::Kind::Weight);
  optimizer_files_ = std::max<int64_t>(deal(SavedTensor::Kind::Optimizer), 1);
}

int64_t SaveLayout::my_bytes() const {
  int64_t total = 0;
  for (const SavedTensor& tensor : tensors_) total += is_mine(tensor) ? tensor.bytes() : 0;
  return total;
}

std::string SaveLayout::file_name(std::string_view stem, int64_t file, int64_t files) const {
  const bool numbered = sharding_.ranks > 1 && stem != kAdapterStem;
  return numbered ? numbered_file(stem, file, files) : single_file(stem);
}

std::string SaveLayout::my_file(std::string_view stem, int64_t files) const {
  for (int64_t file = 0; file < files; ++file) {
    if (rank_of(file) == sharding_.rank) return file_name(stem, file, files);
  }
  return {};
}

std::string SaveLayout::weights_index() const {
  if (sharding_.ranks == 1 || adapters_) return {};
  nlohmann::ordered_json map = nlohmann::ordered_json::object();
  int64_t total = 0;
  for (const SavedTensor& tensor : tensors_) {
    if (tensor.kind != SavedTensor::Kind::Weight) continue;
    for (const HfTensor& hf : hf_tensors({&tensor.parameter->spec, 1})) {
      total += hf.as(safe_dtype(tensor.share.dtype)).byte_size();
      map[hf.part->name] = file_name(weights_name(), tensor.file, weight_files_);
    }
  }
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", total}}}, {"weight_map", map}};
  return index.dump(2) + "\n";
}

}  // namespace octet
