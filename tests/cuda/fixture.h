#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/philox.h"
#include "ops/device.h"

namespace octet::test {

// Making a device takes longer than most tests. Those that need none of their own share these two: deterministic, so that
// nothing is timed and no result depends on what ran before.
inline Device& shared_cuda_device() {
  static Device* device =
      make_cuda_device({.deterministic = true}).release();  // CUDA is gone when statics go
  return *device;
}
inline Device& shared_cpu_device() {
  static Device* device = make_cpu_device(4).release();
  return *device;
}

// compute-sanitizer takes hundreds of times the time.
inline bool under_sanitizer() {
  return std::getenv("OCTET_TEST_FEW_RULES") != nullptr;
}

// A device, and memory on it. Content goes in and comes out as bytes.
class Side {
 public:
  explicit Side(Device& device) : device_(&device) {
    workspace_ = {nullptr, DType::U8, {int64_t{256} << 20}};
    workspace_.data = memory(workspace_.bytes());
    use_workspace();
  }
  explicit Side(std::unique_ptr<Device> device) : Side(*device) { owned_ = std::move(device); }
  ~Side() {
    device_->synchronize();
    chunks_.clear();  // before the device
  }
  Side(const Side&) = delete;
  Side& operator=(const Side&) = delete;

  Device& operator*() { return *device_; }
  Device* operator->() { return device_; }
  // Ops use this side's workspace, whoever used the device before.
  void use_workspace() { device_->ops().set_workspace(workspace_); }
  const Tensor& workspace() const { return workspace_; }

  // Pieces of large allocations, which take long; under compute-sanitizer each is one of its own, so that an access behind
  // a tensor is seen.
  void* memory(int64_t bytes) {
    const int64_t least = under_sanitizer() ? 1 : int64_t{512} << 20;
    bytes = round_up(std::max<int64_t>(bytes, 1), 256);
    while (chunk_ < chunks_.size() && used_ + bytes > chunks_[chunk_].bytes) ++chunk_, used_ = 0;
    if (chunk_ == chunks_.size()) {
      const int64_t size = std::max(bytes, least);
      chunks_.push_back({device_->allocate(size), size});
    }
    places_.push_back({chunk_, used_});
    used_ += bytes;
    return static_cast<std::byte*>(chunks_[chunk_].memory.get()) + places_.back().begin;
  }
  // Gives back what was allocated since mark().
  size_t mark() const { return places_.size(); }
  void release(size_t count) {
    device_->synchronize();
    if (count == places_.size()) return;
    chunk_ = places_[count].chunk;
    used_ = places_[count].begin;
    places_.resize(count);
    if (under_sanitizer()) chunks_.resize(chunk_);
  }
  // With every byte 0xA5, so that what an op forgets to write is seen.
  Tensor tensor(DType dtype, Shape shape) {
    Tensor result{nullptr, dtype, shape};
    result.data = memory(result.bytes());
    fill(result, 0xA5);
    return result;
  }
  // Every byte of a tensor becomes `byte`.
  void fill(const Tensor& tensor, uint8_t byte) {
    constexpr int64_t kFirst = 1 << 20;
    const std::vector<uint8_t> bytes(static_cast<size_t>(std::min(tensor.bytes(), kFirst)), byte);
    const auto part = [&](int64_t begin, int64_t count) {
      return Tensor{static_cast<std::byte*>(tensor.data) + begin, DType::U8, {count}};
    };
    auto done = static_cast<int64_t>(bytes.size());
    if (done > 0) device_->copy_to_device(part(0, done), bytes.data());
    while (done < tensor.bytes()) {
      const int64_t more = std::min(done, tensor.bytes() - done);
      device_->copy(part(done, more), part(0, more));
      done += more;
    }
  }
  Tensor upload(DType dtype, Shape shape, const std::vector<float>& values) {
    Tensor result{nullptr, dtype, shape};
    result.data = memory(result.bytes());
    if (dtype == DType::F32) {
      device_->copy_to_device(result, values.data());
    } else {
      std::vector<Bf16> rounded(values.size());
      std::transform(values.begin(), values.end(), rounded.begin(), [](float x) { return to_bf16(x); });
      device_->copy_to_device(result, rounded.data());
    }
    return result;
  }
  template <class T>
  T* upload_struct(const T& value) {
    Tensor view{memory(sizeof(T)), DType::U8, {static_cast<int64_t>(sizeof(T))}};
    device_->copy_to_device(view, &value);
    return static_cast<T*>(view.data);
  }
  std::vector<uint8_t> bytes(const Tensor& x) {
    std::vector<uint8_t> result(x ? static_cast<size_t>(x.bytes()) : 0);
    if (!result.empty()) device_->copy_to_host(result.data(), x);
    return result;
  }
  template <class T>
  T value(const T* place) {
    T result;
    device_->copy_to_host(&result, {const_cast<T*>(place), DType::U8, {static_cast<int64_t>(sizeof(T))}});
    return result;
  }

