#include "tensor/plan.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/names.h"

namespace octet {

std::string_view name_of(MemoryCategory category) {
  constexpr std::string_view kNames[] = {"weights",     "gradients",     "optimizer",
                                         "activations", "communication", "workspace"};
  return name_in(kNames, category);
}

Lifetime Lifetime::always() {
  return {std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()};
}

namespace {

int64_t padded_bytes(const PlannedBuffer& buffer) {
  const int64_t bytes = checked_mul(buffer.shape.numel(), static_cast<int64_t>(size_of(buffer.dtype)));
  return round_up(bytes, MemoryPlan::kAlignment);
}

}  // namespace

int MemoryPlan::add(std::string name, DType dtype, Shape shape, MemoryCategory category, Lifetime lifetime,
                    Place place) {
  require(!finished_, "[memory plan] '{}' was added after the plan was finished", name);
  require(place == Place::Device || lifetime.is_always(),
          "[memory plan] '{}' is in host memory with a limited lifetime, expected a permanent one: host "
          "buffers do not share memory",
          name);
  buffers_.push_back({std::move(name), dtype, shape, category, lifetime, place});
  return static_cast<int>(buffers_.size()) - 1;
}

void MemoryPlan::finish() {
  // Permanent buffers come one after another. The others are placed largest first, each at the lowest offset that no
  // earlier placed buffer uses at the same time.
  int64_t base = 0;
  std::vector<PlannedBuffer*> temporary;
  for (PlannedBuffer& buffer : buffers_) {
    if (buffer.place == Place::Host) {
      buffer.offset = host_peak_;
      host_peak_ = checked_add(host_peak_, padded_bytes(buffer));
    } else if (buffer.lifetime.is_always()) {
      buffer.offset = base;
      base = checked_add(base, padded_bytes(buffer));
    } else {
      temporary.push_back(&buffer);
    }
  }
  std::stable_sort(temporary.begin(), temporary.end(), [](const PlannedBuffer* a, const PlannedBuffer* b) {
    return padded_bytes(*a) > padded_bytes(*b);
  });

  peak_ = base;
  std::vector<const PlannedBuffer*> placed;  // by offset
  for (PlannedBuffer* buffer : temporary) {
    const int64_t size = padded_bytes(*buffer);
    int64_t offset = base;
    for (const PlannedBuffer* other : placed) {
      if (!other->lifetime.meets(buffer->lifetime)) continue;
      if (offset + size <= other->offset) break;
      offset = std::max(offset, other->offset + padded_bytes(*other));
    }
    buffer->offset = offset;
    peak_ = std::max(peak_, checked_add(offset, size));
    placed.insert(std::upper_bound(
                      placed.begin(), placed.end(), buffer,
                      [](const PlannedBuffer* a, const PlannedBuffer* b) { return a->offset < b->offset; }),
                  buffer);
  }
  finished_ = true;
}

int64_t MemoryPlan::bytes(MemoryCategory category) const {
  int64_t total = 0;
  for (const PlannedBuffer& buffer : buffers_) {
    if (buffer.category == category) total = checked_add(total, padded_bytes(buffer));
  }
  return total;
}

std::array<int64_t, kMemoryCategories.size()> MemoryPlan::bytes_in_arena() const {
  std::array<int64_t, kMemoryCategories.size()> result{};
  std::vector<std::pair<int64_t, int64_t>> covered;  // disjoint [begin, end), sorted
  int64_t total = 0;
  for (size_t i = 0; i < kMemoryCategories.size(); ++i) {
    for (const PlannedBuffer& buffer : buffers_) {
      if (buffer.place == Place::Device && buffer.category == kMemoryCategories[i] &&
          padded_bytes(buffer) > 0) {
        covered.emplace_back(buffer.offset, buffer.offset + padded_bytes(buffer));
      }
    }
    std::sort(covered.begin(), covered.end());
    std::vector<std::pair<int64_t, int64_t>> merged;
    for (const auto& range : covered) {
      if (!merged.empty() && range.first <= merged.back().second) {
        merged.back().second = std::max(merged.back().second, range.second);
      } else {
        merged.push_back(range);
      }
    }
    covered = std::move(merged);
    const int64_t now =
        std::accumulate(covered.begin(), covered.end(), int64_t{0},
                        [](int64_t sum, const auto& range) { return sum + range.second - range.first; });
    result[i] = now - total;
    total = now;
  }
  result.back() += peak_ - total;  // unused gaps
  return result;
}

void BufferPlanner::add(Tensor& view, std::string name, DType dtype, Shape shape, MemoryCategory category,
                        Lifetime lifetime, Place place) {
  view = {nullptr, dtype, shape};
  added_.push_back({&view, plan_.add(std::move(name), dtype, shape, category, lifetime, place)});
}

void BufferPlanner::alias(Tensor& view, const Tensor& base, DType dtype, Shape shape, int64_t offset) {
  view = {nullptr, dtype, shape};
  require(offset >= 0 && view.bytes() <= base.bytes() - offset,
          "[memory plan] a view of {} bytes at {} does not fit its buffer of {}", view.bytes(), offset,
          base.bytes());
  aliases_.push_back({&view, &base, offset});
}

const MemoryPlan& BufferPlanner::finish() {
  plan_.finish();
  return plan_;
}

void BufferPlanner::bind(void* memory, void* host_memory) {
  for (const Added& added : added_) {
    const PlannedBuffer& buffer = plan_.buffers()[static_cast<size_t>(added.buffer)];
    void* arena = buffer.place == Place::Host ? host_memory : memory;
    added.view->data = static_cast<std::byte*>(arena) + buffer.offset;
  }
  for (const Alias& alias : aliases_)
    alias.view->data = static_cast<std::byte*>(alias.base->data) + alias.offset;
}

}  // namespace octet
