#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "precision/fp8_config.h"

namespace octet {

// The kind of a product, for the FLOP shares shown to users.
enum class WorkKind : uint8_t { BaseMatrix, Head };

// A Linear as the choice of its precision sees it.
struct LinearSite {
  std::string name;                   // "layers.3.mlp.down", "head"
  std::vector<std::string> hf_names;  // "model.layers.3.mlp.down_proj", ...: globs may name these too
  int64_t layer = -1;                 // -1 for the head
  int64_t layers = 0;                 // of the whole model
  int64_t out = 0, in = 0, tokens = 0;
  WorkKind kind = WorkKind::BaseMatrix;
};

enum class Product : uint8_t { Forward, Dgrad, Wgrad };
inline constexpr std::array kProducts = {Product::Forward, Product::Dgrad, Product::Wgrad};
std::string_view name_of(Product product);

struct ProductChoice {
  bool fp8 = false;
  std::string reason;              // why not FP8; empty when it is
  bool fast_accumulation = false;  // see Fp8FastAccum
};

struct LinearChoice {
  ProductChoice products[3];  // indexed by Product
  const ProductChoice& operator[](Product product) const { return products[static_cast<size_t>(product)]; }
  bool any_fp8() const { return products[0].fp8 || products[1].fp8 || products[2].fp8; }
};

// Decides every product of every Linear, in one place. `precision` is the precision of the run after any fallback;
// then every reason names it. Throws ConfigError when an entry of skip_layers is malformed or matches no Linear.
std::vector<LinearChoice> choose_precision(const std::vector<LinearSite>& sites, Precision precision,
                                           const Fp8Config& config);

// The settings that a Linear is quantised by.
inline Fp8Config settings_of(const LinearSite& site, const Fp8Config& config) {
  return site.kind == WorkKind::Head ? config.of_head() : config;
}

// '*' matches any run of characters, '?' any one; everything else itself.
bool glob_match(std::string_view pattern, std::string_view text);

}  // namespace octet
