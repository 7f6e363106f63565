#include "precision/layer_choice.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace octet {
namespace {

std::vector<LinearSite> four_layers() {
  std::vector<LinearSite> sites;
  for (int64_t l = 0; l < 4; ++l) {
    sites.push_back({fmt::format("layers.{}.attention.qkv", l),
                     {fmt::format("model.layers.{}.self_attn.q_proj", l)},
                     l,
                     4,
                     256,
                     128,
                     1024});
    sites.push_back({fmt::format("layers.{}.mlp.down", l),
                     {fmt::format("model.layers.{}.mlp.down_proj", l)},
                     l,
                     4,
                     128,
                     384,
                     1024});
  }
  sites.push_back({"head", {"lm_head"}, -1, 4, 272, 128, 1024, WorkKind::Head});
  return sites;
}

// Names of the Linears whose forward product is in FP8.
std::string in_fp8(const Fp8Config& config, const std::vector<LinearSite>& sites = four_layers()) {
  std::string names;
  const std::vector<LinearChoice> choices = choose_precision(sites, Precision::Fp8, config);
  for (size_t i = 0; i < sites.size(); ++i) {
    if (choices[i][Product::Forward].fp8) names += sites[i].name + " ";
  }
  return names;
}

std::string error_of(const Fp8Config& config) {
  try {
    choose_precision(four_layers(), Precision::Fp8, config);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "no error";
}

// The products of the head in FP8, by their first letters.
std::string head_products(Fp8Head head, int64_t out = 512, Fp8Config config = {}) {
  config.head = head;
  const LinearSite site{
      .name = "head", .layers = 4, .out = out, .in = 64, .tokens = 64, .kind = WorkKind::Head};
  const LinearChoice choice = choose_precision({site}, Precision::Fp8, config).at(0);
  std::string letters;
  for (const Product product : kProducts) {
    if (choice[product].fp8) letters += name_of(product).front();
    EXPECT_EQ(choice[product].fp8, choice[product].reason.empty()) << choice[product].reason;
  }
  return letters;
}

TEST(LayerChoice, ProductsOfTheHead) {
  EXPECT_EQ(in_fp8({}).find("head"), std::string::npos);
  EXPECT_NE(in_fp8({.head = Fp8Head::All}).find("head"), std::string::npos);
  EXPECT_EQ(head_products(Fp8Head::None), "");
  EXPECT_EQ(head_products(Fp8Head::All), "fdw");
  EXPECT_EQ(head_products(Fp8Head::Backward), "dw");
  EXPECT_EQ(head_products(Fp8Head::Forward), "f");
  EXPECT_EQ(head_products(Fp8Head::Dgrad), "d");
  EXPECT_EQ(head_products(Fp8Head::Wgrad), "w");
  // By itself only a large head.
  EXPECT_EQ(head_products(Fp8Head::Auto, (1 << 18) - 16), "");
  EXPECT_EQ(head_products(Fp8Head::Auto, 1 << 18), "dw");
  for (const Fp8Recipe recipe : {Fp8Recipe::Current, Fp8Recipe::Block, Fp8Recipe::Mxfp8})
    EXPECT_EQ(head_products(Fp8Head::Auto, 1 << 18, {.recipe = recipe}), "dw") << name_of(recipe);
  // And only where small probabilities are more than 0.
  EXPECT_EQ(head_products(Fp8Head::Auto, 1 << 18, {.format = Fp8Format::E4M3}), "");
  EXPECT_EQ(head_products(Fp8Head::Auto, 1 << 18, {.format = Fp8Format::E5M2}), "dw");
  EXPECT_EQ(head_products(Fp8Head::Backward, 1 << 18, {.recipe = Fp8Recipe::Block}), "dw");
  // What FP8 cannot do stays.
  EXPECT_EQ(head_products(Fp8Head::All, 500), "");
}

TEST(LayerChoice, FastAccumulationIsForLayers) {
  const auto fast = [](Fp8FastAccum products, WorkKind kind) {
    const LinearSite site{.name = "x", .layers = 4, .out = 512, .in = 64, .tokens = 64, .kind = kind};
    const Fp8Config config{.head = Fp8Head::All, .fast_accumulation = products};
    const LinearChoice choice = choose_precision({site}, Precision::Fp8, config).at(0);
    std::string letters;
    for (const Product product : kProducts) {
      if (choice[product].fast_accumulation) letters += name_of(product).front();
    }
    return letters;
  };
  EXPECT_EQ(fast(Fp8FastAccum::None, WorkKind::BaseMatrix), "");
  EXPECT_EQ(fast(Fp8FastAccum::Forward, WorkKind::BaseMatrix), "f");
  EXPECT_EQ(fast(Fp8FastAccum::ForwardDgrad, WorkKind::BaseMatrix), "fd");
  EXPECT_EQ(fast(Fp8FastAccum::All, WorkKind::BaseMatrix), "fdw");
  EXPECT_EQ(fast(Fp8FastAccum::All, WorkKind::Head), "");
}

// A sum of a weight's gradient has a term for every token.
TEST(LayerChoice, GradientsOfWeightsHaveFastSumsOnlyOverFewTokens) {
  const auto fast = [](int64_t tokens) {
    const LinearSite site{.name = "x", .layers = 4, .out = 16384, .in = 16384, .tokens = tokens};
    const LinearChoice choice =
        choose_precision({site}, Precision::Fp8, {.fast_accumulation = Fp8FastAccum::All}).at(0);
    EXPECT_TRUE(choice[Product::Forward].fast_accumulation && choice[Product::Dgrad].fast_accumulation);
    return choice[Product::Wgrad].fast_accumulation;
  };
  EXPECT_TRUE(fast(8192));
  EXPECT_FALSE(fast(8208));
}

// A forward sum has a term for every input of the layer.
TEST(LayerChoice, ForwardSumsAreFastOnlyOverFewInputs) {
  const auto fast = [](int64_t inputs) {
    const LinearSite site{.name = "x", .layers = 4, .out = 512, .in = inputs, .tokens = 64};
    const LinearChoice choice =
        choose_precision({site}, Precision::Fp8, {.fast_accumulation = Fp8FastAccum::All}).at(0);
    EXPECT_TRUE(choice[Product::Forward].fp8 && choice[Product::Dgrad].fast_accumulation);
    return choice[Product::Forward].fast_accumulation;
  };
  EXPECT_TRUE(fast(16384));
  EXPECT_FALSE(fast(16400));
}

TEST(LayerChoice, SkipsNamesGlobsAndEnds) {
  EXPECT_EQ(in_fp8({.skip_layers = {"layers.1.mlp.down", "layers.0.*", "last:2"}}),
            "layers.1.attention.qkv ");
  EXPECT_EQ(in_fp8({.skip_layers = {"first:3"}}), "layers.3.attention.qkv layers.3.mlp.down ");
  EXPECT_EQ(in_fp8({.skip_layers = {"*down_proj", "last:1"}}),
            "layers.0.attention.qkv layers.1.attention.qkv layers.2.attention.qkv ");
}

TEST(LayerChoice, EveryProductHasAReason) {
  for (const LinearChoice& choice :
       choose_precision(four_layers(), Precision::Fp8, {.skip_layers = {"layers.2.*"}})) {
    for (const Product product : kProducts) EXPECT_EQ(choice[product].fp8, choice[product].reason.empty());
  }
  for (const LinearChoice& choice : choose_precision(four_layers(), Precision::Bf16, {})) {
    EXPECT_EQ(choice[Product::Wgrad].reason, "the run is in BF16");
  }
}

TEST(LayerChoice, SizesThatFp8CannotMultiply) {
  std::vector<LinearSite> sites = {{"layers.0.mlp.up", {}, 0, 1, 100, 128, 1024},
                                   {"layers.0.mlp.down", {}, 0, 1, 128, 128, 1000}};
  const std::vector<LinearChoice> choices = choose_precision(sites, Precision::Fp8, {});
  EXPECT_FALSE(choices[0].any_fp8());
  EXPECT_NE(choices[0][Product::Dgrad].reason.find("100 x 128"), std::string::npos);
  EXPECT_TRUE(choices[1][Product::Forward].fp8 && choices[1][Product::Dgrad].fp8);
  EXPECT_FALSE(choices[1][Product::Wgrad].fp8);
  EXPECT_NE(choices[1][Product::Wgrad].reason.find("1000 tokens"), std::string::npos);
}

TEST(LayerChoice, BadEntriesAreErrors) {
  EXPECT_NE(error_of({.skip_layers = {"layers.9.*"}}).find("'layers.9.*' matches no layer"),
            std::string::npos);
  EXPECT_NE(error_of({.skip_layers = {"first:x"}}).find("first:N"), std::string::npos);
}

TEST(LayerChoice, BadNumbersAreErrors) {
  EXPECT_THROW((Fp8Config{.margin = -1}.validate()), ConfigError);
  EXPECT_THROW((Fp8Config{.margin = 17}.validate()), ConfigError);
  EXPECT_THROW((Fp8Config{.interval = 0}.validate()), ConfigError);
  EXPECT_THROW((Fp8Config{.history_length = 0}.validate()), ConfigError);
  EXPECT_NO_THROW(Fp8Config{}.validate());
}

TEST(QuantizeRules, NoProductHasTwoE5M2Operands) {
  for (const Fp8Format format : {Fp8Format::Hybrid, Fp8Format::E4M3, Fp8Format::E5M2}) {
    const Fp8Config config{.format = format};
    const QuantizeRule x = quantize_rule(config, Role::Input), w = quantize_rule(config, Role::Weight);
    const QuantizeRule dy = quantize_rule(config, Role::Gradient);
    const auto both = [](DType a, DType b) { return a == DType::E5M2 && b == DType::E5M2; };
    EXPECT_FALSE(both(x.format_rowwise, w.format_rowwise));
    EXPECT_FALSE(both(dy.format_rowwise, w.format_colwise));
    EXPECT_FALSE(both(dy.format_colwise, x.format_colwise));
    if (format == Fp8Format::E5M2) {  // ... and e5m2 has one in each
      EXPECT_EQ(x.format_rowwise, DType::E5M2);
      EXPECT_EQ(dy.format_rowwise, DType::E5M2);
      EXPECT_EQ(dy.format_colwise, DType::E5M2);
    }
  }
}

TEST(Glob, Matches) {
  EXPECT_TRUE(glob_match("layers.*.mlp.*", "layers.12.mlp.down"));
  EXPECT_TRUE(glob_match("*", ""));
  EXPECT_TRUE(glob_match("a*b*c", "aXbYbZc"));
  EXPECT_TRUE(glob_match("layers.?.out", "layers.3.out"));
  EXPECT_FALSE(glob_match("layers.?.out", "layers.13.out"));
  EXPECT_FALSE(glob_match("a*b", "aXc"));
}

}  // namespace
}  // namespace octet
