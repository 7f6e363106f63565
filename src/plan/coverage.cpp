#include "plan/coverage.h"

#include <algorithm>
#include <limits>
#include <span>

#include "report/table.h"

namespace octet {
namespace {

// Multiply-adds count two. Each product of a Linear costs the same.
double product_flops(const LinearSite& site, int64_t tokens) {
  return 2.0 * static_cast<double>(site.out) * static_cast<double>(site.in) * static_cast<double>(tokens);
}

// Forward and dgrad; wgrad unless the weight is frozen.
std::span<const Product> products_of(const Linear& linear) {
  return std::span(kProducts).first(linear.weight.trains() ? 3 : 2);
}

std::string precision_text(const Linear& linear, DType dense) {
  const std::string other = dense == DType::F32 ? "FP32" : "BF16";
  std::vector<std::string> parts;
  for (const Product product : products_of(linear))
    parts.push_back(linear.spec.choice[product].fp8 ? "FP8" : other);
  if (parts.size() == 2) parts.emplace_back("-");
  if (parts[0] == parts[1] && parts[1] == parts[2]) return parts[0];
  return fmt::format("{}", fmt::join(parts, "/"));
}

// Equal Linears of consecutive layers share one row.
struct CoverageRow {
  std::string part, precision, reason;
  int64_t out = 0, in = 0, first = 0, last = 0, count = 0;
  double flops = 0;
};

std::string part_name(const LinearSite& site) {
  if (site.layer < 0) return site.name;
  return site.name.substr(site.name.find('.', site.name.find('.') + 1) + 1);
}

std::string reason_text(const Linear& linear) {
  const LinearChoice& choice = linear.spec.choice;
  std::vector<std::string> reasons;
  for (const Product product : products_of(linear)) {
    const std::string& reason = choice[product].reason;
    if (reason.empty()) continue;
    const bool all = std::ranges::all_of(products_of(linear),
                                         [&](Product other) { return choice[other].reason == reason; });
    const std::string text = all ? reason : fmt::format("{}: {}", name_of(product), reason);
    if (std::find(reasons.begin(), reasons.end(), text) == reasons.end()) reasons.push_back(text);
  }
  return fmt::format("{}", fmt::join(reasons, "; "));
}

std::string layer_range(const CoverageRow& row) {
  if (row.first < 0) return row.part;
  if (row.count == 1) return fmt::format("layers.{}.{}", row.first, row.part);
  return fmt::format("layers.{}-{}.{}", row.first, row.last, row.part);
}

}  // namespace

std::vector<WorkShare> work_shares(const Transformer& transformer) {
  const ModelConfig& c = transformer.config();
  const int64_t tokens = transformer.shape().tokens();
  const auto n = static_cast<double>(tokens);
  WorkShare base{"base matrices"}, adapters{"adapters"}, head{"head"}, attention{"attention"}, other{"other"};
  for (const Linear* linear : transformer.linears()) {
    const double flops = product_flops(linear->spec.site, tokens);
    WorkShare& share = linear->spec.site.kind == WorkKind::Head ? head : base;
    for (const Product product : products_of(*linear)) {
      share.flops += flops;
      if (linear->spec.choice[product].fp8) share.fp8_flops += flops;
    }
    if (!linear->operands.adapter()) continue;
    // Three products for each element of A and B; none is in FP8.
    double elements = static_cast<double>(linear->operands.adapter().a().spec.shape.numel());
    for (const LowRank::Part& part : linear->operands.adapter().parts())
      elements += static_cast<double>(part.b->spec.shape.numel());
    adapters.flops += 6 * elements * n;
  }
  // Causal: half of the score matrix; two products forward, five backward.
  attention.flops = 7.0 * static_cast<double>(c.layers * c.attention().out_width()) * n *
                    c.attention().span(transformer.shape().length);
  // Norms, activations, rotations, the loss: about ten operations per element, counted three times.
  other.flops =
      30.0 * n *
      static_cast<double>(c.layers * (4 * c.width + c.up_width() + c.attention().qkv_width()) + c.vocab);
  if (transformer.has_adapters()) return {base, adapters, head, attention, other};
  return {base, head, attention, other};
}

double fp8_share(const std::vector<WorkShare>& shares) {
  double all = 0, fp8 = 0;
  for (const WorkShare& share : shares) all += share.flops, fp8 += share.fp8_flops;
  return all > 0 ? fp8 / all : 0;
}

std::string coverage_text(const Transformer& transformer) {
  const std::vector<WorkShare> shares = work_shares(transformer);
  double total = 0;
  for (const WorkShare& share : shares) total += share.flops;

  std::vector<CoverageRow> rows;
  for (const Linear* linear : transformer.linears()) {
    const LinearSite& site = linear->spec.site;
    CoverageRow row{
        part_name(site),
        precision_text(*linear, transformer.numerics().dense()),
        reason_text(*linear),
        site.out,
        site.in,
        site.layer,
        site.layer,
        1,
        static_cast<double>(products_of(*linear).size()) * product_flops(site, transformer.shape().tokens())};
    const auto like = std::find_if(rows.begin(), rows.end(), [&](const CoverageRow& other) {
      return other.part == row.part && other.precision == row.precision && other.reason == row.reason &&
             other.last == row.first - 1 && row.first >= 0;
    });
    if (like == rows.end()) {
      rows.push_back(row);
    } else {
      like->last = row.last;
      ++like->count;
      like->flops += row.flops;
    }
  }
  std::stable_sort(rows.begin(), rows.end(), [](const CoverageRow& a, const CoverageRow& b) {
    const auto key = [](const CoverageRow& row) {
      return row.first < 0 ? std::numeric_limits<int64_t>::max() : row.first;
    };
    return key(a) < key(b);
  });

  Table layers(
      {{"layer"}, {"out x in", Align::Right}, {"FLOPs", Align::Right}, {"fwd/dgrad/wgrad"}, {"why not FP8"}});
  for (const CoverageRow& row : rows) {
    layers.add_row({layer_range(row), fmt::format("{} x {}", row.out, row.in),
                    fmt::format("{:.1f} %", 100 * row.flops / total), row.precision, row.reason});
  }
  Table kinds({{"work"}, {"FLOPs", Align::Right}, {"share in FP8", Align::Right}});
  for (const WorkShare& share : shares) {
    kinds.add_row({share.kind, fmt::format("{:.1f} %", 100 * share.flops / total),
                   share.flops > 0 ? fmt::format("{:.0f} %", 100 * share.fp8_flops / share.flops) : "-"});
  }
  kinds.add_rule();
  kinds.add_row({"all", "100.0 %", fmt::format("{:.1f} %", 100 * fp8_share(shares))});
  return layers.str() + "\n" + kinds.str();
}

}  // namespace octet
