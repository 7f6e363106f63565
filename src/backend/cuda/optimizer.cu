#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <memory>
#include <vector>

#include "backend/cuda/optimizer.cuh"
#include "ops/remainder.h"

// AdamW on the host's side: what is checked, and how parameters become launches.

namespace octet {
namespace {

bool has_small_moments(const AdamWParameter& p) {
  return p.m.dtype == DType::E4M3;
}

void check_parameter(const AdamWParameter& p) {
  const int64_t count = p.weight.numel();
  const auto real = [](const Tensor& x) { return x.dtype == DType::F32 || x.dtype == DType::BF16; };
  require(
      real(p.weight) && real(p.gradient) && (real(p.m) || has_small_moments(p)) &&
          p.v.dtype == dtype_of_v(p.m.dtype),
      "[cuda] adamw: weight {}, gradient {}, m {}, v {}: expected fp32 or bf16, or e4m3 and u8 as moments",
      name_of(p.weight.dtype), name_of(p.gradient.dtype), name_of(p.m.dtype), name_of(p.v.dtype));
  require(p.gradient.numel() == count && p.m.numel() == count && p.v.numel() == count,
          "[cuda] adamw: gradient {}, m {} or v {} does not fit the weight {}", p.gradient.shape.to_string(),
          p.m.shape.to_string(), p.v.shape.to_string(), p.weight.shape.to_string());
  require_remainder("cuda adamw", p.weight, p.remainder);
  require(p.first_row >= 0 && p.first_row % 2 == 0,
          "[cuda] adamw: the first row is {}, expected an even number", p.first_row);
  if (!has_small_moments(p)) return;
  const int64_t blocks = p.weight.rows() * div_up(p.weight.cols(), kMomentBlock);
  for (const Tensor& scales : {p.m_scales, p.v_scales}) {
    require(scales && scales.dtype == DType::F32 && scales.numel() == blocks,
            "[cuda] adamw: {} scales ({}) of 8-bit moments, expected {} in fp32", scales ? scales.numel() : 0,
            name_of(scales.dtype), blocks);
  }
}

Operand weight_operand(const AdamWParameter& p) {
  Operand operand;
  operand.dense = p.weight.reshaped({p.weight.rows(), p.weight.cols()});
  operand.fp8 = p.fp8;
  return operand;
}

// The kernel writes only FP8 copies whose scale is already known.
bool casts_itself(const AdamWParameter& p) {
  return p.fp8 && p.fp8->rule().granularity == Granularity::Tensor && p.fp8->keeps_scale();
}

device::AdamKind kind_of(const AdamWParameter& p) {
  using device::AdamMoments;
  return {.gradient_bf16 = p.gradient.dtype == DType::BF16,
          .moments = has_small_moments(p)       ? AdamMoments::Small
                     : p.m.dtype == DType::BF16 ? AdamMoments::Bf16
                                                : AdamMoments::F32,
          .remainder = kind_of_remainder(p.remainder)};
}

// The learning rate of a parameter.
double rate_of(const AdamWOptions& options, float scale) {
  return static_cast<double>(options.learning_rate) * static_cast<double>(scale);
}

// Whether every element is updated for itself: no random bits by row, no blocks, no copy with rows and columns.
bool is_elementwise(const AdamWParameter& p) {
  const bool exact = p.weight.dtype == DType::F32 || kind_of_remainder(p.remainder) == RemainderKind::Exact;
  return exact && !has_small_moments(p) && !casts_itself(p);
}

device::AdamEntry make_entry(const AdamWParameter& p, const AdamWOptions& options) {
  constexpr const char* op = "adamw";
  device::AdamEntry entry{};
  entry.weight = p.weight.data;
  entry.remainder = p.remainder.data;
  entry.gradient = p.gradient.data;
  entry.m = p.m.data;
  entry.v = p.v.data;
  entry.m_scales = static_cast<float*>(p.m_scales.data);
  entry.v_scales = static_cast<float*>(p.v_scales.data);
  entry.rows = p.weight.rows();
  entry.cols = p.weight.cols();
  // A matrix of few rows or columns, such as an adapter, would leave most of every tile empty.
  if (std::min(entry.rows, entry.cols) < device::kAdamTile && is_elementwise(p) &&
      p.weight.numel() % device::kAdamTile == 0) {
    entry.rows = p.weight.numel() / device::kAdamTile;
    entry.cols = device::kAdamTile;
  }
  entry.stream = p.stream;
  entry.first_row = p.first_row;
  entry.keep =
      static_cast<float>(1.0 - rate_of(options, p.learning_rate_scale) * static_cast<double>(p.weight_decay));
  entry.gradient_bf16 = p.gradient.dtype == DType::BF16;
  entry.moments_bf16 = p.m.dtype == DType::BF16;
  if (casts_itself(p)) {
    check_operand(weight_operand(p), op);
    entry.cast = cast_target(*p.fp8);
    entry.cast.record = true;
    require(!entry.cast.colwise || entry.rows % 16 != 0 || aligned16(entry.cast.colwise),
            "[cuda] {}: the transposed FP8 copy is not 16-byte aligned", op);
  }
  entry.vector = entry.cols % 8 == 0 && aligned16(entry.weight) && aligned16(entry.remainder) &&
                 aligned16(entry.gradient) && aligned16(entry.m) && aligned16(entry.v) &&
                 reinterpret_cast<uintptr_t>(entry.cast.rowwise) % 8 == 0;
  return entry;
}

float step_size(const AdamWOptions& options, float scale) {
  const double correction =
      1.0 - std::pow(static_cast<double>(options.beta1), static_cast<double>(options.step));
  return static_cast<float>(rate_of(options, scale) / correction);
}

// Everything but the parameters and the step size.
std::unique_ptr<device::AdamTable> make_table(const AdamWOptions& options) {
  const auto steps = static_cast<double>(options.step);
  const double correction2 = 1.0 - std::pow(static_cast<double>(options.beta2), steps);
  auto table = std::make_unique<device::AdamTable>();
  table->beta1 = options.beta1;
  table->beta2 = options.beta2;
  table->one_minus_beta1 = static_cast<float>(1.0 - static_cast<double>(options.beta1));
  table->one_minus_beta2 = static_cast<float>(1.0 - static_cast<double>(options.beta2));
  table->root_beta2 = static_cast<float>(std::sqrt(static_cast<double>(options.beta2)));
  table->root_one_minus_beta2 = static_cast<float>(std::sqrt(1.0 - static_cast<double>(options.beta2)));
  table->inverse_root = static_cast<float>(1.0 / std::sqrt(correction2));
  table->epsilon = options.epsilon;
  table->seed = options.seed;
  table->keys = Philox(options.seed).keys<kRoundingRounds>();
  table->step = options.step;
  return table;
}

// A parameter on its way to the launch of its kind.
struct Prepared {
  device::AdamEntry entry;
  device::AdamKind kind;
  float rate_scale;
  bool bf16;   // the weight
  bool tiles;  // bf16 in whole vectors: for the kernels of optimizer_tile.cu

