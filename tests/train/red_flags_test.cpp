#include "train/red_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <random>

#include "train/guards.h"

namespace octet {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Limits = RedFlagLimits;

constexpr double kUniform = 10.8;  // ln(50,000)
const RedFlags::About kAbout{
    .warmup_steps = 50, .uniform_loss = kUniform, .learning_rate = 3e-4, .on_gpu = true};

std::vector<std::string> kinds(const std::vector<RedFlag>& flags) {
  std::vector<std::string> result;
  for (const RedFlag& flag : flags) result.push_back(flag.kind);
  return result;
}

// A run as the trainer sees it: losses go through the spike detector.
struct Series {
  explicit Series(RedFlags::About about = kAbout) : flags(about) {}

  void step(double loss, double step_ms = 100, double data_wait_ms = 0.1) {
    ++steps;
    const bool spike = std::isfinite(loss) && spikes.look(loss).has_value();
    for (const RedFlag& flag : flags.look({.step = steps,
                               .loss = loss,
                               .skipped = !std::isfinite(loss),
                               .spike = spike,
                               .step_ms = step_ms,
                               .data_wait_ms = data_wait_ms},
                                          spikes.window()))
      raised.push_back(flag);
  }
  void run(int64_t count, const std::function<double(int64_t)>& loss) {
    for (int64_t i = 0; i < count; ++i) step(loss(steps + 1));
  }
  RedFlags flags;
  SpikeDetector spikes;
  int64_t steps = 0;
  std::vector<RedFlag> raised;
};

double noise(int64_t step, double deviation) {
  std::mt19937 random(static_cast<unsigned>(step));
  return std::normal_distribution(0.0, deviation)(random);
}

TEST(RedFlags, ALossThatStaysWhereItWasIsNotFalling) {
  Series series;
  series.run(149, [](int64_t step) { return 10.9 + noise(step, 0.05); });
  EXPECT_THAT(series.raised, IsEmpty());
  series.run(500, [](int64_t step) { return 10.9 + noise(step, 0.05); });
  ASSERT_THAT(kinds(series.raised), ElementsAre("loss_not_falling"));
  EXPECT_THAT(series.raised[0].text, HasSubstr("100 steps after the warm-up"));
  EXPECT_THAT(series.raised[0].text, HasSubstr("learning_rate (now 0.0003)"));
}

// As weights have that read the ids of another tokenizer.
TEST(RedFlags, AFirstLossFarAboveThatOfGuessingIsSaidAtOnce) {
  Series wrong, high;
  wrong.run(3, [](int64_t) { return 1.51 * kUniform; });
  ASSERT_THAT(kinds(wrong.raised), ElementsAre("worse_than_guessing"));
  EXPECT_THAT(wrong.raised[0].text,
              HasSubstr("the first loss is 16.3080, but a model that guesses would have 10.8000"));
  // Only the first one is judged: later there are spikes.
  high.run(3, [](int64_t step) { return (step == 1 ? 1.49 : 2.0) * kUniform; });
  EXPECT_THAT(high.raised, IsEmpty());
  // Neither a skipped step nor one without targets is the first loss, and a resumed run has had it.
  Series skipped, resumed;
  skipped.run(3, [](int64_t step) { return step == 1 ? NAN : step == 2 ? 0.0 : 2 * kUniform; });
  ASSERT_THAT(kinds(skipped.raised), ElementsAre("worse_than_guessing"));
  resumed.flags.restore({}, kUniform, {kUniform, kUniform}, 2);
  resumed.run(3, [](int64_t) { return 2 * kUniform; });
  EXPECT_THAT(resumed.raised, IsEmpty());
}

TEST(RedFlags, AHealthyRunHasNone) {
  Series series;
  // Falls, then a plateau of thousands of steps at the end of the decay.
  series.run(6000, [](int64_t step) {
    return 3.2 + 7.6 * std::exp(-static_cast<double>(step) / 150) + noise(step, 0.06);
  });
  EXPECT_THAT(series.raised, IsEmpty());
}

TEST(RedFlags, ALossThatFallsWithinAFewStepsAndStaysIsHealthy) {
  Series series({.warmup_steps = 0, .uniform_loss = std::log(256.0), .learning_rate = 1e-3});
  // Data of which little can be learnt: base64 has 64 letters of 256 bytes.
  series.run(400, [](int64_t step) {
    return step < 5 ? 5.5 - 0.3 * static_cast<double>(step) : 4.17 + noise(step, 0.01);
  });
  EXPECT_THAT(series.raised, IsEmpty());
}

TEST(RedFlags, AFineTuneMayStayAtALowLossButMustNotRise) {
  const RedFlags::About about{.warmup_steps = 0, .uniform_loss = 11.9, .learning_rate = 1e-5};
  Series flat(about), noisy(about), rising(about);
  flat.run(500, [](int64_t step) { return 1.1 + noise(step, 0.02); });
  noisy.run(500, [](int64_t step) { return 1.1 + noise(step, 0.4); });
  EXPECT_THAT(flat.raised, IsEmpty());
  EXPECT_THAT(noisy.raised, IsEmpty());
  rising.run(500, [](int64_t step) {
    return 1.1 + 0.002 * static_cast<double>(std::min<int64_t>(step, 80)) + noise(step, 0.05);
  });
  ASSERT_THAT(kinds(rising.raised), ElementsAre("loss_not_falling"));
  EXPECT_THAT(rising.raised[0].text, HasSubstr("has risen from"));
}

// A run that diverges slowly has no spike.
TEST(RedFlags, ALossThatRisesSlowlyIsAFlag) {
  const auto falls = [](int64_t step) { return 3 + 7.8 * std::exp(-static_cast<double>(step) / 60) + noise(step, 0.05); };
  Series rising, plateau, step_up;
  rising.run(600, [&](int64_t step) {
    return falls(step) + 0.004 * static_cast<double>(std::max<int64_t>(0, step - 300));
  });
  ASSERT_THAT(kinds(rising.raised), ElementsAre("loss_rising"));
  EXPECT_THAT(rising.raised[0].text, HasSubstr("learning_rate (now 0.0003)"));
  // Scattering losses, as those of small batches, have medians far below and above their mean in a long run.
  for (unsigned seed = 0; seed < 20; ++seed) {
    Series noisy({.warmup_steps = 0, .uniform_loss = 11.9, .learning_rate = 1e-5});
    std::mt19937 random(seed);
    std::normal_distribution<double> scatter(0.0, 0.1 * (1 + seed % 4));
    noisy.run(5000, [&](int64_t) { return std::max(0.01, 1.1 + scatter(random)); });
    EXPECT_THAT(noisy.raised, IsEmpty()) << seed;
  }
  // Harder data of which the loss stays 10 % higher is no divergence.
  step_up.run(600, [&](int64_t step) { return falls(step) + (step > 300 ? 0.3 : 0); });
  EXPECT_THAT(step_up.raised, IsEmpty());
  // Neither is the noise of a loss near 0.
  plateau.run(600, [](int64_t step) { return (step < 60 ? 2.0 : step < 200 ? 0.05 : 0.1) + noise(step, 0.01); });
  EXPECT_THAT(plateau.raised, IsEmpty());
}

TEST(RedFlags, AShortRunIsNotJudged) {
  Series series;
  series.run(100, [](int64_t) { return 10.9; });
  EXPECT_THAT(series.raised, IsEmpty());
}

TEST(RedFlags, AResumedRunComparesWithItsOwnStart) {
  Series first;
  first.run(120, [](int64_t step) { return 10.9 + noise(step, 0.05); });
  ASSERT_TRUE(first.flags.first_level());
  const auto resume = [&](std::optional<double> level, int64_t steps, double loss) {
    Series second;
    second.spikes.restore(first.spikes.window(), 0);
    second.flags.restore(level, 10.9, first.spikes.window(), steps);
    second.steps = steps;
    second.run(300, [&](int64_t step) { return loss + noise(step, 0.05); });
    return kinds(second.raised);
  };
  EXPECT_THAT(resume(first.flags.first_level(), 120, 10.9), ElementsAre("loss_not_falling"));
  EXPECT_THAT(resume(first.flags.first_level(), 120, 8), IsEmpty());
  EXPECT_THAT(resume(first.flags.first_level(), 4000, 10.9), IsEmpty()) << "it was judged before";
  EXPECT_THAT(resume(std::nullopt, 120, 10.9), IsEmpty()) << "an old checkpoint does not know the start";
}

TEST(RedFlags, ARunThatIsResumedInItsFirstStepsHasTheSameLevel) {
  const auto loss = [](int64_t step) { return 10.9 - 0.01 * static_cast<double>(step); };
  Series whole, first, second;
  whole.run(40, loss);
  first.run(8, loss);
  second.spikes.restore(first.spikes.window(), 0);
  second.flags.restore(first.flags.first_level(), loss(1), first.spikes.window(), 8);
  second.steps = 8;
  second.run(32, loss);
  ASSERT_TRUE(whole.flags.first_level());
  EXPECT_EQ(whole.flags.first_level(), second.flags.first_level());
}

TEST(RedFlags, AKindIsRaisedOncePerRun) {
  Series series;
  series.flags.restore(10.9, 10.9, {}, 120);
  series.flags.set_raised({"loss_not_falling"});
  series.steps = 120;
  series.run(300, [](int64_t step) { return 10.9 + noise(step, 0.05); });
  EXPECT_THAT(series.raised, IsEmpty());
  EXPECT_THAT(series.flags.raised(), ElementsAre("loss_not_falling"));
}

TEST(RedFlags, SeveralSpikesCloseTogetherAreAFlagAndOneIsNot) {
  const auto healthy = [](int64_t step) {
    return 3 + 6 * std::exp(-static_cast<double>(step) / 30) + noise(step, 0.02);
  };
  Series one, far, close;
  one.run(900, [&](int64_t step) { return step == 400 ? 9 : healthy(step); });
  far.run(900, [&](int64_t step) { return step % 250 == 0 ? 9 : healthy(step); });
  close.run(900, [&](int64_t step) { return step >= 400 && step % 60 == 0 ? 9 : healthy(step); });
  EXPECT_THAT(one.raised, IsEmpty());
  EXPECT_THAT(far.raised, IsEmpty());
  ASSERT_THAT(kinds(close.raised), ElementsAre("loss_spikes"));
  EXPECT_THAT(close.raised[0].text,
              HasSubstr("3 spikes of the loss or the gradient norm in the last 200 steps"));
}

TEST(RedFlags, WaitingForDataNeedsAShareOfAWholeWindow) {
  const auto falling = [](int64_t step) { return 3 + 8 * std::exp(-static_cast<double>(step) / 50); };
  Series slow, quick, once, tiny;
  for (int i = 1; i < 100; ++i) slow.step(falling(i), 200, 40);
  ASSERT_THAT(kinds(slow.raised), ElementsAre("waiting_for_data"));
  EXPECT_THAT(slow.raised[0].text, HasSubstr("20 % of the step time"));
  for (int i = 1; i < 300; ++i) quick.step(falling(i), 200, 15);
  for (int i = 1; i < 300; ++i) once.step(falling(i), 200, i == 150 ? 199 : 1);
  for (int i = 1; i < 60; ++i) tiny.step(falling(i), 5, 2);  // too short to judge
  EXPECT_THAT(quick.raised, IsEmpty());
  EXPECT_THAT(once.raised, IsEmpty());
  EXPECT_THAT(tiny.raised, IsEmpty());
  RedFlags::About cpu = kAbout;
  cpu.on_gpu = false;
  Series host(cpu);
  for (int i = 1; i < 300; ++i) host.step(falling(i), 200, 40);
  EXPECT_THAT(host.raised, IsEmpty()) << "the loader and the step share the cores";
  // The first batches of a process have to be read from disk.
  Series start;
  for (int i = 1; i < 300; ++i) start.step(falling(i), 200, i <= 10 ? 190 : 1);
  EXPECT_THAT(start.raised, IsEmpty());
}

// Samples of a minute and more, ten per second.
struct Gpu {
  explicit Gpu(RedFlags& to) : flags(to) {}
  std::vector<std::string> minutes(double count, double utilization, int slowed = 0, int capped = 0,
                                   double clock = 1700) {
    std::vector<std::string> result;
    for (int i = 0; i < static_cast<int>(600 * count); ++i) {
      ++totals.samples;
      totals.seconds += 0.1;
      totals.utilization += utilization;
      totals.sm_clock_mhz += clock;
      totals.slowed += i % 10 < slowed;
      totals.heated += is_hot && i % 10 < slowed;
      totals.capped += i % 10 < capped;
      for (const RedFlag& flag : flags.look(totals, [this] { return state; })) {
        result.push_back(flag.kind);
        text = flag.text;
      }
    }
    return result;
  }
  RedFlags& flags;
  GpuTotals totals;
  GpuState state;
  std::string text;
  bool is_hot = true;
};

struct RedFlagsGpu : testing::Test {
  RedFlagsGpu() {
    for (int i = 1; i < 12; ++i) series.step(9);
    gpu.state.max_sm_clock_mhz = 1980;
    gpu.state.power_limit_watts = gpu.state.default_power_limit_watts = 700;
  }
  Series series;
  Gpu gpu{series.flags};
};

TEST_F(RedFlagsGpu, ABusyGpuHasNoneAlsoAtItsPowerLimit) {
  EXPECT_THAT(gpu.minutes(3, 0.97), IsEmpty());
  EXPECT_THAT(gpu.minutes(3, 0.97, 0, 10, 1300), IsEmpty())
      << "large products reach the limit of a healthy GPU";
  EXPECT_THAT(gpu.minutes(3, 0.97, 1), IsEmpty()) << "a tenth of the time";
}

TEST_F(RedFlagsGpu, LowUtilizationIsToldAfterAMinuteAndOnce) {
  EXPECT_THAT(gpu.minutes(0.9, 0.5), IsEmpty());
  EXPECT_THAT(gpu.minutes(3, 0.5), ElementsAre("low_utilization"));
  EXPECT_THAT(gpu.text, HasSubstr("50 % of the time"));
  EXPECT_THAT(gpu.text, HasSubstr("cuda_graphs"));
}

TEST_F(RedFlagsGpu, TheFirstStepsDoNotCount) {
  Series fresh;
  Gpu young(fresh.flags);
  EXPECT_THAT(young.minutes(2, 0.1), IsEmpty());
}

TEST_F(RedFlagsGpu, AGpuThatWaitsForDataIsToldOnlyThat) {
  for (int i = 1; i < 100; ++i) series.step(9, 200, 60);
  EXPECT_THAT(kinds(series.raised), testing::Contains("waiting_for_data"));
  EXPECT_THAT(gpu.minutes(3, 0.5), IsEmpty());
}

TEST_F(RedFlagsGpu, HeatAndALoweredLimitThrottle) {
  gpu.state.temperature_c = 92;
  EXPECT_THAT(gpu.minutes(1.1, 0.97, 5, 0, 1200), ElementsAre("throttled"));
  EXPECT_THAT(gpu.text,
              HasSubstr("heat lowers the clock of the GPU in 50 % of the time (1200 MHz of 1980, 92 C)"));
  EXPECT_THAT(gpu.text, HasSubstr("cooling"));
  Series other;
  for (int i = 1; i < 12; ++i) other.step(9);
  Gpu limited(other.flags);
  limited.state = gpu.state;
  limited.state.power_limit_watts = 400;
  EXPECT_THAT(limited.minutes(1.1, 0.97, 0, 10, 1500), ElementsAre("throttled"));
  EXPECT_THAT(limited.text, HasSubstr("nvidia-smi -pl 700"));
  Series braked;
  for (int i = 1; i < 12; ++i) braked.step(9);
  Gpu starved(braked.flags);
  starved.state = gpu.state;
  starved.is_hot = false;
  EXPECT_THAT(starved.minutes(1.1, 0.97, 5, 0, 1000), ElementsAre("throttled"));
  EXPECT_THAT(starved.text, HasSubstr("the hardware lowers the clock"));
  EXPECT_THAT(starved.text, HasSubstr("power supply"));
}

std::vector<ScaleTable::Report> scales(double first, double second) {
  return {{.name = "layers.0.mlp.up.input", .format = DType::E4M3, .scale = first, .elements = 100},
          {.name = "layers.0.mlp.up.grad", .format = DType::E5M2, .scale = second, .elements = 100},
          {.name = "unused", .format = DType::E4M3, .scale = 0, .elements = 0}};
}

TEST(RedFlags, ScalesThatJumpUpAndDownDoNotSettle) {
  RedFlags flags(kAbout);
  std::vector<std::string> raised;
  for (int i = 1; i <= 8; ++i) {
    for (const RedFlag& flag : flags.look(100 * i, scales(i % 2 ? 16 : 512, 1024))) {
      raised.push_back(flag.kind);
      EXPECT_THAT(flag.text,
                  HasSubstr("1 tensor jumps up and down; that of layers.0.mlp.up.input by a factor of 32"));
    }
  }
  EXPECT_THAT(raised, ElementsAre("scales_not_settling"));
}

TEST(RedFlags, ScalesThatDriftOrWiggleSettle) {
  RedFlags drift(kAbout), wiggle(kAbout), warmup(kAbout);
  for (int i = 1; i <= 12; ++i) {
    EXPECT_THAT(drift.look(100 * i, scales(16, std::exp2(4 * i))), IsEmpty())
        << "gradients shrink in training";
    EXPECT_THAT(wiggle.look(100 * i, scales(i % 2 ? 16 : 64, 1)), IsEmpty());
    EXPECT_THAT(warmup.look(i, scales(i % 2 ? 16 : 512, 1)), IsEmpty()) << "during the warm-up";
  }
}

TEST(RedFlags, SaturationIsOneFlag) {
  RedFlags flags(kAbout);
  EXPECT_THAT(kinds(flags.saturation("a")), ElementsAre("saturation"));
  EXPECT_THAT(flags.saturation("b"), IsEmpty());
}

}  // namespace
}  // namespace octet
