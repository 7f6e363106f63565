// What fits the memory, and that advice which is given where something does not fit holds when it is followed.

#include "plan/resolve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/captured_log.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using Flags = std::vector<std::pair<std::string, std::string>>;

constexpr int64_t kGib = int64_t{1} << 30;

TrainConfig config_of(const Flags& flags) {
  std::vector<std::string> arguments, errors;
  for (const auto& [key, value] : flags) arguments.push_back("--" + key + "=" + value);
  const KeyArguments parsed = parse_key_arguments(train_keys().keys(), arguments, errors);
  throw_config_errors(errors);
  return load_plan_config("", parsed.settings);
}

// A run as `octet plan --gpu h200` plans it.
RunPlan plan_on_h200(const TrainConfig& config, const PlanOptions& options) {
  const std::unique_ptr<Device> device = make_planned_gpu("H200", 139 * kGib, 132);
  return plan_run(config, model_preset(config.model_preset), *device, options);
}
RunPlan on_h200(const Flags& flags) {
  const TrainConfig config = config_of(flags);
  return plan_on_h200(config, plan_options(config));
}

Flags with(Flags flags, const Flags& more) {
  for (const auto& flag : more) {
    std::erase_if(flags, [&](const auto& old) { return old.first == flag.first; });
    flags.push_back(flag);
  }
  return flags;
}

std::string shortage_text(const RunPlan& plan) {
  return plan.shortage ? plan.shortage->text : "";
}

std::vector<std::string> texts(const MemoryAdvice& advice) {
  std::vector<std::string> result;
  for (const KeyChange& change : advice.changes) result.push_back(change.key + "=" + change.value);
  return result;
}

// Follows each advice: the run must fit, and need what was said.
MemoryRemedies followed_remedies(const Flags& flags) {
  const RunPlan plan = on_h200(flags);
  EXPECT_TRUE(plan.shortage);
  MemoryRemedies remedies = plan.shortage->remedies;
  for (const MemoryAdvice& advice : remedies.fitting) {
    EXPECT_FALSE(advice.changes.empty());
    Flags changed = flags;
    for (const KeyChange& change : advice.changes) {
      std::erase_if(changed, [&](const auto& flag) { return flag.first == change.key; });
      changed.emplace_back(change.key, change.value);
    }
    const RunPlan again = on_h200(changed);
    EXPECT_EQ(shortage_text(again), "") << testing::PrintToString(texts(advice));
    EXPECT_EQ(again.bytes(), advice.need) << testing::PrintToString(texts(advice));
  }
  return remedies;
}

TEST(MemoryFit, ALimitAboveTheDeviceIsNone) {
  const CapturedLog log;
  const Flags flags = {{"model_preset", "llama-3.1-8b"}, {"gradient_checkpointing", "none"}};
  const auto limited = [&](const char* gib) {
    Flags with_limit = flags;
    with_limit.emplace_back("device_memory_limit_gb", gib);
    return on_h200(with_limit);
  };
  const RunPlan above = limited("500");
  EXPECT_EQ(above.limit.bytes, 138 * kGib);
  EXPECT_THAT(shortage_text(above),
              HasSubstr("needs 146 GiB, but the device has 138 GiB (8.27 GiB too little)"));
  EXPECT_THAT(log.messages, ElementsAre("device_memory_limit_gb 500 has no effect: H200 has only 138 GiB"));
  const RunPlan below = limited("100");
  EXPECT_EQ(below.limit.bytes, 100 * kGib);
  EXPECT_THAT(shortage_text(below), HasSubstr("needs 146 GiB, but the limit is 100 GiB"));
}

