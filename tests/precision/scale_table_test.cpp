// The state of scaling over the steps of a run: what a recipe does with hostile tensors and outliers, what
// margin and interval change, and that a restored table goes on bit for bit.

#include "precision/scale_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/philox.h"
#include "model/linear.h"

namespace octet::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

// One tensor (rows, cols) going through the recipe, step after step, as a Linear sends its operands.
class Tracked {
 public:
  static constexpr int64_t kRows = 128, kCols = 256;

  explicit Tracked(Fp8Config config, Role role = Role::Input)
      : device_(make_cpu_device(1)), table_(std::move(config)) {
    const QuantizeRule rule = quantize_rule(table_.config(), role);
    tensor_ = Quantized(rule);
    index_ = table_.add("layers.0.mlp.up.input", tensor_);
    table_.plan(planner_);
    const auto plan_copy = [&](QuantizedMatrix& copy, DType format, int64_t rows, int64_t depth) {
      copy.granularity = rule.granularity;
      planner_.add(copy.codes, "codes", format, {rows, depth}, MemoryCategory::Workspace, Lifetime::always());
      const Shape scales = scales_shape(rule.granularity, rows, depth);
      if (scales.rank() == 0) return;
      planner_.add(copy.scales, "scales", scales_dtype(rule.granularity), scales, MemoryCategory::Workspace,
                   Lifetime::always());
    };
    plan_copy(tensor_.rowwise, rule.format_rowwise, kRows, kCols);
    plan_copy(tensor_.colwise, rule.format_colwise, kCols, kRows);
    planner_.add(workspace_, "workspace", DType::U8, {1 << 16}, MemoryCategory::Workspace,
                 Lifetime::always());
    planner_.finish();
    memory_ = device_->allocate(planner_.plan().peak_bytes());
    planner_.bind(memory_.get());
    device_->ops().set_workspace(workspace_);
    table_.initialise(*device_);
  }

  // One optimizer step in which the tensor has these values.
  void step(const std::vector<float>& values) {
    quantize(values);
    table_.end_step(*device_, ++steps_);
  }

  void quantize(const std::vector<float>& values) {
    table_.begin_pass(true);
    table_.clear_stats(*device_);
    values_ = values;
    device_->ops().quantize({.dense = {values_.data(), DType::F32, {kRows, kCols}}, .fp8 = &tensor_});
    table_.end_calibration();
  }

  std::vector<float> dequantised() const {
    std::vector<float> result;
    const QuantizedMatrix& copy = tensor_.rowwise;
    for (int64_t r = 0; r < kRows; ++r) {
      for (int64_t c = 0; c < kCols; ++c) {
        float factor = slot().inverse_rowwise;
        if (copy.granularity == Granularity::Row128)
          factor = copy.scales.as<float>()[r * (kCols / 128) + c / 128];
        if (copy.granularity == Granularity::Row32) {
          factor = std::ldexp(1.0f, copy.scales.as<uint8_t>()[r * (kCols / 32) + c / 32] - 127);
        }
        result.push_back(from_fp8(copy.codes.as<uint8_t>()[r * kCols + c], copy.codes.dtype) * factor);
      }
    }
    return result;
  }

  void restore_from(const Tracked& other) {
    table_.restore(*device_, other.table_.save(*other.device_));
    steps_ = other.steps_;
  }

  const ScaleSlot& slot() const { return *table_.slot(index_); }
  ScaleTable::Report report() const { return table_.reports(*device_).at(0); }
  std::vector<std::byte> state() const { return table_.save(*device_); }
  std::vector<uint8_t> codes() const {
    const auto view = tensor_.rowwise.codes.span<uint8_t>();
    return {view.begin(), view.end()};
  }
  ScaleTable& table() { return table_; }
  Device& device() const { return *device_; }

 private:
  std::unique_ptr<Device> device_;
  ScaleTable table_;
  BufferPlanner planner_;
  std::shared_ptr<void> memory_;
  Tensor workspace_;
  Quantized tensor_;
  std::vector<float> values_;
  int index_ = 0;
  int64_t steps_ = 0;
};