  device::AdamGeneral general() const {
    return {.bf16 = bf16,
            .compact = kind.remainder == RemainderKind::Compact,
            .small_moments = kind.moments == device::AdamMoments::Small};
  }
};

std::vector<Prepared> prepare(std::span<const AdamWParameter> parameters, const AdamWOptions& options) {
  const bool epsilon_in_range = options.epsilon >= 0x1p-30f && options.epsilon <= 1.0f;
  std::vector<Prepared> prepared;
  for (const AdamWParameter& p : parameters) {
    if (p.weight.numel() == 0) continue;
    const device::AdamEntry entry = make_entry(p, options);
    const bool bf16 = p.weight.dtype == DType::BF16;
    const bool tiles = epsilon_in_range && entry.vector && bf16 && entry.cols < (int64_t{1} << 28);
    prepared.push_back({entry, kind_of(p), p.learning_rate_scale, bf16, tiles});
  }
  return prepared;
}

// Calls launch(tiles) for the parameters for which belongs(parameter) is true, as many at a time as the table holds.
template <class Belongs, class Launch>
void launch_all(device::AdamTable& table, const std::vector<Prepared>& prepared, const Belongs& belongs,
                int64_t tile_cols, const Launch& launch) {
  int64_t tiles = 0;
  int count = 0;
  const auto flush = [&] {
    if (count > 0) launch(tiles);
    tiles = count = 0;
    std::fill(std::begin(table.first_tiles), std::end(table.first_tiles), INT32_MAX);
  };
  flush();
  for (const Prepared& p : prepared) {
    if (!belongs(p)) continue;
    device::AdamEntry& entry = table.entries[count] = p.entry;
    entry.first_tile = tiles;
    table.first_tiles[count++] = narrow<int32_t>(tiles);
    tiles += div_up(entry.rows, device::kAdamTile) * div_up(entry.cols, tile_cols);
    if (count == device::kParametersPerLaunch) flush();
  }
  flush();
}

// Parameters of one kind and one learning rate share launches.
void launch_with_rate(CudaOps& ops, device::AdamTable& table, const std::vector<Prepared>& prepared,
                      float rate_scale, const float* clip) {
  using device::AdamGeneral, device::AdamKind, device::AdamMoments;
  for (const bool gradient_bf16 : {false, true}) {
    for (const AdamMoments moments : {AdamMoments::F32, AdamMoments::Bf16, AdamMoments::Small}) {
      for (const RemainderKind remainder :
           {RemainderKind::None, RemainderKind::Compact, RemainderKind::Exact}) {
        const AdamKind kind{gradient_bf16, moments, remainder};
        launch_all(
            table, prepared,
            [&](const Prepared& p) { return p.rate_scale == rate_scale && p.tiles && p.kind == kind; },
            device::kAdamTile, [&](int64_t tiles) { launch_adamw_tiles(ops, table, kind, tiles, clip); });
      }
    }
  }
  for (const AdamGeneral weights :
       {AdamGeneral{.bf16 = true}, AdamGeneral{.bf16 = true, .compact = true}, AdamGeneral{.bf16 = false}}) {
    for (const bool small : {false, true}) {
      AdamGeneral kind = weights;
      kind.small_moments = small;
      launch_all(
          table, prepared,
          [&](const Prepared& p) { return p.rate_scale == rate_scale && !p.tiles && p.general() == kind; },
          device::general_tile_cols(small),
          [&](int64_t tiles) { launch_adamw_general(ops, table, kind, tiles, clip); });
    }
  }
}

// Read and written in all.
double bytes_moved(std::span<const AdamWParameter> parameters) {
  double bytes = 0;
  for (const AdamWParameter& p : parameters) {
    bytes += bytes_of(p.gradient) + 2 * bytes_of(p.weight, p.remainder, p.m, p.v, p.m_scales, p.v_scales);
    if (casts_itself(p)) bytes += bytes_of(p.fp8->rowwise.codes, p.fp8->colwise.codes);
  }
  return bytes;
}

}  // namespace

void CudaOps::adamw(std::span<const AdamWParameter> parameters, Tensor clip, const AdamWOptions& options) {
  require(options.step >= 1, "[cuda] adamw: the step is {}, expected 1 or more", options.step);
  for (const AdamWParameter& p : parameters) check_parameter(p);
  const OpScope scope(profiler_, OpKind::Optimizer, "adamw", bytes_moved(parameters));
  const auto table = make_table(options);
  const std::vector<Prepared> prepared = prepare(parameters, options);
  std::vector<float> rate_scales;  // all that occur: one or two
  for (const Prepared& p : prepared) {
    if (std::ranges::find(rate_scales, p.rate_scale) == rate_scales.end())
      rate_scales.push_back(p.rate_scale);
  }
  for (const float rate_scale : rate_scales) {
    table->step_size = step_size(options, rate_scale);
    launch_with_rate(*this, *table, prepared, rate_scale, static_cast<const float*>(clip.data));
  }
  for (const AdamWParameter& p : parameters) {
    if (!p.fp8) continue;
    if (!casts_itself(p) || p.weight.numel() == 0) {
      quantize(weight_operand(p));
    } else if (p.fp8->stats()) {
      record_stats(weight_operand(p));
    }
  }
}

}  // namespace octet
