#include "train/generate.h"

#include <algorithm>
#include <cmath>

#include "base/philox.h"

namespace octet {
namespace {

RunShape sampling_shape(int64_t rows, int64_t length) {
  return {.rows = rows, .length = length, .training = false, .head_chunk_bytes = 1 << 20};
}

Numerics dense_numerics(const Numerics& numerics) {
  return {.precision = numerics.dense() == DType::F32 ? Precision::Fp32 : Precision::Bf16};
}

}  // namespace

int64_t generator_bytes(Transformer& trained, Backend& backend, int64_t rows, int64_t length) {
  const Transformer model(trained.config(), sampling_shape(rows, length), dense_numerics(trained.numerics()),
                          backend, &trained.parameters());
  return model.plan().peak_bytes();
}

int32_t sample_logits(const std::vector<float>& logits, double temperature, double u) {
  const auto largest = std::max_element(logits.begin(), logits.end());
  if (temperature <= 0) return static_cast<int32_t>(largest - logits.begin());
  double total = 0;
  std::vector<double> weights(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) {
    weights[i] = std::exp(static_cast<double>(logits[i] - *largest) / temperature);
    total += weights[i];
  }
  double left = u * total;
  for (size_t i = 0; i < weights.size(); ++i) {
    left -= weights[i];
    if (left < 0) return static_cast<int32_t>(i);
  }
  return static_cast<int32_t>(largest - logits.begin());
}

Generator::Generator(Transformer& trained, Backend& backend, const Tokenizer& tokenizer, int64_t rows,
                     int64_t length)
    : model_(trained.config(), sampling_shape(rows, length), dense_numerics(trained.numerics()), backend,
             &trained.parameters()),
      tokenizer_(tokenizer) {
  model_.allocate();
}

std::vector<std::string> Generator::continue_prompts(const std::vector<std::string>& prompts,
                                                     const SampleOptions& options) {
  std::vector<std::string> texts;
  const auto rows = static_cast<size_t>(model_.shape().rows);
  for (size_t begin = 0; begin < prompts.size(); begin += rows) {
    const size_t count = std::min(rows, prompts.size() - begin);
    for (std::string& text : run(std::span(prompts).subspan(begin, count), options))
      texts.push_back(std::move(text));
  }
  return texts;
}

std::vector<std::string> Generator::run(std::span<const std::string> prompts, const SampleOptions& options) {
  const int64_t length = model_.shape().length;
  const auto rows = static_cast<size_t>(model_.shape().rows);
  const int32_t filler = tokenizer_.eos().value_or(0);

  struct Row {
    std::vector<int32_t> ids;
    std::vector<int32_t> added;
    bool done = false;
  };
  std::vector<Row> texts(prompts.size());
  for (size_t r = 0; r < prompts.size(); ++r) {
    texts[r].ids = tokenizer_.encode(prompts[r]);
    if (texts[r].ids.empty()) texts[r].ids.push_back(tokenizer_.bos().value_or(filler));
  }

  std::vector<int32_t> tokens(rows * static_cast<size_t>(length), filler), targets(tokens.size(), -1);
  std::vector<int32_t> positions(tokens.size()), starts;
  for (size_t i = 0; i < positions.size(); ++i)
    positions[i] = static_cast<int32_t>(i % static_cast<size_t>(length));
  for (size_t r = 0; r <= rows; ++r) starts.push_back(static_cast<int32_t>(r * static_cast<size_t>(length)));

  for (int64_t step = 0; step < options.max_tokens; ++step) {
    std::vector<int64_t> wanted;
    std::vector<size_t> wanted_rows;
    for (size_t r = 0; r < texts.size(); ++r) {
      if (texts[r].done) continue;
      const std::vector<int32_t>& ids = texts[r].ids;
      const size_t used = std::min(ids.size(), static_cast<size_t>(length));
      std::copy(ids.end() - static_cast<std::ptrdiff_t>(used), ids.end(),
                tokens.begin() + static_cast<std::ptrdiff_t>(r * static_cast<size_t>(length)));
      wanted.push_back(static_cast<int64_t>(r) * length + static_cast<int64_t>(used) - 1);
      wanted_rows.push_back(r);
    }
    if (wanted.empty()) break;
    model_.load({tokens, targets, positions, starts});
    const std::vector<std::vector<float>> logits = model_.logits_at(wanted);
    for (size_t i = 0; i < wanted_rows.size(); ++i) {
      Row& row = texts[wanted_rows[i]];
      const Philox random(options.seed, wanted_rows[i]);
      const double u = static_cast<double>(random.uniform(static_cast<uint64_t>(step)));
      const int32_t id = sample_logits(logits[i], options.temperature, u);
      row.ids.push_back(id);
      row.done = tokenizer_.eos() == id || id >= tokenizer_.vocab_size();
      if (row.done) continue;
      row.added.push_back(id);
      row.done =
          !options.stop.empty() && tokenizer_.decode(row.added).find(options.stop) != std::string::npos;
    }
  }

  std::vector<std::string> result;
  for (const Row& row : texts) result.push_back(tokenizer_.decode(row.added));
  return result;
}

}  // namespace octet