// Values in [-amax, amax]; the first is amax itself.
std::vector<float> noise(float amax, uint64_t seed = 1) {
  std::vector<float> values(Tracked::kRows * Tracked::kCols);
  const Philox random(seed, 0);
  for (size_t i = 0; i < values.size(); ++i) {
    const auto u = static_cast<float>(random.below(i, 2000001)) / 1e6f - 1.0f;
    values[i] = amax * u;
  }
  values[0] = amax;
  return values;
}

std::vector<float> with_value(std::vector<float> values, float value) {
  values[values.size() / 2] = value;
  return values;
}

void expect_sound(const ScaleSlot& slot) {
  for (const float x : {slot.scale_rowwise, slot.scale_colwise, slot.inverse_rowwise, slot.inverse_colwise}) {
    EXPECT_TRUE(std::isnormal(x) && x > 0) << x;
  }
  EXPECT_EQ(slot.inverse_rowwise, 1.0f / slot.scale_rowwise);
  EXPECT_EQ(slot.inverse_colwise, 1.0f / slot.scale_colwise);
}

Fp8Config config_of(Fp8Recipe recipe, int64_t history = 16, bool most_recent = false) {
  Fp8Config config;
  config.recipe = recipe;
  config.history_length = history;
  config.most_recent = most_recent;
  return config;
}

// ---- fault 19: amax of 0, Inf, NaN, denormal ----

TEST(HostileAmax, PerTensorScalesKeepThePreviousOne) {
  for (const Fp8Recipe recipe : {Fp8Recipe::Delayed, Fp8Recipe::Current}) {
    for (const Role role : {Role::Input, Role::Gradient}) {
      SCOPED_TRACE(fmt::format("recipe {} role {}", static_cast<int>(recipe), name_of(role)));
      Tracked tensor(config_of(recipe), role);
      tensor.step(noise(3.5f));
      const float scale = tensor.slot().scale_rowwise;
      EXPECT_EQ(scale, fp8_max(role == Role::Gradient ? DType::E5M2 : DType::E4M3) / 3.5f);
      const std::vector<float> bad[] = {std::vector<float>(noise(0).size(), 0.0f), with_value(noise(2), kInf),
                                        with_value(noise(2), -kInf), with_value(noise(2), kNaN),
                                        std::vector<float>(noise(0).size(), kNaN)};
      for (const std::vector<float>& values : bad) {
        tensor.step(values);
        expect_sound(tensor.slot());
        EXPECT_EQ(tensor.slot().scale_rowwise, scale);
        EXPECT_EQ(tensor.slot().scale_colwise, scale);
      }
    }
  }
}

TEST(HostileAmax, InTheVeryFirstTensorKeepsTheInitialScale) {
  for (const Fp8Recipe recipe : {Fp8Recipe::Delayed, Fp8Recipe::Current}) {
    for (const float value : {0.0f, kInf, kNaN}) {
      Tracked tensor(config_of(recipe));
      tensor.step(std::vector<float>(noise(0).size(), value));
      expect_sound(tensor.slot());
      EXPECT_EQ(tensor.slot().scale_rowwise, 1.0f);
      tensor.step(noise(7.0f));
      tensor.step(noise(7.0f));
      EXPECT_EQ(tensor.slot().scale_rowwise, 64.0f);
    }
  }
}

TEST(HostileAmax, DenormalAndHugeTensorsHaveNormalScales) {
  for (const Fp8Recipe recipe : {Fp8Recipe::Delayed, Fp8Recipe::Current}) {
    for (const float amax : {1e-45f, 1e-40f, 1.17549e-38f, 1e-36f, 3.4e38f}) {
      for (const Role role : {Role::Input, Role::Gradient}) {
        Tracked tensor(config_of(recipe), role);
        tensor.step(noise(amax));
        expect_sound(tensor.slot());
        EXPECT_EQ(tensor.report().saturated_share, 0.0);
        for (const float value : tensor.dequantised()) ASSERT_TRUE(std::isfinite(value)) << amax;
      }
    }
  }
}

