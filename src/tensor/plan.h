#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/place.h"
#include "tensor/tensor.h"

namespace octet {

enum class MemoryCategory { Weights, Gradients, Optimizer, Activations, Communication, Workspace };
inline constexpr std::array kMemoryCategories = {MemoryCategory::Weights,       MemoryCategory::Gradients,
                                                 MemoryCategory::Optimizer,     MemoryCategory::Activations,
                                                 MemoryCategory::Communication, MemoryCategory::Workspace};
std::string_view name_of(MemoryCategory category);

// The moments of a step at which a buffer's content is needed, both ends included. Buffers whose lifetimes do not
// overlap may share memory.
struct Lifetime {
  int64_t first = 0;
  int64_t last = 0;
  static Lifetime always();
  bool is_always() const { return first == always().first && last == always().last; }
  bool meets(Lifetime other) const { return first <= other.last && other.first <= last; }
};

struct PlannedBuffer {
  std::string name;
  DType dtype;
  Shape shape;
  MemoryCategory category;
  Lifetime lifetime;
  Place place = Place::Device;
  int64_t offset = -1;  // in the arena of its place, set by MemoryPlan::finish
};

// Which buffers a run needs and where each lies in one allocation per place. Built from tables before anything is
// allocated. So the number shown to the user, the number checked against the device's memory and the number allocated
// are the same.
class MemoryPlan {
 public:
  static constexpr int64_t kAlignment = 256;

  // Returns the buffer's index, with which the arena finds its view.
  int add(std::string name, DType dtype, Shape shape, MemoryCategory category, Lifetime lifetime,
          Place place = Place::Device);
  // Places every buffer; no more may be added.
  void finish();

  int64_t peak_bytes() const { return peak_; }  // of the device
  int64_t host_bytes() const { return host_peak_; }
  // Bytes that the buffers of a category would need without sharing.
  int64_t bytes(MemoryCategory category) const;
  // The memory of a category in the arena. Memory that categories share counts for the first of them, in the order of
  // kMemoryCategories, so that the sum over categories is peak_bytes().
  std::array<int64_t, kMemoryCategories.size()> bytes_in_arena() const;
  const std::vector<PlannedBuffer>& buffers() const { return buffers_; }

 private:
  std::vector<PlannedBuffer> buffers_;
  int64_t peak_ = 0, host_peak_ = 0;
  bool finished_ = false;
};

// Fills a memory plan with the buffers of objects whose members are views, and later points the views at memory. The
// views must not move until bind(). Before bind() they have dtype and shape but no data, which is enough for
// planning.
class BufferPlanner {
 public:
  void add(Tensor& view, std::string name, DType dtype, Shape shape, MemoryCategory category,
           Lifetime lifetime, Place place = Place::Device);
  // `view` begins `offset` bytes after the beginning of `base`, which must be large enough and already added.
  void alias(Tensor& view, const Tensor& base, DType dtype, Shape shape, int64_t offset = 0);

  const MemoryPlan& finish();
  // Points every view into the plan.peak_bytes() bytes at `memory`, or the plan.host_bytes() at `host_memory`.
  void bind(void* memory, void* host_memory = nullptr);
  const MemoryPlan& plan() const { return plan_; }

 private:
  struct Added {
    Tensor* view;
    int buffer;
  };
  struct Alias {
    Tensor* view;
    const Tensor* base;
    int64_t offset;
  };
  MemoryPlan plan_;
  std::vector<Added> added_;
  std::vector<Alias> aliases_;
};

}  // namespace octet
