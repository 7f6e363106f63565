#include "generate/generate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "data/tokenizer/bytes_tokenizer.h"
#include "support/error_of.h"
#include "support/model_fixture.h"

namespace octet {
namespace {

struct GenerateIds : testing::Test {
  Decoder& decoder(int64_t sequences, int64_t capacity) {
    model_decoder = std::make_unique<Decoder>(test::two_layers("llama-tiny"),
                                              DecoderShape{sequences, capacity, 16}, DType::F32, *device);
    model_decoder->allocate();
    model_decoder->parameters().initialise(*device, 9);
    return *model_decoder;
  }
  std::unique_ptr<Device> device = make_cpu_device(2);
  std::unique_ptr<Decoder> model_decoder;
  const SampleOptions greedy{.max_tokens = 12, .temperature = 0};
  const SampleOptions drawn{.max_tokens = 12, .temperature = 1, .seed = 5};
};

TEST_F(GenerateIds, AreTheSameForTheSameSeedAndOthersForAnother) {
  const std::vector<std::vector<int32_t>> prompt = {{1, 2, 3}};
  const auto first = generate_ids(decoder(1, 32), prompt, drawn, {}, {});
  EXPECT_EQ(first[0].size(), 12u);
  EXPECT_EQ(generate_ids(decoder(1, 32), prompt, drawn, {}, {}), first);
  SampleOptions other = drawn;
  other.seed = 6;
  EXPECT_NE(generate_ids(decoder(1, 32), prompt, other, {}, {}), first);
}

TEST_F(GenerateIds, GreedyRowsDoNotDependOnTheirNeighbours) {
  const std::vector<std::vector<int32_t>> prompts = {{7, 8}, {100}, {9, 4, 200, 17, 3}};
  const auto together = generate_ids(decoder(3, 32), prompts, greedy, {}, {});
  for (size_t i = 0; i < prompts.size(); ++i)
    EXPECT_EQ(generate_ids(decoder(1, 32), {prompts[i]}, greedy, {}, {})[0], together[i]) << i;
}

TEST_F(GenerateIds, EndAtAnEndIdWhichIsGiven) {
  const std::vector<std::vector<int32_t>> prompts = {{7, 8}, {100}};
  const auto all = generate_ids(decoder(2, 32), prompts, drawn, {}, {});
  const std::vector<int32_t> end = {all[0][4]};
  const auto ended = generate_ids(decoder(2, 32), prompts, drawn, end, {});
  const auto first = std::find(all[0].begin(), all[0].end(), end[0]);
  EXPECT_EQ(ended[0], std::vector<int32_t>(all[0].begin(), first + 1));
}

TEST_F(GenerateIds, AFullSequenceEndsOrForgets) {
  const auto ended = generate_ids(decoder(1, 8), {{1, 2, 3}}, greedy, {}, {});
  EXPECT_EQ(ended[0].size(), 6u);  // the last one is made of a full sequence
  const auto slid = generate_ids(decoder(1, 8), {{1, 2, 3}}, greedy, {}, {.slide = true});
  EXPECT_EQ(slid[0].size(), 12u);
  EXPECT_TRUE(std::equal(ended[0].begin(), ended[0].end(), slid[0].begin()));
}

TEST_F(GenerateIds, TheCallerMayEndARow) {
  std::vector<int32_t> seen;
  const auto on_token = [&](size_t, int32_t id) {
    seen.push_back(id);
    return seen.size() < 3;
  };
  const auto ids = generate_ids(decoder(1, 32), {{1, 2, 3}}, greedy, {}, {.on_token = on_token});
  EXPECT_EQ(ids[0], seen);
  EXPECT_EQ(seen.size(), 3u);
}

TEST_F(GenerateIds, NumbersThatAreNoneAreAnError) {
  Decoder& broken = decoder(1, 32);
  const Tensor gain = broken.parameters()["final_norm.gain"].weight;
  const std::vector<float> nan(static_cast<size_t>(gain.numel()), NAN);
  device->copy_to_device(gain, nan.data());
  for (const SampleOptions& options : {greedy, drawn}) {
    EXPECT_NE(error_of([&] {
                generate_ids(broken, {{1, 2, 3}}, options, {}, {});
              }).find("the logits of the model are NaN"),
              std::string::npos);
    broken.clear(0);
  }
}

// A stop of several tokens, which the tokens before it share.
TEST(Generator, ATextEndsAfterItsStop) {
  test::TinyRun run({});
  const BytesTokenizer tokenizer;
  Generator generator(*run.model, *run.device, tokenizer, 2, 64);
  const std::vector<std::string> prompts = {"ab", "xyz"};
  SampleOptions options{.max_tokens = 40, .temperature = 1.0, .seed = 3};
  const std::vector<std::string> whole = generator.continue_prompts(prompts, options);
  options.stop = whole[0].substr(11, 3);
  const std::vector<std::string> stopped = generator.continue_prompts(prompts, options);
  EXPECT_EQ(stopped[0], whole[0].substr(0, whole[0].find(options.stop) + 3));
  EXPECT_EQ(stopped[1], whole[1].substr(0, std::min(whole[1].size(), whole[1].find(options.stop)) + 3));
}

}  // namespace
}  // namespace octet