TEST(HostileAmax, AHostileStepIsForgottenNotEntered) {
  // The maximum before it still rules for its whole time in the history, no more and no less.
  Tracked tensor(config_of(Fp8Recipe::Delayed, 2));
  tensor.step(noise(56.0f));
  tensor.step(with_value(noise(1), kNaN));
  tensor.step(with_value(noise(1), kInf));
  EXPECT_EQ(tensor.slot().scale_rowwise, 8.0f);
  tensor.step(noise(1.0f));
  EXPECT_EQ(tensor.slot().scale_rowwise, 8.0f);  // history: 1, 56
  tensor.step(noise(1.0f));
  EXPECT_EQ(tensor.slot().scale_rowwise, 448.0f);  // history: 1, 1
}

TEST(HostileAmax, BlocksKeepTheirNeighboursExact) {
  for (const Fp8Recipe recipe : {Fp8Recipe::Block, Fp8Recipe::Mxfp8}) {
    Tracked clean(config_of(recipe)), dirty(config_of(recipe));
    for (const float value : {kInf, kNaN, 0.0f, 1e-42f}) {
      const std::vector<float> values = noise(2.0f);
      std::vector<float> bad = values;
      std::fill_n(bad.begin() + Tracked::kCols, 128, value);  // row 1, its first block of 128
      clean.step(values);
      dirty.step(bad);
      const std::vector<float> a = clean.dequantised(), b = dirty.dequantised();
      for (size_t i = 0; i < a.size(); ++i) {
        if (i >= Tracked::kCols && i < Tracked::kCols + 128) {
          EXPECT_EQ(std::isnan(b[i]), std::isnan(value));  // a NaN stays a NaN, an Inf saturates
        } else {
          ASSERT_EQ(a[i], b[i]) << i;
        }
      }
    }
  }
}

// ---- fault 20: one activation x1024 for one step ----

constexpr float kQuiet = 1.75f;  // scale 256 in e4m3

// Steps after the outlier's until the scale is the quiet one again, when the tensor is next quantised.
int steps_to_recover(Tracked& tensor, int most) {
  const std::vector<float> values = noise(kQuiet);
  for (int i = 1; i <= most; ++i) {
    tensor.step(values);
    if (tensor.slot().scale_rowwise == 256.0f) return i;
    EXPECT_EQ(tensor.slot().scale_rowwise, 0.25f) << i;
    EXPECT_EQ(tensor.report().saturated_share, 0.0) << i;
  }
  return -1;
}

TEST(Outlier, DelayedSaturatesCountsAndRecoversWhenTheHistoryForgets) {
  for (const int64_t length : {1, 4, 16, 1024}) {
    Tracked tensor(config_of(Fp8Recipe::Delayed, length));
    for (int i = 0; i < 3; ++i) tensor.step(noise(kQuiet));
    ASSERT_EQ(tensor.slot().scale_rowwise, 256.0f);

    const std::vector<float> values = with_value(noise(kQuiet), 1024 * kQuiet);
    tensor.quantize(values);
    EXPECT_EQ(tensor.report().saturated_share, 1.0 / static_cast<double>(values.size()));
    EXPECT_EQ(tensor.report().amax, 1024.0 * 1.75);
    const std::vector<float> back = tensor.dequantised();
    for (size_t i = 0; i < back.size(); ++i) {
      if (i == values.size() / 2) {
        EXPECT_EQ(back[i], kQuiet);  // the largest value of the scale, not NaN
      } else {
        ASSERT_NEAR(back[i], values[i], std::fabs(values[i]) / 16 + 0x1p-10f / 256) << i;
      }
    }
    tensor.table().end_step(tensor.device(), 4);
    EXPECT_EQ(tensor.slot().scale_rowwise, 0.25f);
    EXPECT_EQ(steps_to_recover(tensor, 2000), length);
  }
}

TEST(Outlier, MostRecentRecoversAfterOneStepWhateverTheHistory) {
  for (const int64_t length : {1, 16}) {
    Tracked tensor(config_of(Fp8Recipe::Delayed, length, true));
    tensor.step(noise(kQuiet));
    tensor.step(with_value(noise(kQuiet), -1024 * kQuiet));
    EXPECT_GT(tensor.report().saturated_share, 0.0);
    EXPECT_EQ(tensor.slot().scale_rowwise, 0.25f);
    EXPECT_EQ(steps_to_recover(tensor, 5), 1);
  }
}

