#include <algorithm>
#include <bit>
#include <cmath>

#include "backend/cpu/cpu_ops.h"
#include "backend/cpu/element.h"
#include "backend/cpu/thread_scratch.h"

namespace octet {

namespace {

// Work is done in tiles of 128 x 128: every block of every granularity, in both copies, lies inside one tile.
constexpr int64_t kTile = 128;
constexpr int64_t kMaxGroups = 64;  // of tiles, each with one partial result

uint32_t magnitude(float x) {
  return std::bit_cast<uint32_t>(x) & 0x7FFFFFFF;
}

uint32_t largest_magnitude(const float* x, int64_t count) {
  uint32_t result = 0;
  for (int64_t i = 0; i < count; ++i) result = std::max(result, magnitude(x[i]));
  return result;
}

// NaN > Inf > finite, like the order of the magnitude bits.
float larger(float a, float b) {
  return std::bit_cast<float>(std::max(magnitude(a), magnitude(b)));
}

struct Partial {
  QuantStats stats;
  uint32_t amax = 0;
};

// One K-major copy as the tiles write it.
struct Copy {
  DType format;
  Granularity granularity;
  bool pow2;
  float scale, inverse;  // Granularity::Tensor
  uint8_t* codes;
  int64_t depth;   // length of a row
  int64_t blocks;  // scales per row
  Tensor scales;
  int64_t counted_step;  // of the rows whose statistics are taken here; 0: none
};

void count(const float* x, const uint8_t* codes, int64_t n, float scale, float factor, DType format,
           QuantStats& stats) {
  const float* values = fp8_values(format);
  const float bound = saturation_bound(format);
  int64_t saturated = 0, flushed = 0;
  double signal = 0, noise = 0;
  for (int64_t i = 0; i < n; ++i) {
    saturated += std::fabs(x[i] * scale) > bound;
    flushed += x[i] != 0.0f && (codes[i] & 0x7F) == 0;
    if (magnitude(x[i]) >= 0x7F800000) continue;
    const double value = static_cast<double>(x[i]);
    const double error = static_cast<double>(values[codes[i]] * factor) - value;
    signal += value * value;
    noise += error * error;
  }
  stats.elements += static_cast<double>(n);
  stats.saturated += static_cast<double>(saturated);
  stats.flushed += static_cast<double>(flushed);
  stats.signal += signal;
  stats.noise += noise;
}

void encode(const float* x, uint8_t* codes, int64_t n, float scale, DType format) {
  if (format == DType::E5M2) {
    for (int64_t i = 0; i < n; ++i) codes[i] = to_e5m2(x[i] * scale);
  } else {
    for (int64_t i = 0; i < n; ++i) codes[i] = to_e4m3(x[i] * scale);
  }
}

// Quantises a tile whose first element is (row0, k0) of the copy; tile rows are kTile apart.
void quantize_tile(const Copy& copy, const float* tile, int64_t rows, int64_t depth, int64_t row0, int64_t k0,
                   uint32_t tile_amax, bool stats_wanted, QuantStats& stats) {
  const bool pow2 = copy.pow2 || copy.granularity == Granularity::Row32;
  const auto run = [&](int64_t r, int64_t begin, int64_t end, float scale, float factor) {
    const float* x = tile + r * kTile + begin;
    uint8_t* codes = copy.codes + (row0 + r) * copy.depth + k0 + begin;
    encode(x, codes, end - begin, scale, copy.format);
    if (stats_wanted && copy.counted_step > 0 && (row0 + r) % copy.counted_step == 0)
      count(x, codes, end - begin, scale, factor, copy.format, stats);
  };
  if (copy.granularity == Granularity::Tensor) {
    for (int64_t r = 0; r < rows; ++r) run(r, 0, depth, copy.scale, copy.inverse);
    return;
  }
  if (copy.granularity == Granularity::Block128) {
    const float factor = block_factor(std::bit_cast<float>(tile_amax), copy.format, pow2);
    copy.scales.as<float>()[row0 / kTile * copy.blocks + k0 / kTile] = factor;
    for (int64_t r = 0; r < rows; ++r) run(r, 0, depth, 1.0f / factor, factor);
    return;
  }
  const int64_t block = block_depth(copy.granularity);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t begin = 0; begin < depth; begin += block) {
      const int64_t end = std::min(depth, begin + block);
      const float amax = std::bit_cast<float>(largest_magnitude(tile + r * kTile + begin, end - begin));
      const float factor = block_factor(amax, copy.format, pow2);
      const int64_t place = (row0 + r) * copy.blocks + (k0 + begin) / block;
      if (copy.granularity == Granularity::Row32) {
        copy.scales.as<uint8_t>()[place] = static_cast<uint8_t>(std::bit_cast<uint32_t>(factor) >> 23);
      } else {
        copy.scales.as<float>()[place] = factor;
      }
      run(r, begin, end, 1.0f / factor, factor);
    }
  }
}

