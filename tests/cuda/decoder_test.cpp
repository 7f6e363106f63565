#include "model/decoder.h"

#include "fixture.h"
#include "support/plain_choice.h"
#include "support/tiny_run.h"

namespace octet::test {
namespace {

using CudaDecoder = CudaTest;

// Passes that are replayed choose what the logits of passes op by op say: alone and in a batch, while positions become
// so many that new recordings are made.
TEST_F(CudaDecoder, ReplayedPassesChooseFromTheSameLogits) {
  Device& device = **cuda;
  for (const size_t sequences : {1, 3}) {
    const ModelConfig config = two_layers("llama-tiny");
    const DecoderShape shape{.sequences = static_cast<int64_t>(sequences), .capacity = 600};
    Decoder reader(config, shape, DType::BF16, device), chooser(config, shape, DType::BF16, device);
    for (Decoder* decoder : {&reader, &chooser}) {
      decoder->allocate();
      decoder->parameters().initialise(device, 9);
    }
    std::vector<std::vector<int32_t>> next;
    for (size_t s = 0; s < sequences; ++s) next.emplace_back(490 + s, static_cast<int32_t>(5 + s));
    const int64_t replayed = device.graph_counts().replayed;
    for (int step = 0; step < 60; ++step) {
      std::vector<Decoder::Continuation> continuations;
      std::vector<TokenChoice> choices;
      for (size_t s = 0; s < sequences; ++s) {
        continuations.push_back({static_cast<int64_t>(s), next[s]});
        choices.push_back({.top_p = step % 2 == 0 ? 1.0 : 0.9,
                           .temperature = s == 1 ? 0.0f : 1.0f,
                           .uniform = Philox(3, s).uniform(static_cast<uint64_t>(step))});
      }
      const std::vector<Decoder::Logits> logits = reader.read(continuations);
      const std::vector<int32_t> ids = chooser.choose(continuations, choices);
      for (size_t s = 0; s < sequences; ++s) {
        const std::vector<double> exact(logits[s].begin(), logits[s].end());
        ASSERT_EQ(ids[s], plain_choice(exact, choices[s])) << "step " << step << ", sequence " << s;
        next[s] = {ids[s]};
      }
    }
    EXPECT_GT(device.graph_counts().replayed - replayed, 40);
  }
}

}  // namespace
}  // namespace octet::test