TEST(MemoryFit, AdviceHoldsWhenItIsFollowed) {
  const CapturedLog quiet;
  const Flags large = {{"model_preset", "qwen2.5-14b"}, {"per_device_train_batch_size", "4"}};
  const auto only = [](const MemoryRemedies& remedies) {
    EXPECT_EQ(remedies.fitting.size(), 1u);
    return texts(remedies.fitting.at(0));
  };
  // Weights and state are more than the device has: fewer rows are no way out.
  EXPECT_THAT(only(followed_remedies(large)), ElementsAre("optimizer_state=fp8"));
  EXPECT_THAT(only(followed_remedies(with(large, {{"device_memory_limit_gb", "117"}}))),
              ElementsAre("optimizer_state=fp8", "master_weights=compact"));
  // Only where that is not enough, weights that cost accuracy.
  EXPECT_THAT(only(followed_remedies(with(large, {{"device_memory_limit_gb", "105"}}))),
              ElementsAre("optimizer_state=fp8", "master_weights=stochastic"));
  EXPECT_THAT(only(followed_remedies(with(large, {{"max_seq_length", "1"}}))),
              ElementsAre("optimizer_state=fp8"));
  EXPECT_THAT(only(followed_remedies(with(large, {{"per_device_train_batch_size", "64"}}))),
              ElementsAre("fp8_head=none", "optimizer_state=fp8", "master_weights=compact",
                          "per_device_train_batch_size=36"));
  // Rows that a target is a multiple of.
  EXPECT_THAT(only(followed_remedies(with(large, {{"per_device_train_batch_size", "64"},
                                                  {"device_memory_limit_gb", "137.5"},
                                                  {"target_effective_batch_size", "192"}}))),
              ElementsAre("fp8_head=none", "optimizer_state=fp8", "master_weights=compact",
                          "per_device_train_batch_size=6"));
  EXPECT_THAT(
      only(followed_remedies(with(large, {{"device_memory_limit_gb", "98.5"},
                                          {"max_seq_length", "65536"},
                                          {"per_device_train_batch_size", "1"},
                                          {"require_fp8", "true"}}))),
      ElementsAre("fp8_head=none", "optimizer_state=fp8", "master_weights=stochastic", "max_seq_length=512"));
  EXPECT_THAT(only(followed_remedies(with(large, {{"device_memory_limit_gb", "90"}}))),
              ElementsAre("mixed_precision=bf16", "optimizer_state=fp8", "master_weights=stochastic"));

  // Activations are too much: two ways out.
  const Flags middle = {{"model_preset", "llama-3.1-8b"}};
  const auto two = [](const MemoryRemedies& remedies) {
    EXPECT_EQ(remedies.fitting.size(), 2u);
    EXPECT_THAT(texts(remedies.fitting.at(1)), ElementsAre(HasSubstr("per_device_train_batch_size=")));
    return texts(remedies.fitting.at(0));
  };
  EXPECT_THAT(two(followed_remedies(with(middle, {{"per_device_train_batch_size", "40"}}))),
              ElementsAre("optimizer_state=bf16"));
  EXPECT_THAT(two(followed_remedies(with(middle, {{"gradient_checkpointing", "none"}}))),
              ElementsAre("gradient_checkpointing=mlp"));
  EXPECT_THAT(two(followed_remedies({{"dataset", "demo"}, {"device_memory_limit_gb", "0.19"}})),
              ElementsAre("optimizer_state=bf16"));
}