 private:
  struct Chunk {
    std::shared_ptr<void> memory;
    int64_t bytes;
  };
  struct Place {
    size_t chunk;
    int64_t begin;
  };
  std::unique_ptr<Device> owned_;
  Device* device_;
  Tensor workspace_;
  std::vector<Chunk> chunks_;
  std::vector<Place> places_;  // of what is allocated
  size_t chunk_ = 0;           // the one in use, and how much of it is
  int64_t used_ = 0;
};

// The same tensor in FP8 on one side, with copies of both kinds.
inline Quantized make_quantized(Side& side, int64_t rows, int64_t cols, const QuantizeRule& rule,
                                const ScaleSlot& slot = {}, bool stats = false) {
  Quantized result(rule);
  result.slot = side.upload_struct(slot);
  if (stats) result.stats_memory = side.upload_struct(QuantStats{});
  const auto copy = [&](DType format, int64_t copy_rows, int64_t depth) {
    QuantizedMatrix matrix;
    matrix.granularity = rule.granularity;
    matrix.codes = side.tensor(format, {copy_rows, depth});
    if (rule.granularity != Granularity::Tensor) {
      const int64_t scale_rows =
          rule.granularity == Granularity::Block128 ? div_up(copy_rows, 128) : copy_rows;
      matrix.scales = side.tensor(rule.granularity == Granularity::Row32 ? DType::E8M0 : DType::F32,
                                  {scale_rows, div_up(depth, block_depth(rule.granularity))});
    }
    return matrix;
  };
  result.rowwise = copy(rule.format_rowwise, rows, cols);
  result.colwise = copy(rule.format_colwise, cols, rows);
  if (rule.granularity == Granularity::Tensor) {
    result.rowwise.tensor_scale = &result.slot->inverse_rowwise;
    result.colwise.tensor_scale = &result.slot->inverse_colwise;
  }
  return result;
}

inline std::vector<float> normal_values(int64_t count, uint64_t seed, float scale = 1.0f) {
  const Philox random(seed, 5);
  std::vector<float> result(static_cast<size_t>(count));
  for (size_t i = 0; i < result.size(); ++i) result[i] = scale * random.normal(i);
  return result;
}

inline std::string describe(const QuantizeRule& rule) {
  const char* names[] = {"Tensor", "Row128", "Block128", "Row32"};
  return fmt::format("{} {}/{} {}{}", names[static_cast<int>(rule.granularity)], name_of(rule.format_rowwise),
                     name_of(rule.format_colwise), rule.delayed ? "delayed" : "current",
                     rule.pow2_scales ? " pow2" : "");
}

// Codes, scales and slot bit for bit.
inline void expect_same(Side& a, const Quantized& x, Side& b, const Quantized& y, const std::string& what) {
  EXPECT_EQ(a.bytes(x.rowwise.codes), b.bytes(y.rowwise.codes)) << what << ": rowwise codes";
  EXPECT_EQ(a.bytes(x.colwise.codes), b.bytes(y.colwise.codes)) << what << ": colwise codes";
  EXPECT_EQ(a.bytes(x.rowwise.scales), b.bytes(y.rowwise.scales)) << what << ": rowwise scales";
  EXPECT_EQ(a.bytes(x.colwise.scales), b.bytes(y.colwise.scales)) << what << ": colwise scales";
  const ScaleSlot s = a.value(x.slot), t = b.value(y.slot);
  EXPECT_EQ(std::memcmp(&s, &t, sizeof s), 0)
      << what << ": slots: scale " << s.scale_rowwise << " and " << t.scale_rowwise << ", amax " << s.amax
      << " and " << t.amax << ", last " << s.amax_last << " and " << t.amax_last;
}

// Every rule there is, or, where OCTET_TEST_FEW_RULES is set for compute-sanitizer, a few with which all kernels run.
inline std::vector<QuantizeRule> all_rules() {
  if (under_sanitizer()) {
    return {{.delayed = true},
            {.format_rowwise = DType::E5M2, .format_colwise = DType::E5M2, .delayed = true},
            {.format_colwise = DType::E5M2, .delayed = true},
            {},
            {.granularity = Granularity::Row128, .pow2_scales = true},
            {.granularity = Granularity::Block128},
            {.granularity = Granularity::Row32}};
  }
  std::vector<QuantizeRule> rules;
  for (const auto& [row, col] : {std::pair{DType::E4M3, DType::E4M3}, std::pair{DType::E5M2, DType::E5M2},
                                 std::pair{DType::E4M3, DType::E5M2}}) {
    for (const Granularity granularity :
         {Granularity::Tensor, Granularity::Row128, Granularity::Block128, Granularity::Row32}) {
      QuantizeRule rule{.format_rowwise = row, .format_colwise = col, .granularity = granularity};
      rules.push_back(rule);
      if (granularity == Granularity::Tensor) rule.delayed = true;
      if (granularity == Granularity::Row128 || granularity == Granularity::Block128) rule.pow2_scales = true;
      if (rule.delayed || rule.pow2_scales) rules.push_back(rule);
    }
  }
  return rules;
}

constexpr ScaleSlot slot_with_scales(float rowwise, float colwise) {
  return {.scale_rowwise = rowwise,
          .scale_colwise = colwise,
          .amax = 0.5f,
          .amax_last = 9.0f,
          .inverse_rowwise = 1.0f / rowwise,
          .inverse_colwise = 1.0f / colwise};
}
inline constexpr ScaleSlot kUsedSlot = slot_with_scales(37.5f, 12.25f);
inline constexpr ScaleSlot kEqualSlot =
    slot_with_scales(37.5f, 37.5f);  // codes of one format are made only once

class CudaTest : public testing::Test {
 protected:
  void SetUp() override {
    const CudaProbe probe = probe_cuda();
    if (!probe.usable) GTEST_SKIP() << "no GPU: " << probe.reason;
    static Side* const shared[] = {new Side(shared_cuda_device()), new Side(shared_cpu_device())};
    for (Side* side : shared) {
      side->use_workspace();
      marks_.emplace_back(side, side->mark());
    }
    cuda = shared[0], cpu = shared[1];
  }
  void TearDown() override {
    for (const auto& [side, mark] : marks_) side->release(mark);
  }
  // Where the test's tensors are; what it allocates is given back after it.
  Side* cuda = nullptr;
  Side* cpu = nullptr;

  void release_after_test(Side& side) { marks_.emplace_back(&side, side.mark()); }

 private:
  std::vector<std::pair<Side*, size_t>> marks_;
};

}  // namespace octet::test
