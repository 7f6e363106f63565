// What a Transformer decides when it plans its buffers.

#include <gtest/gtest.h>

#include <algorithm>

#include "model/transformer.h"
#include "support/error_of.h"

namespace octet {
namespace {

int64_t planned_head_rows(int64_t tokens, int64_t most_rows) {
  const ModelConfig config = model_preset("llama-tiny");
  const auto device = make_cpu_device(1);
  const int64_t row_bytes = config.padded_vocab() * static_cast<int64_t>(size_of(DType::BF16));
  const Transformer model(
      config, {.rows = 1, .length = tokens, .head_chunk_bytes = most_rows * row_bytes + row_bytes / 2},
      {.precision = Precision::Bf16}, *device);
  const auto& buffers = model.plan().buffers();
  const auto logits =
      std::find_if(buffers.begin(), buffers.end(), [](const PlannedBuffer& b) { return b.name == "logits"; });
  return logits == buffers.end() ? -1 : logits->shape[0];
}

TEST(TransformerPlan, ChunksOfTheHeadFitAndAreOfAboutOneSize) {
  struct Case {
    int64_t tokens, most_rows, rows;
  };
  for (const Case& c :
       {Case{1000, 4096, 1000},  // one chunk
        Case{4100, 4112, 4100},  // one chunk that is no whole number of tiles
        Case{8192, 2048, 2048},  // whole tiles as they are
        Case{8000, 4096, 4096},  // whole tiles, 3904 in the last chunk
        Case{5125, 1040, 1040},  // whole tiles would be 1152 rows, more than the memory allows
        Case{5125, 1152, 1040},  // whole tiles would leave 517 rows for the last chunk
        Case{2000, 600, 512},    // small chunks are multiples of 16
        Case{100, 5, 32}}) {     // the memory allows too little: 16 rows of fp32 logits must fit
    EXPECT_EQ(planned_head_rows(c.tokens, c.most_rows), c.rows)
        << c.tokens << " tokens, at most " << c.most_rows << " rows";
  }
}

TEST(TransformerPlan, SizesAreCheckedBeforeAnythingIsComputedFromThem) {
  const auto device = make_cpu_device(1);
  const auto refusal = [&](const ModelConfig& config, int64_t rows, int64_t length) {
    return error_of([&] { Transformer(config, {.rows = rows, .length = length}, {}, *device); });
  };
  ModelConfig config = model_preset("llama-tiny");
  EXPECT_EQ(refusal(config, 1, 0), "[model] a micro-batch of 1 x 0 tokens, expected at least 1 x 1");
  EXPECT_EQ(refusal(config, 0, 8), "[model] a micro-batch of 0 x 8 tokens, expected at least 1 x 1");
  config.vocab = 0;
  EXPECT_EQ(refusal(config, 1, 8), "[model llama-tiny] vocab_size is 0, expected at least 1");
  config = model_preset("gpt2-tiny");
  config.max_positions = 7;
  EXPECT_EQ(refusal(config, 1, 8),
            "[model gpt2-tiny] a sequence of 8 tokens is longer than the model's 7 positions");
}

}  // namespace
}  // namespace octet
