// What users are told of FP8: statistics as JSON, warnings about saturation, shares of the work.

#include "plan/coverage.h"
#include "train/fp8_stats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "support/tiny_run.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

// Collects the warnings of a scope instead of printing them.
class Warnings {
 public:
  Warnings() {
    previous_ = set_log_sink([this](LogLevel level, std::string_view text) {
      if (level == LogLevel::Warning) lines.emplace_back(text);
    });
  }
  ~Warnings() { set_log_sink(previous_); }
  Warnings(const Warnings&) = delete;

  std::vector<std::string> lines;

 private:
  LogSink previous_;
};

ScaleTable::Report report(double saturated, const char* name = "layers.3.mlp.down.input") {
  return {.name = name, .format = DType::E4M3, .saturated_share = saturated, .elements = 1000};
}

TEST(SaturationWatch, WarnsOnceAfterThreeRecordsInARow) {
  const Warnings warnings;
  SaturationWatch watch;
  const Fp8Config config{.margin = 2};
  watch.look({report(0.02), report(0, "head.input")}, config);
  watch.look({report(0.02), report(0.5, "head.input")}, config);
  EXPECT_THAT(warnings.lines, IsEmpty());
  watch.look({report(0.0213), report(0.5, "head.input")}, config);
  ASSERT_THAT(
      warnings.lines,
      ElementsAre(AllOf(HasSubstr("layers.3.mlp.down.input: 2.13 % of the values saturate in e4m3"),
                        HasSubstr("3 records in a row"), HasSubstr("raise fp8_margin (now 2)"),
                        HasSubstr("use fp8_recipe current"),
                        HasSubstr("fp8_skip_layers: [layers.3.mlp.down]"), Not(HasSubstr("hybrid")))));
  for (const double share : {0.5, 0.5, 0.0, 0.5, 0.5, 0.5}) watch.look({report(share)}, config);
  EXPECT_EQ(warnings.lines.size(), 1u);
}

TEST(SaturationWatch, StartsAnewAfterARecordBelowTheLimit) {
  const Warnings warnings;
  SaturationWatch watch;
  for (const double share : {0.1, 0.1, 0.0, 0.1, 0.1, SaturationWatch::kShare, 0.1, 0.1}) {
    watch.look({report(share)}, {});
  }
  EXPECT_THAT(warnings.lines, IsEmpty());
  watch.look({report(0.1)}, {});
  EXPECT_EQ(warnings.lines.size(), 1u);
}

TEST(SaturationWatch, AdvisesWhatHelpsInThatRecipe) {
  const auto advice = [](const Fp8Config& config) {
    const Warnings warnings;
    SaturationWatch watch;
    for (int i = 0; i < 3; ++i) watch.look({report(0.1)}, config);
    return warnings.lines.at(0);
  };
  EXPECT_THAT(
      advice({.recipe = Fp8Recipe::Current, .format = Fp8Format::E4M3}),
      AllOf(HasSubstr("raise fp8_margin"), HasSubstr("use fp8_format hybrid"), Not(HasSubstr("fp8_recipe"))));
  EXPECT_THAT(advice({.recipe = Fp8Recipe::Block}),
              AllOf(HasSubstr("skip the layer"), Not(HasSubstr("fp8_margin")), Not(HasSubstr("fp8_recipe"))));
}

TEST(Fp8Stats, EveryQuantisedTensorHasEveryField) {
  for (const Fp8Recipe recipe :
       {Fp8Recipe::Delayed, Fp8Recipe::Current, Fp8Recipe::Block, Fp8Recipe::Mxfp8}) {
    for (const bool head : {false, true}) {
      SCOPED_TRACE(fmt::format("{} head {}", name_of(recipe), head));
      TinyRun run({.precision = Precision::Fp8,
                   .fp8 = {.recipe = recipe, .head = head ? Fp8Head::All : Fp8Head::None}});
      run.step();
      run.runner->train_step(run.done++, true);
      const auto json = nlohmann::json::parse(fp8_stats_json(run.model->scales().reports(*run.device)));
      EXPECT_EQ(json.size(), head ? 27u : 24u);  // input, weight and gradient of four Linears in two layers
      for (const auto& [name, entry] : json.items()) {
        SCOPED_TRACE(name);
        EXPECT_EQ(entry.size(), 6u);
        EXPECT_EQ(entry.at("format"), name.ends_with(".gradient") ? "e5m2" : "e4m3");
        EXPECT_GT(entry.at("amax").get<double>(), 0);
        EXPECT_GT(entry.at("scale").get<double>(), 0);
        EXPECT_LT(entry.at("saturated").get<double>(), 0.01);
        EXPECT_GE(entry.at("saturated").get<double>(), 0);
        EXPECT_LT(entry.at("flushed").get<double>(), 0.1);
        EXPECT_GE(entry.at("flushed").get<double>(), 0);
        // Noise of rounding alone: 3 mantissa bits give some 31 dB, 2 some 25.
        EXPECT_GT(entry.at("sqnr_db").get<double>(), name.ends_with(".gradient") ? 23 : 26);
        // (The gradient of the logits is mostly one value, that of the targets, which has no noise.)
        EXPECT_LT(entry.at("sqnr_db").get<double>(), name == "head.gradient" ? 60 : 36);
      }
    }
  }
}

TEST(Fp8Stats, CountTheLastStepAloneAndAllOfIt) {
  TinyRun run({.precision = Precision::Fp8, .fp8 = {.recipe = Fp8Recipe::Current}, .accumulation = 2});
  for (int i = 0; i < 2; ++i) {
    run.runner->train_step(run.done++, true);
    for (const ScaleTable::Report& r : run.model->scales().reports(*run.device)) {
      if (!r.name.starts_with("layers.1.mlp.down.")) continue;
      const bool weight = r.name.ends_with("weight");  // once a step; the others in both micro-batches
      const double width = r.name.ends_with("gradient") ? 128 : 384;
      EXPECT_EQ(r.elements, weight ? 128.0 * 384 : 2 * 64 * width) << r.name;
    }
  }
}

TEST(Fp8Stats, AreJsonWhateverTheNumbers) {
  ScaleTable::Report bad = report(0);
  bad.amax = std::numeric_limits<double>::quiet_NaN();
  bad.sqnr_db = std::numeric_limits<double>::infinity();
  ScaleTable::Report unused = report(0, "head.input");
  unused.elements = 0;
  const auto json = nlohmann::json::parse(fp8_stats_json({bad, unused}));
  EXPECT_EQ(json.size(), 1u);
  EXPECT_TRUE(json.at(bad.name).at("amax").is_null());
  EXPECT_TRUE(json.at(bad.name).at("sqnr_db").is_null());
  EXPECT_EQ(fp8_stats_json({}), "{}");
}

TEST(Fp8Stats, MediansOfTheScalesOfForwardAndBackward) {
  std::vector<ScaleTable::Report> reports;
  const auto add = [&](const char* name, double scale, double elements = 1) {
    reports.push_back(report(0, name));
    reports.back().scale = scale;
    reports.back().elements = elements;
  };
  EXPECT_FALSE(median_scales(reports).forward);
  add("layers.0.mlp.up.input", 8);
  add("layers.0.mlp.up.weight", 64);
  add("layers.1.mlp.up.input", 1024);
  add("layers.1.mlp.up.weight", 1, 0);  // not used in the last step
  EXPECT_FALSE(median_scales(reports).backward);
  add("layers.0.mlp.up.gradient", 4096);
  EXPECT_EQ(median_scales(reports).forward, 64);
  EXPECT_EQ(median_scales(reports).backward, 4096);
}

}  // namespace
}  // namespace octet::test
