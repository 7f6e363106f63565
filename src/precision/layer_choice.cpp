#include "precision/layer_choice.h"

#include <charconv>
#include <optional>

#include "base/error.h"

namespace octet {
namespace {

// GEMM dimensions of FP8 operands must be multiples of 16 elements (16 bytes).
constexpr int64_t kFp8Multiple = 16;

// N of "first:N" or "last:N".
std::optional<int64_t> layer_count(std::string_view entry, std::string_view prefix) {
  if (!entry.starts_with(prefix)) return std::nullopt;
  const std::string_view digits = entry.substr(prefix.size());
  int64_t count = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), count);
  if (error != std::errc{} || end != digits.data() + digits.size() || count < 0) {
    fail_config("[fp8] fp8_skip_layers: '{}' is not of the form {}N with N a whole number", entry, prefix);
  }
  return count;
}

bool entry_matches(std::string_view entry, const LinearSite& site) {
  if (const auto first = layer_count(entry, "first:")) return site.layer >= 0 && site.layer < *first;
  if (const auto last = layer_count(entry, "last:"))
    return site.layer >= 0 && site.layer >= site.layers - *last;
  if (glob_match(entry, site.name)) return true;
  for (const std::string& hf : site.hf_names) {
    if (glob_match(entry, hf)) return true;
  }
  return false;
}

void set_all(LinearChoice& choice, const std::string& reason) {
  for (ProductChoice& product : choice.products) product = {false, reason};
}

// A smaller head takes little time.
constexpr int64_t kLargeHead = int64_t{1} << 24;  // weights

ProductChoice choose_head(const LinearSite& site, Product product, const Fp8Config& config) {
  const bool forward = product == Product::Forward;
  switch (config.head) {
    case Fp8Head::All:
      return {true, ""};
    case Fp8Head::None:
      return {false, "fp8_head is none"};
    case Fp8Head::Forward:
      return {forward, forward ? "" : "fp8_head is forward"};
    case Fp8Head::Dgrad:
      return {product == Product::Dgrad, product == Product::Dgrad ? "" : "fp8_head is dgrad"};
    case Fp8Head::Wgrad:
      return {product == Product::Wgrad, product == Product::Wgrad ? "" : "fp8_head is wgrad"};
    case Fp8Head::Auto:
      if (site.out * site.in < kLargeHead) return {false, "the head is small; see fp8_head"};
      // E4M3 has no small probabilities.
      if (config.format == Fp8Format::E4M3) return {false, "gradients of the head need E5M2; see fp8_head"};
      [[fallthrough]];
    case Fp8Head::Backward:
      return {!forward, forward ? "logits stay in BF16; see fp8_head" : ""};
  }
  return {};
}

bool sums_fast(const LinearSite& site, Product product, Fp8FastAccum products) {
  switch (product) {
    case Product::Forward:
      return products >= Fp8FastAccum::Forward && site.in <= kMostInputsOfFastSums;
    case Product::Dgrad:
      return products >= Fp8FastAccum::ForwardDgrad;
    case Product::Wgrad:
      return products == Fp8FastAccum::All && site.tokens <= kMostTokensOfFastSums;
  }
  return false;
}

LinearChoice choose(const LinearSite& site, const Fp8Config& config) {
  LinearChoice choice;
  for (ProductChoice& product : choice.products) product = {true, ""};
  for (const std::string& entry : config.skip_layers) {
    if (entry_matches(entry, site)) {
      set_all(choice, fmt::format("fp8_skip_layers: '{}'", entry));
      return choice;
    }
  }
  if (site.in % kFp8Multiple != 0 || site.out % kFp8Multiple != 0) {
    set_all(choice,
            fmt::format("{} x {}: FP8 needs both to be multiples of {}", site.out, site.in, kFp8Multiple));
    return choice;
  }
  if (site.tokens % kFp8Multiple != 0) {
    choice.products[static_cast<size_t>(Product::Wgrad)] = {
        false,
        fmt::format("{} tokens in a micro-batch: the reduction of an FP8 wgrad must be a multiple of {}",
                    site.tokens, kFp8Multiple)};
  }
  if (site.kind == WorkKind::Head) {
    for (const Product product : kProducts) {
      ProductChoice& chosen = choice.products[static_cast<size_t>(product)];
      if (chosen.fp8) chosen = choose_head(site, product, config);
    }
    return choice;
  }
  if (!has_scale_per_tensor(config.recipe)) return choice;
  for (const Product product : kProducts)
    choice.products[static_cast<size_t>(product)].fast_accumulation =
        sums_fast(site, product, config.fast_accumulation);
  return choice;
}

}  // namespace

std::string_view name_of(Product product) {
  switch (product) {
    case Product::Forward:
      return "forward";
    case Product::Dgrad:
      return "dgrad";
    case Product::Wgrad:
      return "wgrad";
  }
  return "?";
}

bool glob_match(std::string_view pattern, std::string_view text) {
  // The usual two-pointer walk: after a mismatch, the last '*' takes one more character.
  size_t p = 0, t = 0, star = std::string_view::npos, star_text = 0;
  while (t < text.size()) {
    if (p < pattern.size() && (pattern[p] == '?' || pattern[p] == text[t]) && pattern[p] != '*') {
      ++p, ++t;
    } else if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_text = t;
    } else if (star != std::string_view::npos) {
      p = star + 1;
      t = ++star_text;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') ++p;
  return p == pattern.size();
}

std::vector<LinearChoice> choose_precision(const std::vector<LinearSite>& sites, Precision precision,
                                           const Fp8Config& config) {
  std::vector<LinearChoice> choices(sites.size());
  if (precision != Precision::Fp8) {
    for (LinearChoice& choice : choices) {
      set_all(choice, precision == Precision::Bf16 ? "the run is in BF16" : "the run is in FP32");
    }
    return choices;
  }
  for (const std::string& entry : config.skip_layers) {
    bool matched = false;
    for (const LinearSite& site : sites) matched |= entry_matches(entry, site);
    if (!matched && !entry.starts_with("first:0") && !entry.starts_with("last:0")) {
      fail_config("[fp8] fp8_skip_layers: '{}' matches no layer; names look like '{}' or '{}'", entry,
                  sites.front().name, sites.back().name);
    }
  }
  for (size_t i = 0; i < sites.size(); ++i) choices[i] = choose(sites[i], config);
  return choices;
}

}  // namespace octet