TEST(Outlier, CurrentNeverSaturatesAndRecoversAtOnce) {
  Tracked tensor(config_of(Fp8Recipe::Current));
  tensor.step(noise(kQuiet));
  tensor.step(with_value(noise(kQuiet), 1024 * kQuiet));
  EXPECT_EQ(tensor.slot().scale_rowwise, 0.25f);
  EXPECT_EQ(tensor.report().saturated_share, 0.0);
  EXPECT_GT(tensor.report().flushed_share, 0.0);  // what one scale for all costs instead
  tensor.step(noise(kQuiet));
  EXPECT_EQ(tensor.slot().scale_rowwise, 256.0f);
}

TEST(Outlier, BlocksLoseOnlyTheirOwnAndRecoverAtOnce) {
  for (const Fp8Recipe recipe : {Fp8Recipe::Block, Fp8Recipe::Mxfp8}) {
    const int64_t block = recipe == Fp8Recipe::Block ? 128 : 32;
    Tracked tensor(config_of(recipe));
    tensor.step(noise(kQuiet));
    const std::vector<float> before = tensor.dequantised();
    tensor.step(with_value(noise(kQuiet), 1024 * kQuiet));
    EXPECT_EQ(tensor.report().saturated_share, 0.0);
    const std::vector<float> during = tensor.dequantised();
    const auto place = static_cast<int64_t>(during.size() / 2);
    EXPECT_EQ(during[static_cast<size_t>(place)], 1024 * kQuiet);
    for (int64_t i = 0; i < std::ssize(during); ++i) {
      if (i / block == place / block) continue;
      ASSERT_EQ(during[static_cast<size_t>(i)], before[static_cast<size_t>(i)]) << i;
    }
    tensor.step(noise(kQuiet));
    EXPECT_EQ(tensor.dequantised(), before);
  }
}

// ---- margin and interval ----

TEST(Margin, HalvesTheScaleForEachUnit) {
  for (const Fp8Recipe recipe : {Fp8Recipe::Delayed, Fp8Recipe::Current}) {
    for (int margin = 0; margin <= Fp8Config::kMaxMargin; ++margin) {
      Fp8Config config = config_of(recipe);
      config.margin = margin;
      Tracked input(config), gradient(config, Role::Gradient);
      input.step(noise(1.75f));
      gradient.step(noise(1.75f));
      EXPECT_EQ(input.slot().scale_rowwise, std::ldexp(256.0f, -margin));
      EXPECT_EQ(gradient.slot().scale_colwise, std::ldexp(32768.0f, -margin));
    }
  }
}

TEST(Margin, LeavesRoomForValuesThatGrow) {
  // 2^margin times the largest value seen is still exact; one step beyond saturates.
  for (const int margin : {0, 1, 3}) {
    Fp8Config config = config_of(Fp8Recipe::Delayed);
    config.margin = margin;
    Tracked tensor(config);
    tensor.step(noise(1.75f));
    tensor.quantize(noise(std::ldexp(1.75f, margin)));
    EXPECT_EQ(tensor.report().saturated_share, 0.0) << margin;
    EXPECT_EQ(tensor.dequantised()[0], std::ldexp(1.75f, margin));
    tensor.quantize(noise(std::ldexp(2.0f, margin)));
    EXPECT_GT(tensor.report().saturated_share, 0.0) << margin;
  }
}

TEST(Interval, UpdatesOnlyWhenItIsDueFromAllThatWasSeen) {
  Fp8Config config = config_of(Fp8Recipe::Delayed, 2);
  config.interval = 3;
  Tracked tensor(config);
  const float expected[] = {
      448,                   // calibrated by the first tensor itself
      448, 56,               // step 3: the largest of steps 1 to 3 is 8
      56,  56,  56,          // step 6: 2 enters, but 8 is still in the history
      56,  56,  448.0f / 4,  // step 9: 4 pushes 8 out
      112, 112, 112,         // step 12: the history is 1, 4
  };
  const float amaxes[] = {1, 8, 2, 2, 1, 2, 4, 1, 1, 1, 1, 1};
  for (size_t i = 0; i < std::size(expected); ++i) {
    tensor.step(noise(amaxes[i]));
    EXPECT_EQ(tensor.slot().scale_rowwise, expected[i]) << "step " << i + 1;
  }
}