// The transpose of a weight is made again in as few layers as possible, before anything is recomputed.
TEST(MemoryFit, AsManyLayersKeepTwoCopiesAsFit) {
  const Flags flags = {{"model_preset", "qwen2.5-14b"}, {"per_device_train_batch_size", "4"},
                       {"max_seq_length", "1024"},      {"mixed_precision", "fp8"},
                       {"optimizer_state", "fp8"},      {"master_weights", "compact"}};
  const CapturedLog log;
  const RunPlan plan = on_h200(flags);
  EXPECT_EQ(shortage_text(plan), "");
  EXPECT_EQ(plan.shape.checkpointing, Checkpointing::None);
  const int64_t layers = plan.finetuning.one_copy_layers;
  EXPECT_GT(layers, 0);
  EXPECT_LT(layers, 48);
  ASSERT_FALSE(log.messages.empty());
  EXPECT_THAT(log.messages.back(),
              HasSubstr(fmt::format("one FP8 copy of the weights in {} of 48 layers", layers)));
  // Some room is left, but less than another layer of 272 million weights would need.
  const int64_t room = plan.limit.bytes / 128;
  EXPECT_LE(plan.bytes(), plan.limit.bytes - room);
  EXPECT_GT(plan.bytes() + 280'000'000, plan.limit.bytes - room);
  // Two copies cost recomputation, or the advice is one copy if that is excluded.
  EXPECT_EQ(on_h200(with(flags, {{"fp8_weight_copies", "two"}})).shape.checkpointing, Checkpointing::Mlp);
  const Flags two = with(flags, {{"fp8_weight_copies", "two"}, {"gradient_checkpointing", "none"}});
  EXPECT_THAT(texts(followed_remedies(two).fitting.at(0)), ElementsAre("fp8_weight_copies=one"));
  EXPECT_THAT(
      texts(followed_remedies(with(two, {{"master_weights", "exact"}, {"gradient_checkpointing", "mlp"}}))
                .fitting.at(0)),
      ElementsAre("fp8_weight_copies=one"));
  // No more is advised than is needed: recomputation makes room for both copies.
  EXPECT_THAT(texts(followed_remedies({{"model_preset", "llama-3.1-8b"},
                                       {"per_device_train_batch_size", "8"},
                                       {"max_seq_length", "1024"},
                                       {"mixed_precision", "fp8"},
                                       {"fp8_weight_copies", "two"},
                                       {"gradient_checkpointing", "none"}})
                        .fitting.at(0)),
              ElementsAre("gradient_checkpointing=mlp"));
  const RunPlan one = on_h200(with(flags, {{"fp8_weight_copies", "one"}}));
  EXPECT_EQ(one.finetuning.one_copy_layers, 48);
  EXPECT_EQ(one.transposing_layers, 48);
  const TrainConfig shared = config_of(with(flags, {{"fp8_weight_copies", "two"}}));
  PlanOptions of_ranks = plan_options(shared);
  of_ranks.sharding = {.mode = ShardingMode::FsdpFull, .ranks = 8, .group = 8};
  plan_on_h200(shared, of_ranks);
  EXPECT_THAT(log.messages.back(),
              HasSubstr("fp8_weight_copies two has no effect: with sharding_mode fsdp_full"));
  EXPECT_EQ(on_h200(with(flags, {{"mixed_precision", "bf16"}})).finetuning.one_copy_layers, 0);
}

// A further chunk of the head reads and writes the sum of its gradients again, a layer with one copy makes transposes. Of the
// two ways to save memory, the one is taken that moves fewer bytes.
TEST(MemoryFit, ChunksOfTheHeadAndCopiesOfLayersAreWeighed) {
  const CapturedLog quiet;
  const auto chunks_and_copies = [](const char* preset, const char* rows, const char* gib,
                                    bool lora = false) {
    const Flags flags = {{"model_preset", preset},   {"per_device_train_batch_size", rows},
                         {"max_seq_length", "1024"}, {"device_memory_limit_gb", gib},
                         {"mixed_precision", "fp8"}, {"gradient_checkpointing", "none"},
                         {"optimizer_state", "fp8"}, {"master_weights", "compact"}};
    const TrainConfig config = config_of(flags);
    PlanOptions options = plan_options(config);
    if (lora) options.adapters = plan_adapters(model_preset(preset), {.rank = 16});
    const RunPlan plan = plan_on_h200(config, options);
    EXPECT_EQ(shortage_text(plan), "") << preset << " " << gib;
    return fmt::format("{} chunks, {}", plan.shape.head_chunk_bytes > int64_t{1} << 30 ? "large" : "small",
                       plan.finetuning.one_copy_layers > 0 ? "one copy" : "two copies");
  };
  EXPECT_EQ(chunks_and_copies("qwen2.5-14b", "4", "0"), "large chunks, one copy");
  // Both ways can make room for the 8B. The more layers it takes, the more they cost.
  EXPECT_EQ(chunks_and_copies("llama-3.1-8b", "8", "98.5"), "large chunks, one copy");
  EXPECT_EQ(chunks_and_copies("llama-3.1-8b", "8", "98"), "small chunks, two copies");
  EXPECT_EQ(chunks_and_copies("llama-3.1-8b", "8", "95"), "small chunks, one copy");
  // All copies of the 1B together are too small to make room for large chunks.
  EXPECT_EQ(chunks_and_copies("llama-3.2-1b", "12", "31"), "large chunks, two copies");
  EXPECT_EQ(chunks_and_copies("llama-3.2-1b", "12", "28"), "small chunks, two copies");
  EXPECT_EQ(chunks_and_copies("llama-3.2-1b", "12", "25.2"), "small chunks, one copy");
  // The gradient of a frozen head's weight does not exist, so its chunks cost nothing.
  EXPECT_EQ(chunks_and_copies("qwen2.5-14b", "4", "60", true), "large chunks, two copies");
  EXPECT_EQ(chunks_and_copies("qwen2.5-14b", "4", "54", true), "small chunks, two copies");
  EXPECT_EQ(chunks_and_copies("qwen2.5-14b", "4", "50", true), "small chunks, one copy");
}