Copy make_copy(const QuantizedMatrix& matrix, DType format, const QuantizeRule& rule, int64_t rows,
               int64_t depth) {
  constexpr std::string_view op = "quantize";
  require(is_fp8(format) && matrix.codes.dtype == format, "[{}] the codes are {}, the rule says {}", op,
          name_of(matrix.codes.dtype), name_of(format));
  require(matrix.codes.rows() == rows && matrix.codes.cols() == depth,
          "[{}] the codes are {}, expected ({}, {})", op, matrix.codes.shape.to_string(), rows, depth);
  require(matrix.granularity == rule.granularity, "[{}] the copy and the rule differ in granularity", op);
  Copy copy{.format = format,
            .granularity = rule.granularity,
            .pow2 = rule.pow2_scales,
            .scale = 1.0f,
            .inverse = 1.0f,
            .codes = matrix.codes.as<uint8_t>(),
            .depth = depth,
            .blocks = 0,
            .scales = matrix.scales,
            .counted_step = 0};
  if (rule.granularity == Granularity::Tensor) return copy;
  copy.blocks = div_up(depth, block_depth(rule.granularity));
  const int64_t scale_rows = rule.granularity == Granularity::Block128 ? div_up(rows, kTile) : rows;
  const DType scale_type = rule.granularity == Granularity::Row32 ? DType::E8M0 : DType::F32;
  require(
      matrix.scales && matrix.scales.dtype == scale_type && matrix.scales.numel() == scale_rows * copy.blocks,
      "[{}] the scales are {} {}, expected {} ({}, {})", op, name_of(matrix.scales.dtype),
      matrix.scales.shape.to_string(), name_of(scale_type), scale_rows, copy.blocks);
  return copy;
}

template <class T>
void load_tile(float* tile, const T* x, int64_t rows, int64_t cols, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) tile[r * kTile + c] = cpu::load(x[r * stride + c]);
  }
}

void transpose_tile(float* __restrict out, const float* __restrict in, int64_t rows, int64_t cols) {
  constexpr int64_t kStep = 8;  // a few cache lines of either side at a time
  for (int64_t r0 = 0; r0 < rows; r0 += kStep) {
    const int64_t r1 = std::min(rows, r0 + kStep);
    for (int64_t c = 0; c < cols; ++c) {
      for (int64_t r = r0; r < r1; ++r) out[c * kTile + r] = in[r * kTile + c];
    }
  }
}

struct Tiles {
  float values[kTile * kTile], flipped[kTile * kTile];
};

}  // namespace

