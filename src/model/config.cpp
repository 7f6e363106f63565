#include "model/config.h"

#include <cmath>
#include <numbers>

namespace octet {

AttentionShape ModelConfig::attention() const {
  return {heads, kv_heads, head_dim, static_cast<float>(1.0 / std::sqrt(static_cast<double>(head_dim))),
          window};
}

int64_t ModelConfig::parameter_count() const {
  const int64_t qkv = attention().qkv_width(), out = attention().out_width();
  const int64_t norm_size = norm == NormKind::LayerNorm ? 2 * width : width;
  int64_t block = qkv * width + width * out + up_width() * width + width * ffn + 2 * norm_size;
  if (qkv_bias) block += qkv;
  if (qk_norm) block += 2 * head_dim;
  if (out_bias) block += width + up_width() + width;
  return vocab * width * (tied_head ? 1 : 2) + (learned_positions ? max_positions * width : 0) +
         layers * block + norm_size;
}

void ModelConfig::validate() const {
  const auto positive = [&](const char* field, int64_t value) {
    require(value > 0, "[model {}] {} is {}, expected at least 1", name, field, value);
  };
  positive("vocab_size", vocab);
  positive("the number of layers", layers);
  positive("the hidden size", width);
  positive("the number of heads", heads);
  positive("the number of key/value heads", kv_heads);
  positive("the head dimension", head_dim);
  positive("the intermediate size", ffn);
  positive("the number of positions", max_positions);
  require(heads % kv_heads == 0, "[model {}] {} heads are not a multiple of {} key/value heads", name, heads,
          kv_heads);
  require(learned_positions || head_dim % 2 == 0,
          "[model {}] the head dimension is {}, expected an even number for rotary positions", name,
          head_dim);
  require(vocab <= (int64_t{1} << 24) && layers <= 4096 && width <= (int64_t{1} << 20) &&
              ffn <= (int64_t{1} << 22) && heads <= 4096 && head_dim <= 4096 &&
              max_positions <= (int64_t{1} << 26),
          "[model {}] a dimension is too large: vocabulary {}, {} layers, width {}, ffn {}, {} heads of {}, "
          "{} positions",
          name, vocab, layers, width, ffn, heads, head_dim, max_positions);
  require(window >= 0, "[model {}] the sliding window is {}, expected 0 (none) or more", name, window);
  require(learned_positions || (rope_theta > 0 && std::isfinite(rope_theta)),
          "[model {}] rope_theta is {}, expected more than 0", name, rope_theta);
  require(norm_epsilon > 0, "[model {}] the norm's epsilon is {}, expected more than 0", name, norm_epsilon);
}

void check_sequence_length(const ModelConfig& config, std::string_view key, int64_t length,
                           bool random_start) {
  if (length <= config.max_positions) return;
  const std::string fact = fmt::format("{} {} is more than the {} positions of model {}", key, length,
                                       config.max_positions, config.name);
  if (random_start) fail_config("{}; set max_position_embeddings {} to make it longer", fact, length);
  if (config.learned_positions)
    fail_config("{}, which has one learned vector per position. Use shorter sequences", fact);
  const std::string scaling = config.rope_scaling
                                  ? fmt::format("its rope_scaling of type llama3 with factor {} is included",
                                                config.rope_scaling->factor)
                                  : "it has no rope_scaling";
  fail_config(
      "{} ({}). It was never trained on later positions. Use shorter sequences, or change "
      "max_position_embeddings and rope_scaling in its config.json",
      fact, scaling);
}

std::vector<double> rope_frequencies(const ModelConfig& config) {
  const int64_t half = config.head_dim / 2;
  std::vector<double> frequencies(static_cast<size_t>(half));
  for (int64_t i = 0; i < half; ++i) {
    double frequency =
        std::pow(config.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(config.head_dim));
    if (config.rope_scaling) {
      const RopeScaling& scaling = *config.rope_scaling;
      const auto original = static_cast<double>(scaling.original_max_positions);
      const double wavelength = 2 * std::numbers::pi / frequency;
      const double low_wavelength = original / scaling.low_freq_factor;
      const double high_wavelength = original / scaling.high_freq_factor;
      if (wavelength > low_wavelength) {
        frequency /= scaling.factor;
      } else if (wavelength > high_wavelength) {
        const double blend = (original / wavelength - scaling.low_freq_factor) /
                             (scaling.high_freq_factor - scaling.low_freq_factor);
        frequency = (1 - blend) * frequency / scaling.factor + blend * frequency;
      }
    }
    frequencies[static_cast<size_t>(i)] = frequency;
  }
  return frequencies;
}

std::vector<float> rope_table(const ModelConfig& config, int64_t positions) {
  const std::vector<double> frequencies = rope_frequencies(config);
  const size_t half = frequencies.size();
  std::vector<float> table(static_cast<size_t>(positions) * 2 * half);
  for (int64_t p = 0; p < positions; ++p) {
    float* row = table.data() + static_cast<size_t>(p) * 2 * half;
    for (size_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(p) * frequencies[i];
      row[i] = static_cast<float>(std::cos(angle));
      row[half + i] = static_cast<float>(std::sin(angle));
    }
  }
  return table;
}

}  // namespace octet