// ---- save and restore ----

TEST(SaveRestore, ContinuesBitForBit) {
  for (const Fp8Recipe recipe :
       {Fp8Recipe::Delayed, Fp8Recipe::Current, Fp8Recipe::Block, Fp8Recipe::Mxfp8}) {
    Fp8Config config = config_of(recipe, 5);
    config.interval = 2;
    for (int saved_after = 0; saved_after < 7; ++saved_after) {
      Tracked first(config), second(config);
      uint64_t seed = 0;
      const auto values = [&] {
        ++seed;
        return noise(static_cast<float>(1 + seed * 7 % 5), seed);
      };
      for (int i = 0; i < saved_after; ++i) first.step(values());
      second.step(noise(999.0f));  // to be overwritten
      second.restore_from(first);
      EXPECT_EQ(second.state(), first.state());
      EXPECT_EQ(second.table().calibrating(), first.table().calibrating());
      for (int i = 0; i < 8; ++i) {
        const std::vector<float> next = values();
        first.step(next);
        second.step(next);
        ASSERT_EQ(std::memcmp(&first.slot(), &second.slot(), sizeof(ScaleSlot)), 0)
            << saved_after << " " << i;
        ASSERT_EQ(first.codes(), second.codes());
      }
      EXPECT_EQ(second.state(), first.state());
    }
  }
}

// A table of the given tensors in memory of its own.
struct Table {
  Table(const Fp8Config& config, const std::vector<std::string>& names)
      : Table(config, inputs(config, names)) {}
  Table(const Fp8Config& config, const std::vector<std::pair<std::string, QuantizeRule>>& tensors)
      : table(config) {
    for (const auto& [name, rule] : tensors) table.add(name, rule);
    table.plan(planner);
    planner.finish();
    memory = device->allocate(std::max<int64_t>(planner.plan().peak_bytes(), 1));
    planner.bind(memory.get());
    table.initialise(*device);
  }
  static std::vector<std::pair<std::string, QuantizeRule>> inputs(const Fp8Config& config,
                                                                  const std::vector<std::string>& names) {
    std::vector<std::pair<std::string, QuantizeRule>> tensors;
    for (const std::string& name : names) tensors.emplace_back(name, quantize_rule(config, Role::Input));
    return tensors;
  }
  void restore(const std::vector<std::byte>& state) { table.restore(*device, state); }
  std::vector<std::byte> save() { return table.save(*device); }

  std::unique_ptr<Device> device = make_cpu_device(1);
  BufferPlanner planner;
  ScaleTable table;
  std::shared_ptr<void> memory;
};