void CpuOps::quantize(const Operand& operand) {
  const cpu::HostScope scope = timed({.kind = OpKind::Quantize, .op = "quantize"});
  constexpr std::string_view op = "quantize";
  require(operand.fp8 && operand.fp8->slot, "[{}] the operand has no FP8 form or no slot", op);
  const Quantized& target = *operand.fp8;
  const Tensor& x = operand.dense;
  const QuantizeRule& rule = target.rule();
  QuantStats* const stats_to = target.stats();
  ScaleSlot& slot = *target.slot;
  const int64_t rows = x.rows(), cols = x.cols();
  const bool per_tensor = rule.granularity == Granularity::Tensor;

  Copy rowwise{}, colwise{};
  if (target.rowwise) rowwise = make_copy(target.rowwise, rule.format_rowwise, rule, rows, cols);
  if (target.colwise) colwise = make_copy(target.colwise, rule.format_colwise, rule, cols, rows);
  rowwise.counted_step = rowwise.codes ? stats_row_step(rows, cols, false) : 0;
  colwise.counted_step = rowwise.codes ? 0 : stats_row_step(rows, cols, true);

  const int64_t tile_cols = div_up(cols, kTile), tiles = div_up(rows, kTile) * tile_cols;
  const int64_t per_group = std::max<int64_t>(1, div_up(tiles, kMaxGroups)),
                groups = div_up(tiles, per_group);
  cpu::Scratch space = scratch();
  Partial* partials = space.take<Partial>(groups);
  // fn(partial, first row, first column, rows, columns) for every tile.
  const auto for_tiles = [&](const auto& fn) {
    parallel_.for_each(groups, [&](int64_t group, int) {
      for (int64_t i = group * per_group; i < std::min(tiles, (group + 1) * per_group); ++i) {
        const int64_t row0 = i / tile_cols * kTile, col0 = i % tile_cols * kTile;
        fn(partials[group], row0, col0, std::min(kTile, rows - row0), std::min(kTile, cols - col0));
      }
    });
  };
  std::fill_n(partials, groups, Partial{});
  const auto record_amax = [&] {
    uint32_t amax = 0;
    for (int64_t i = 0; i < groups; ++i) amax = std::max(amax, partials[i].amax);
    slot.amax_last = std::bit_cast<float>(amax);
    slot.amax = larger(slot.amax, slot.amax_last);
  };

  cpu::dispatch_real(op, x.dtype, [&]<class T>(T) {
    const T* values = x.as<T>();
    if (per_tensor) {
      for_tiles([&](Partial& partial, int64_t row0, int64_t col0, int64_t tile_rows, int64_t tile_columns) {
        uint32_t amax = 0;
        for (int64_t r = 0; r < tile_rows; ++r) {
          const T* row = values + (row0 + r) * cols + col0;
          for (int64_t c = 0; c < tile_columns; ++c) amax = std::max(amax, magnitude(cpu::load(row[c])));
        }
        partial.amax = std::max(partial.amax, amax);
      });
      record_amax();
      if (!target.keeps_scale()) {
        slot.scale_rowwise =
            scale_from_amax(slot.amax_last, rule.format_rowwise, rule.margin, slot.scale_rowwise);
        slot.scale_colwise =
            scale_from_amax(slot.amax_last, rule.format_colwise, rule.margin, slot.scale_colwise);
        slot.inverse_rowwise = 1.0f / slot.scale_rowwise;
        slot.inverse_colwise = 1.0f / slot.scale_colwise;
      }
      rowwise.scale = slot.scale_rowwise, rowwise.inverse = slot.inverse_rowwise;
      colwise.scale = slot.scale_colwise, colwise.inverse = slot.inverse_colwise;
    }
    for_tiles([&](Partial& partial, int64_t row0, int64_t col0, int64_t tile_rows, int64_t tile_columns) {
      auto& [tile, flipped] = cpu::thread_scratch<Tiles>();
      load_tile(tile, values + row0 * cols + col0, tile_rows, tile_columns, cols);
      uint32_t amax = 0;
      if (!per_tensor) {
        for (int64_t r = 0; r < tile_rows; ++r)
          amax = std::max(amax, largest_magnitude(tile + r * kTile, tile_columns));
        partial.amax = std::max(partial.amax, amax);
      }
      if (rowwise.codes) {
        quantize_tile(rowwise, tile, tile_rows, tile_columns, row0, col0, amax, stats_to, partial.stats);
      }
      if (colwise.codes) {
        transpose_tile(flipped, tile, tile_rows, tile_columns);
        quantize_tile(colwise, flipped, tile_columns, tile_rows, col0, row0, amax, stats_to,
                      partial.stats);
      }
    });
  });
  if (!per_tensor) record_amax();
  if (stats_to) {
    QuantStats& stats = *stats_to;
    for (int64_t i = 0; i < groups; ++i) {
      const QuantStats& partial = partials[i].stats;
      stats.elements += partial.elements;
      stats.saturated += partial.saturated;
      stats.flushed += partial.flushed;
      stats.signal += partial.signal;
      stats.noise += partial.noise;
    }
    stats.amax = static_cast<double>(larger(static_cast<float>(stats.amax), slot.amax_last));
  }
  if (operand.column_sum) add_column_sum(operand.column_sum, x, {}, 1.0f);
}

void CpuOps::update_delayed_scales(const DelayedScaling& state) {
  const cpu::HostScope scope = timed({.kind = OpKind::Quantize, .op = "update_delayed_scales"});
  if (state.count == 0) return;
  constexpr std::string_view op = "update_delayed_scales";
  const int64_t length = state.history.cols();
  require(state.history.rows() == state.count && length > 0 && state.formats.numel() == 2 * state.count &&
              state.slots.bytes() >= state.count * static_cast<int64_t>(sizeof(ScaleSlot)),
          "[{}] {} slots with a history {} and {} formats", op, state.count, state.history.shape.to_string(),
          state.formats.numel());
  auto* slots = reinterpret_cast<ScaleSlot*>(state.slots.as<uint8_t>());
  const uint8_t* formats = state.formats.as<uint8_t>();
  const bool dropped = state.norm && !(state.norm.as<float>()[0] <= std::numeric_limits<float>::max());
  for (int64_t i = 0; i < state.count; ++i) {
    ScaleSlot& slot = slots[i];
    if (dropped) slot.amax = 0.0f;
    if (dropped || !state.due) continue;
    float* history = state.history.as<float>() + i * length;
    if (slot.amax > 0.0f && slot.amax <= std::numeric_limits<float>::max()) {
      std::copy_backward(history, history + length - 1, history + length);
      history[0] = slot.amax;
    }
    slot.amax = 0.0f;
    const float amax = state.most_recent ? history[0] : *std::max_element(history, history + length);
    const auto rowwise = static_cast<DType>(formats[2 * i]), colwise = static_cast<DType>(formats[2 * i + 1]);
    slot.scale_rowwise = scale_from_amax(amax, rowwise, state.margin, slot.scale_rowwise);
    slot.scale_colwise = scale_from_amax(amax, colwise, state.margin, slot.scale_colwise);
    slot.inverse_rowwise = 1.0f / slot.scale_rowwise;
    slot.inverse_colwise = 1.0f / slot.scale_colwise;
  }
}

}  // namespace octet
