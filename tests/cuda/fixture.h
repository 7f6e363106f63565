#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/philox.h"
#include "ops/device.h"

namespace octet::test {

// A backend, and memory on it for the length of a test. Content goes in and comes out as bytes.
class Side {
 public:
  explicit Side(std::unique_ptr<Device> device) : device_(std::move(device)) {
    Tensor workspace{nullptr, DType::U8, {int64_t{256} << 20}};
    workspace.data = memory(workspace.bytes());
    device_->ops().set_workspace(workspace);
  }
  Device& operator*() { return *device_; }
  Device* operator->() { return device_.get(); }

  void* memory(int64_t bytes) {
    memory_.push_back(device_->allocate(bytes));
    return memory_.back().get();
  }
  // Gives back what was allocated since mark().
  size_t mark() const { return memory_.size(); }
  void release(size_t count) {
    device_->synchronize();
    memory_.resize(count);
  }
  // With every byte 0xA5, so that what an op forgets to write is seen.
  Tensor tensor(DType dtype, Shape shape) {
    Tensor result{nullptr, dtype, shape};
    result.data = memory(result.bytes());
    const std::vector<uint8_t> poison(static_cast<size_t>(result.bytes()), 0xA5);
    device_->copy_to_device(result, poison.data());
    return result;
  }
  Tensor upload(DType dtype, Shape shape, const std::vector<float>& values) {
    Tensor result = tensor(dtype, shape);
    if (dtype == DType::F32) {
      device_->copy_to_device(result, values.data());
    } else {
      std::vector<Bf16> rounded;
      for (const float value : values) rounded.push_back(to_bf16(value));
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
  std::unique_ptr<Device> device_;
  std::vector<std::shared_ptr<void>> memory_;
};

// The same tensor in FP8 on one side, with copies of both kinds.
inline Quantized make_quantized(Side& side, int64_t rows, int64_t cols, const QuantizeRule& rule,
                                const ScaleSlot& slot = {}, bool stats = false) {
  Quantized result;
  result.rule = rule;
  result.slot = side.upload_struct(slot);
  if (stats) result.stats = side.upload_struct(QuantStats{});
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

// Every rule there is, or, where OCTET_TEST_FEW_RULES is set, a few with which all kernels run: under compute-sanitizer a
// test takes hundreds of times its time.
inline std::vector<QuantizeRule> all_rules() {
  if (std::getenv("OCTET_TEST_FEW_RULES")) {
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
    cuda = std::make_unique<Side>(make_cuda_device({.deterministic = true}));
    cpu = std::make_unique<Side>(make_cpu_device(1));
  }
  std::unique_ptr<Side> cuda, cpu;
};

}  // namespace octet::test
