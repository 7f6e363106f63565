// Communication as octet bench --comm measures it, with ranks that are threads on the CPU.

#include "bench/comm_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <mutex>

#include "support/thread_ranks.h"

namespace octet::test {
namespace {

using testing::HasSubstr;

CommReport measured(ShardingMode mode, int ranks, int local_ranks, Precision precision = Precision::Fp8) {
  CommReport first;
  run_thread_ranks(ranks, local_ranks, [&](Ranks& mine) {
    const std::unique_ptr<Device> device = make_cpu_device(1);
    Numerics numerics;
    numerics.precision = precision;
    Finetuning finetuning;
    finetuning.sharding = {.mode = mode,
                           .rank = mine.place().rank,
                           .ranks = ranks,
                           .group = mode == ShardingMode::Hsdp ? local_ranks : ranks};
    Transformer planned(model_preset("llama-tiny"), {.rows = 1, .length = 64}, numerics, *device, finetuning);
    const CommReport report = bench_comm(planned, *device, mine, {.warmup = 1, .repeats = 2});
    if (mine.place().is_first()) first = report;
  });
  return first;
}

const CommResult& result_of(const CommReport& report, const std::string& name) {
  for (const CommResult& result : report.results) {
    if (result.name == name) return result;
  }
  throw std::runtime_error("no result " + name);
}

// llama-tiny: qkv 256 x 128, out 128 x 128, up 768 x 128, down 128 x 384; two norms of 128.
constexpr double kMatrices = 256 * 128 + 128 * 128 + 768 * 128 + 128 * 384, kNorms = 2 * 128;

TEST(CommBench, BytesAreThoseOfALayer) {
  const CommReport zero1 = measured(ShardingMode::Zero1, 4, 4);
  EXPECT_EQ(result_of(zero1, "weights of a layer").bytes, (kMatrices + 2 * kNorms) * 3 / 4);
  EXPECT_EQ(result_of(zero1, "gradients of a layer").bytes, 2 * (kMatrices + kNorms) * 3 / 4);
  EXPECT_EQ(result_of(zero1, "records of a step").bytes, 3 * 64);
  EXPECT_EQ(zero1.results.size(), 3u);
  const CommReport none = measured(ShardingMode::None, 2, 2);
  EXPECT_EQ(result_of(none, "summed gradients of a layer").bytes, 4 * (kMatrices + kNorms) / 2);
  const CommReport fsdp = measured(ShardingMode::FsdpFull, 2, 2, Precision::Bf16);
  EXPECT_EQ(result_of(fsdp, "weights of a layer").bytes, 2 * (kMatrices + kNorms) / 2);
  const CommReport hsdp = measured(ShardingMode::Hsdp, 4, 2);
  EXPECT_EQ(result_of(hsdp, "weights of a layer, between nodes").bytes, (kMatrices + 2 * kNorms) / 2 / 2);
  EXPECT_EQ(result_of(hsdp, "gradients of a layer, between nodes").bytes, 2 * (kMatrices + kNorms) / 2 / 2);
}

TEST(CommBench, FiguresAreFinite) {
  const CommReport report = measured(ShardingMode::Hsdp, 4, 2);
  for (const CommResult& result : report.results) {
    EXPECT_GT(result.ms, 0) << result.name;
    EXPECT_TRUE(std::isfinite(result.busbw_gb())) << result.name;
    EXPECT_EQ(result.members, result.name == "records of a step" ? 4 : 2) << result.name;
    EXPECT_FALSE(result.ms_beside_gemm) << "a CPU does one thing at a time";
  }
  EXPECT_THAT(comm_text(report), HasSubstr("4 ranks on 2 nodes, sharding_mode hsdp"));
}

TEST(CommBench, ARankThatIsAloneReceivesNothing) {
  const CommReport report = measured(ShardingMode::Zero1, 1, 1);
  for (const CommResult& result : report.results) EXPECT_EQ(result.bytes, 0) << result.name;
}

}  // namespace
}  // namespace octet::test