TEST(SaveRestore, RefusesWhatIsNotItsOwnAndChangesNothing) {
  const Fp8Config config = config_of(Fp8Recipe::Delayed, 4);
  const std::vector<std::string> names = {"layers.0.mlp.up.input", "layers.0.mlp.down.input"};
  Table source(config, names);
  for (int i = 0; i < 2; ++i) source.table.slot(i)->amax = 3.0f;
  source.table.end_step(*source.device, 1);
  const std::vector<std::byte> good = source.save();

  const auto refused = [](Table& table, const std::vector<std::byte>& state, const std::string& message) {
    const std::vector<std::byte> before = table.save();
    try {
      table.restore(state);
      ADD_FAILURE() << "accepted, expected: " << message;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(message));
    }
    EXPECT_EQ(table.save(), before);
  };

  Table same(config, names);
  refused(same, {}, "0 bytes, expected more at offset 0");
  std::vector<std::byte> bad = good;
  bad[0] = std::byte{'X'};
  refused(same, bad, "does not begin with 'OCTFP802'");
  for (size_t size = 8; size < good.size(); ++size) {
    refused(same, {good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size)}, "[fp8 state]");
  }
  refused(same, {good.begin(), good.end() - 1}, fmt::format("{} bytes, expected more", good.size() - 1));
  bad = good;
  bad.push_back(std::byte{0});
  refused(same, bad, "which is more than its header says");

  Table current(config_of(Fp8Recipe::Current), names);
  refused(current, good, "has fp8_recipe delayed, this run has current");
  Fp8Config other_format = config;
  other_format.format = Fp8Format::E5M2;
  Table e5m2(other_format, names);
  refused(e5m2, good, "has fp8_format hybrid, this run has e5m2");
  Fp8Config other_margin = config;
  other_margin.margin = 2;
  Table margin(other_margin, names);
  refused(margin, good, "has fp8_margin 0, this run has 2");
  Table fewer(config, {names[0]});
  refused(fewer, good, "has 2 tensors, this model has 1");
  Table renamed(config, {names[0], "layers.0.mlp.down.inputs"});
  refused(renamed, good, "tensor 'layers.0.mlp.down.input' where this model has 'layers.0.mlp.down.inputs'");
  Table longer(config_of(Fp8Recipe::Delayed, 5), names);
  refused(longer, good, "has histories of length 4, this run has 5 (fp8_amax_history_len)");

  same.restore(good);
  EXPECT_EQ(same.save(), good);
}

// The head has delayed scaling in a run whose layers have another recipe: only its scales follow its history.
TEST(ScaleTable, DelayedScalingOfSomeTensors) {
  const Fp8Config config{.recipe = Fp8Recipe::Current, .margin = 3, .interval = 4, .history_length = 2};
  const Fp8Config head = config.of_head();
  EXPECT_EQ(head.recipe, Fp8Recipe::Delayed);
  EXPECT_EQ(head.margin, 0) << "its settings are those of the layers";
  const std::vector<std::pair<std::string, QuantizeRule>> tensors = {
      {"layers.0.mlp.up.input", quantize_rule(config, Role::Input)},
      {"head.input", quantize_rule(head, Role::Input)},
      {"head.gradient", quantize_rule(head, Role::Gradient)}};
  Table first(config, tensors), second(config, tensors);
  ScaleTable& table = first.table;
  EXPECT_TRUE(table.any_delayed());
  EXPECT_TRUE(table.calibrating());
  EXPECT_FALSE(table.is_delayed(0));
  EXPECT_TRUE(table.is_delayed(1) && table.is_delayed(2));
  EXPECT_THROW(table.add("late", quantize_rule(config, Role::Input)), Error);
  for (int i = 0; i < 3; ++i) table.slot(i)->amax = 2.0f;
  table.end_step(*first.device, 1);
  EXPECT_EQ(table.slot(0)->scale_rowwise, 1.0f);
  EXPECT_EQ(table.slot(0)->amax, 2.0f);
  EXPECT_EQ(table.slot(1)->scale_rowwise, 448.0f / 2);
  EXPECT_EQ(table.slot(2)->scale_rowwise, 57344.0f / 2);
  // A history of 16 steps, not of 2.
  for (int step = 2; step <= 16; ++step) {
    EXPECT_EQ(table.slot(1)->scale_rowwise, 448.0f / 2) << step;
    table.slot(1)->amax = 1.0f;
    table.end_step(*first.device, step);
  }
  table.slot(1)->amax = 1.0f;
  table.end_step(*first.device, 17);
  EXPECT_EQ(table.slot(1)->scale_rowwise, 448.0f);
  second.restore(first.save());
  EXPECT_EQ(second.save(), first.save());
  EXPECT_FALSE(Table(config, {tensors[0]}).table.any_delayed());
}

TEST(SaveRestore, AModelWithoutFp8HasAnEmptyState) {
  const std::vector<std::string> no_names;
  Table none(config_of(Fp8Recipe::Delayed), no_names);
  Table other(config_of(Fp8Recipe::Delayed), no_names);
  other.restore(none.save());
  EXPECT_EQ(other.save(), none.save());
  EXPECT_TRUE(none.table.reports(*none.device).empty());
}

}  // namespace
}  // namespace octet::test
