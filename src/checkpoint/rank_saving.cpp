#include "checkpoint/rank_saving.h"

#include <algorithm>

#include "io/checkpoint_manifest.h"

namespace octet {
namespace {

Tensor bytes_at(const void* data, int64_t offset, int64_t rows, int64_t row_bytes) {
  return {static_cast<std::byte*>(const_cast<void*>(data)) + offset, DType::U8, {rows, row_bytes}};
}

}  // namespace

int64_t PartGatherer::piece_rows(const SavedTensor& tensor, const Sharding& sharding) const {
  const int64_t fitting = most_bytes_ / (sharding.ranks * tensor.row_bytes());
  return std::clamp<int64_t>(fitting, 1, tensor.parameter->storage.cut.part_rows);
}

int64_t PartGatherer::buffer_bytes(const SaveLayout& layout) const {
  int64_t bytes = 0;
  const Sharding& sharding = layout.sharding();
  for (const SavedTensor& tensor : layout.tensors()) {
    if (tensor.is_spread())
      bytes = std::max(bytes, sharding.ranks * piece_rows(tensor, sharding) * tensor.row_bytes());
  }
  return bytes;
}

void PartGatherer::reserve(Device& device, const SaveLayout& layout) {
  device_ = &device;
  const int64_t needed = buffer_bytes(layout);
  if (needed <= bytes_) return;
  memory_.reset();
  memory_ = device.allocate(needed);
  bytes_ = needed;
}

void PartGatherer::gather(const SavedTensor& tensor, std::byte* to, const RankSaving& ranks) {
  const Sharding& sharding = ranks.sharding;
  const int64_t part_rows = tensor.parameter->storage.cut.part_rows;
  const int64_t row_bytes = tensor.row_bytes(), step = piece_rows(tensor, sharding);
  const std::string what = "checkpoint of " + tensor.name;
  for (int64_t begin = 0; begin < part_rows; begin += step) {
    const int64_t rows = std::min(step, part_rows - begin);
    const Tensor parts = bytes_at(memory_.get(), 0, sharding.ranks * rows, row_bytes);
    const Tensor mine = parts.row_range(sharding.rank * rows, rows);
    // The last parts may have fewer rows than the others, or none.
    const int64_t real = std::clamp<int64_t>(tensor.share.shape[0] - begin, 0, rows);
    if (real > 0)
      device_->copy(mine.row_range(0, real), bytes_at(tensor.share.data, begin * row_bytes, real, row_bytes));
    ranks.gather(parts, mine, what);
    if (!to) continue;
    for (int64_t rank = 0; rank < sharding.ranks; ++rank) {
      Sharding from = sharding;
      from.rank = rank;
      const int64_t first = from.part() * part_rows + begin;
      const int64_t count = std::clamp<int64_t>(tensor.parameter->spec.shape[0] - first, 0, rows);
      if (count > 0) device_->copy_to_host(to + first * row_bytes, parts.row_range(rank * rows, count));
    }
  }
}

void agree(HostChannel* host, const std::string& tag, const std::function<void()>& work) {
  if (!host) {
    work();
    return;
  }
  std::string failure;
  std::exception_ptr mine;
  try {
    work();
  } catch (const std::exception& error) {
    failure = fmt::format("rank {}: {}", host->rank(), error.what());
    mine = std::current_exception();
  }
  const std::vector<std::string> failures = host->all_gather(tag, failure);
  if (mine) std::rethrow_exception(mine);
  for (const std::string& text : failures) require(text.empty(), "{}", text);
}

std::string check_files_together(Env& env, const Checkpoint& checkpoint, HostChannel& host) {
  Checkpoint mine = checkpoint;
  mine.files.clear();
  for (size_t i = static_cast<size_t>(host.rank()); i < checkpoint.files.size();
       i += static_cast<size_t>(host.size()))
    mine.files.push_back(checkpoint.files[i]);
  // Ranks that look at different folders must not take each other's result for theirs.
  const std::string about = fmt::format("step {} saved at {}: ", checkpoint.step, checkpoint.saved_at);
  const auto results = host.all_gather("checksums of a checkpoint", about + check_files(env, mine, true),
                                       std::chrono::hours(1), {});
  std::string broken;
  for (size_t rank = 0; rank < results.size(); ++rank) {
    if (!results[rank].starts_with(about)) {
      throw RankError(fmt::format("[{}] rank {} is at {}, rank {} at {}, expected the same checkpoint",
                                  checkpoint.path, host.rank(), about, rank, results[rank]));
    }
    if (broken.empty()) broken = results[rank].substr(about.size());
  }
  return broken;
}

}  // namespace octet