TEST(MemoryFit, TheHeadLeavesFp8WhereThatIsEnough) {
  const CapturedLog quiet;
  Flags flags = {{"model_preset", "llama-3.1-8b"},
                 {"per_device_train_batch_size", "8"},
                 {"fp8_head", "true"},
                 {"fp8_weight_copies", "one"},
                 {"gradient_checkpointing", "block"}};
  const auto just_too_little_for = [](const RunPlan& plan) {
    return fmt::format("{}",
                       static_cast<double>(plan.bytes() - (int64_t{1} << 20)) / static_cast<double>(kGib));
  };
  const RunPlan with_large_chunks = on_h200(flags);
  flags.emplace_back("device_memory_limit_gb", just_too_little_for(with_large_chunks));
  const RunPlan with_small_chunks = on_h200(flags);
  EXPECT_EQ(shortage_text(with_small_chunks), "");
  EXPECT_LT(with_small_chunks.shape.head_chunk_bytes, with_large_chunks.shape.head_chunk_bytes);
  EXPECT_LT(with_small_chunks.bytes(), with_large_chunks.bytes());
  flags.back().second = just_too_little_for(with_small_chunks);
  EXPECT_THAT(texts(followed_remedies(flags).fitting.at(0)), ElementsAre("fp8_head=none"));
}

// The size of a chunk determines the order of sums.
TEST(MemoryFit, ADeterministicRunHasTheSameChunksWhateverIsFree) {
  const CapturedLog quiet;
  const Flags flags = {
      {"model_preset", "llama-3.1-8b"}, {"per_device_train_batch_size", "8"}, {"optimizer_state", "fp8"}};
  const auto chunk = [](const RunPlan& plan) { return plan.shape.head_chunk_bytes; };
  EXPECT_EQ(chunk(on_h200(flags)), 4'000'000'000);
  EXPECT_EQ(chunk(on_h200(with(flags, {{"deterministic", "true"}}))), kGib);
}

TEST(MemoryFit, GradientsAreKeptAsTheKeySays) {
  const CapturedLog quiet;
  const auto gradients = [](const Flags& flags) {
    return on_h200(with({{"model_preset", "gpt2"}}, flags)).numerics.gradients;
  };
  EXPECT_EQ(gradients({}), DType::BF16);
  EXPECT_EQ(gradients({{"gradient_accumulation_steps", "2"}}), DType::F32);
  EXPECT_EQ(gradients({{"grad_accum_dtype", "fp32"}}), DType::F32);
  EXPECT_EQ(gradients({{"gradient_accumulation_steps", "2"}, {"grad_accum_dtype", "bf16"}}), DType::BF16);
}

TEST(MemoryFit, WhereNothingFitsItSaysSo) {
  const CapturedLog log;
  const RunPlan plan = on_h200({{"model_preset", "qwen2.5-14b"}, {"device_memory_limit_gb", "20"}});
  EXPECT_THAT(plan.shortage->remedies.fitting, IsEmpty());
  EXPECT_THAT(
      shortage_text(plan),
      AllOf(HasSubstr("no setting makes it fit: with mixed_precision bf16, optimizer_state fp8, "
                      "master_weights stochastic, per_device_train_batch_size 1 and max_seq_length 128 "
                      "it still needs 8"),
            HasSubstr("use a smaller model or raise the limit"), Not(HasSubstr("set "))));
  EXPECT_THAT(log.messages, IsEmpty());  // no word of gradient_checkpointing: none of its levels helps
  const RunPlan bare = on_h200({{"model_preset", "qwen2.5-14b"},
                                {"mixed_precision", "bf16"},
                                {"optimizer_state", "fp8"},
                                {"master_weights", "stochastic"},
                                {"per_device_train_batch_size", "1"},
                                {"max_seq_length", "1"},
                                {"device_memory_limit_gb", "20"}});
  EXPECT_THAT(shortage_text(bare),
              HasSubstr("no setting makes it fit; use a smaller model or raise the limit, or "
                        "fine-tune it with LoRA"));
  const TrainConfig lora = config_of(
      {{"model_preset", "llama-3.1-70b"}, {"finetuning_type", "lora"}, {"device_memory_limit_gb", "20"}});
  PlanOptions with_adapters = plan_options(lora);
  with_adapters.adapters = plan_adapters(model_preset("llama-3.1-70b"), {.rank = 16});
  EXPECT_THAT(shortage_text(plan_on_h200(lora, with_adapters)),
              AllOf(HasSubstr("no setting makes it fit"), Not(HasSubstr("LoRA"))));
}

TEST(MemoryFit, AutomaticBatchSizeTakesAllThatFits) {
  const CapturedLog quiet;
  const Flags flags = {{"model_preset", "llama-3.1-8b"}, {"optimizer_state", "bf16"}};
  const auto with = [&](const char* key, const char* value) {
    Flags more = flags;
    more.emplace_back(key, value);
    return on_h200(more);
  };
  const RunPlan plan = with("auto_batch_size", "true");
  EXPECT_EQ(plan.shape.rows, 11);
  EXPECT_EQ(shortage_text(plan), "");
  EXPECT_EQ(plan.finetuning.one_copy_layers, 0);
  EXPECT_EQ(plan.shape.checkpointing, Checkpointing::None);
  EXPECT_GT(with("per_device_train_batch_size", "12").finetuning.one_copy_layers, 0);
}

// The weights' gradients have FP8 products for tokens in sixteens alone.
TEST(MemoryFit, RowsKeepTheTokensInSixteens) {
  const auto rows = [](const Flags& flags, int64_t most) {
    const TrainConfig config = config_of(flags);
    return dividing_batch(config, config.max_seq_length, most);
  };
  EXPECT_EQ(rows({{"max_seq_length", "1000"}}, 29), 28);
  EXPECT_EQ(rows({{"max_seq_length", "1000"}, {"mixed_precision", "bf16"}}, 29), 29);
  EXPECT_EQ(rows({{"max_seq_length", "1024"}}, 29), 29);
  EXPECT_EQ(rows({{"max_seq_length", "1000"}}, 1), 1) << "where it cannot be";
  EXPECT_EQ(
      rows({{"max_seq_length", "1000"}, {"target_effective_batch_size", "60"}, {"auto_batch_size", "true"}},
           29),
      20);
  EXPECT_EQ(
      rows({{"max_seq_length", "1000"}, {"target_effective_batch_size", "9"}, {"auto_batch_size", "true"}},
           29),
      9)
      << "nor here";
}

TEST(MemoryFit, AutomaticBatchSizeSaysWhatOneSequenceNeedsAtTheLastLevel) {
  const CapturedLog quiet;
  const Flags flags = {{"model_preset", "qwen2.5-14b"}, {"auto_batch_size", "true"}};
  const RunPlan plan = on_h200(flags);
  EXPECT_EQ(plan.shape.rows, 1);
  EXPECT_EQ(plan.shape.checkpointing, Checkpointing::Block);
  EXPECT_THAT(shortage_text(plan),
              AllOf(HasSubstr("even one sequence of 1024 tokens needs 209 GiB, but the device has 138 GiB"),
                    Not(HasSubstr("gradient_checkpointing")), Not(HasSubstr("batch_size"))));
  // With a limit that leaves no room for more rows, so that the advice can be followed as it is.
  Flags limited = flags;
  limited.emplace_back("device_memory_limit_gb", "111.5");
  EXPECT_THAT(texts(followed_remedies(limited).fitting.at(0)),
              ElementsAre("optimizer_state=fp8", "master_weights=compact"));
}

// Samples count for a plan and the batch size that it picks, not for a benchmark, which makes none.
TEST(MemoryFit, SamplesCountWhereTheyAreMade) {
  const CapturedLog quiet;
  const TrainConfig demo = config_of({{"auto_batch_size", "true"}, {"device_memory_limit_gb", "0.3"}});
  const RunPlan planned = plan_on_h200(demo, plan_options(demo));
  const RunPlan measured = plan_on_h200(demo, {.length = demo.max_seq_length});
  EXPECT_GT(planned.sampling_bytes, 0);
  EXPECT_EQ(measured.sampling_bytes, 0);
  EXPECT_LT(planned.shape.rows, measured.shape.rows);
  EXPECT_EQ(shortage_text(planned), "");
  EXPECT_EQ(shortage_text(measured), "");
}

}  // namespace
}  // namespace octet::test
