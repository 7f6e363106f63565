// octet plan from the command line.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "support/places.h"
#include "support/process.h"

namespace octet::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;

ProcessResult plan(std::vector<std::string> flags, const std::string& folder = "") {
  flags.insert(flags.begin(), "plan");
  return run_process(test::octet_program(), flags, folder);
}
ProcessResult plan_on_cpu(std::vector<std::string> flags) {
  flags.insert(flags.end(), {"--device", "cpu"});
  return plan(std::move(flags));
}

TEST(PlanCli, ShowsLayersReasonsSharesMemoryAndRatio) {
  const ProcessResult result = plan({"--gpu", "h200", "--fp8_skip_layers", "first:1,*.mlp.down"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_THAT(
      result.out,
      HasSubstr(
          "llama-tiny: 820K parameters, 4 layers, width 128; 8 x 128 tokens; FP8 on NVIDIA H200 (planned)"));
  const auto row = [&](const std::string& pattern) {
    EXPECT_THAT(result.out, MatchesRegex("(.|\n)*\n" + pattern + " *\n(.|\n)*"));
  };
  row("layers\\.0\\.attention\\.qkv +256 x 128 +3\\.5 % +BF16 +fp8_skip_layers: 'first:1'");
  row("layers\\.1-3\\.attention\\.qkv +256 x 128 +10\\.6 % +FP8");
  row("layers\\.1-3\\.mlp\\.down +128 x 384 +15\\.9 % +BF16 +fp8_skip_layers: '\\*\\.mlp\\.down'");
  row("head +272 x 128 +3\\.7 % +BF16 +the head is small; see fp8_head");
  row("base matrices +84\\.6 % +56 %");
  row("head +3\\.7 % +0 %");
  row("attention +8\\.2 % +0 %");
  row("other +3\\.4 % +0 %");
  row("all +100\\.0 % +47\\.6 %");
  for (const char* category : {"weights", "gradients", "optimizer", "activations", "workspace", "peak"}) {
    row(std::string(category) + " +[0-9.]+ [KM]iB");
  }
  row("expected speedup of the matrix products, FP8 over BF16, on NVIDIA H200: 1\\.33x");
  EXPECT_THAT(result.out, HasSubstr("this model is small"));
}

TEST(PlanCli, RanksShowMemoryOfEveryMode) {
  const ProcessResult result =
      plan({"--gpu", "h200", "--model_preset", "llama-3.1-8b", "--dataset", "demo", "--ranks", "16",
            "--nodes", "2", "--sharding_mode", "fsdp", "--sample_steps", "0"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out,
              HasSubstr("16 ranks on 2 nodes; fsdp_full: each rank keeps 1/16 of the layers' weights"));
  for (const char* mode : {"none ", "zero1 ", "zero2 ", "fsdp_full (chosen) ", "hsdp "})
    EXPECT_THAT(result.out, HasSubstr(std::string("\n") + mode));
  EXPECT_THAT(plan_on_cpu({"--ranks", "4"}).out, HasSubstr("zero1 (chosen)"));
  const ProcessResult wrong = plan({"--ranks", "5", "--nodes", "2"});
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("--ranks is 5 and --nodes is 2; expected the same number on every node"));
}

TEST(PlanCli, TheRatioFollowsTheCoverage) {
  const auto last_line = [](const std::string& text) {
    return text.substr(text.rfind('\n', text.size() - 2) + 1);
  };
  const std::string text = "expected speedup of the matrix products, FP8 over BF16, on NVIDIA H200: ";
  for (const char* precision : {"bf16", "fp32"})
    EXPECT_THAT(plan({"--gpu", "h200", "--mixed_precision", precision}).out, Not(HasSubstr("speedup")));
  // All products in FP8: (1/774 + 1/720 + 1/707) / (1/1396 + 1/1324 + 1/1220) = 1.79.
  EXPECT_EQ(last_line(plan({"--gpu=NVIDIA H200", "--fp8_head", "all", "--fp8_fast_accum", "none"}).out),
            text + "1.79x\n");
  // Forward products of the layers with fast sums: 1/1396 becomes 1/1559 in 96 % of them.
  EXPECT_EQ(last_line(plan({"--gpu=NVIDIA H200", "--fp8_head", "all"}).out), text + "1.85x\n");
  // Gradients of inputs, too: 1/1324 becomes 1/1370.
  EXPECT_EQ(
      last_line(plan({"--gpu=NVIDIA H200", "--fp8_head", "all", "--fp8_fast_accum", "forward_dgrad"}).out),
      text + "1.87x\n");
  EXPECT_THAT(plan_on_cpu({}).out, Not(HasSubstr("speedup")));  // nothing was measured on a CPU
}

TEST(PlanCli, ASingleProductThatCannotHasItsReason) {
  // 3 x 8 tokens: wgrad reduces over 24, which is no multiple of 16.
  const ProcessResult result = plan_on_cpu({"--batch_size", "3", "--max_seq_length", "8"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("FP8/FP8/BF16"), HasSubstr("wgrad: 24 tokens in a micro-batch")));
}

TEST(PlanCli, SettingsWithoutEffectAreNamed) {
  EXPECT_EQ(plan_on_cpu({"--mixed_precision", "fp32", "--master_weights", "stochastic"}).err,
            "warning: master_weights has no effect: mixed_precision is fp32\n");
  EXPECT_EQ(plan_on_cpu({"--mixed_precision", "bf16", "--fp8_head"}).err,
            "warning: fp8_head has no effect: mixed_precision is bf16\n");
  EXPECT_EQ(plan_on_cpu({"--cuda_graphs", "on"}).err,
            "warning: cuda_graphs has no effect: the run is on the CPU\n");
  EXPECT_EQ(plan({"--cuda_graphs", "on", "--gpu", "h200"}).err, "");
  EXPECT_EQ(plan_on_cpu({"--fp8_fast_accum", "all"}).err,
            "warning: fp8_fast_accum has no effect: the run is on the CPU\n");
  EXPECT_EQ(plan_on_cpu({"--fp8_fast_accum", "none"}).err, "") << "sums are exact there";
}

TEST(PlanCli, EveryKnownGpuHasItsMemoryAndItsKindsOfFp8) {
  for (const char* gpu : {"h100", "H100-NVL", "h200", "b200", "a100", "L40S", "rtx4090", "RTX5090"}) {
    const ProcessResult result = plan({"--gpu", gpu, "--model_preset", "llama-3.2-1b"});
    ASSERT_EQ(result.exit_code, 0) << gpu << result.err;
    EXPECT_THAT(result.out, HasSubstr(" (planned)")) << gpu;
    const bool measured = std::string(gpu) == "h200";
    EXPECT_EQ(result.out.find("expected speedup") != std::string::npos, measured) << gpu;
    EXPECT_THAT(result.out, Not(HasSubstr("this model is small"))) << gpu;
    EXPECT_EQ(result.out.find("no speed is predicted: octet has measured the H200 only") == std::string::npos,
              measured)
        << gpu;
  }
  const ProcessResult ampere = plan({"--gpu", "a100"});
  EXPECT_THAT(ampere.err,
              HasSubstr("warning: NVIDIA A100 80GB has no FP8 tensor cores: this is a plan in BF16"));
  EXPECT_THAT(ampere.out, HasSubstr("; BF16 on NVIDIA A100 80GB (planned)"));
  EXPECT_THAT(plan({"--gpu", "a100", "--require_fp8"}).err, HasSubstr("require_fp8 is set, but NVIDIA A100"));
  const ProcessResult ada = plan({"--gpu", "l40s"});
  EXPECT_THAT(ada.out, HasSubstr("; FP8 on NVIDIA L40S (planned)"));
  EXPECT_EQ(ada.err.find("warning: NVIDIA L40S: octet has no kernels for this GPU yet"), 0) << ada.err;
  EXPECT_THAT(ada.out, HasSubstr("it is taken to have 43.8 GiB free, of which this run may use 42.8 GiB"));
  EXPECT_THAT(plan({"--gpu", "l40s", "--device_memory_limit_gb", "20"}).out, HasSubstr("may use 20.0 GiB"));
  const ProcessResult block = plan({"--gpu", "l40s", "--fp8_recipe", "block"});
  EXPECT_THAT(block.out, HasSubstr("; FP8 (emulated) on NVIDIA L40S (planned)"));
  EXPECT_THAT(block.err,
              HasSubstr("FP8 products are emulated on NVIDIA L40S (planned), slower than BF16: it has no "
                        "kernels for fp8_recipe block; use delayed or current"));
  // Its head is large, so it has FP8 kernels: the layers alone are emulated, and one warning says so.
  const std::string partly =
      plan({"--gpu", "l40s", "--fp8_recipe", "block", "--model_preset", "llama-3.2-1b"}).err;
  EXPECT_THAT(partly, HasSubstr("192 of 194 FP8 products are emulated on NVIDIA L40S (planned)"));
  EXPECT_EQ(partly.find("emulated"), partly.rfind("emulated")) << partly;
  EXPECT_THAT(plan({"--gpu", "h200", "--finetuning_type", "lora"}).out, HasSubstr("this model is small"));
  const std::string large = plan({"--gpu", "rtx4090", "--model_preset", "llama-3.1-8b"}).out;
  EXPECT_THAT(large, AllOf(HasSubstr("fine-tune it with LoRA, which needs less (finetuning_type lora)"),
                           Not(HasSubstr("it fits on"))));
  EXPECT_THAT(plan({"--gpu", "h200", "--nodes", "2"}).err,
              HasSubstr("--nodes is 2, but --ranks is not given"));
  EXPECT_THAT(plan({"--gpu", "h100", "--fp8_recipe", "mxfp8", "--fp8_emulation"}).err,
              HasSubstr("no kernels for fp8_recipe mxfp8; use delayed or block"));
  EXPECT_THAT(plan({"--gpu", "h100", "--fp8_recipe", "block", "--max_seq_length", "100",
                    "--per_device_train_batch_size", "1"})
                  .err,
              HasSubstr("its kernels do not take their sizes, such as 100 x"));
  EXPECT_THAT(plan({"--gpu", "h100", "--fp8_recipe", "block"}).out,
              HasSubstr("; FP8 on NVIDIA H100 (planned)"));
  EXPECT_THAT(plan({"--gpu", "b200"}).out, HasSubstr("nobody has run them"));
}

TEST(PlanCli, WhereNothingFitsMoreRanksAreSuggested) {
  const std::vector<std::string> flags = {"--gpu", "h200", "--model_preset", "llama-3.1-70b"};
  const ProcessResult one = plan(flags);
  ASSERT_EQ(one.exit_code, 0) << one.err;
  std::smatch found;
  const std::regex pattern(
      "it fits on (\\d+) such GPUs that share everything: add --ranks (\\d+) --sharding_mode fsdp_full");
  ASSERT_TRUE(std::regex_search(one.out, found, pattern)) << one.out;
  std::vector<std::string> more = flags;
  more.insert(more.end(), {"--ranks", found[1].str(), "--sharding_mode", "fsdp_full"});
  EXPECT_THAT(plan(more).out, Not(HasSubstr("this does not fit")));
  more[5] = std::to_string(std::stoi(found[1].str()) / 2);
  EXPECT_THAT(plan(more).out, HasSubstr("this does not fit")) << "it is the smallest number";
}

TEST(PlanCli, Refusals) {
  const ProcessResult unknown = plan({"--gpu", "x"});
  EXPECT_EQ(unknown.exit_code, 2);
  EXPECT_EQ(unknown.out, "");
  EXPECT_THAT(unknown.err,
              HasSubstr("error: --gpu: 'x' is not known, expected one of h100, h100-nvl, h200, gh200"));
  const ProcessResult size = plan({"--gpu", "80GB"});
  EXPECT_EQ(size.exit_code, 2);
  EXPECT_THAT(size.err, HasSubstr("--device_memory_limit_gb"));
  const ProcessResult none = plan({"--gpu"});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_THAT(none.err, AllOf(HasSubstr("error: --gpu needs a value. Plan for this GPU"),
                              HasSubstr("Known: h100, h100-nvl, h200")));
  EXPECT_EQ(plan({"--gpu="}).err, "error: --gpu is empty; expected a value\n");
  EXPECT_EQ(plan({"--gpu", "h200", "--gpu=h200"}).err, "error: --gpu is given twice\n");
  EXPECT_EQ(plan({"--gpus", "h200"}).err, "error: unknown flag '--gpus'; did you mean '--gpu'?\n");
  const ProcessResult folder = plan_on_cpu({"--model_name_or_path", "/nonexistent"});
  EXPECT_EQ(folder.exit_code, 2);
  EXPECT_THAT(folder.err, HasSubstr("[/nonexistent] is not a folder"));
  const ProcessResult glob = plan_on_cpu({"--fp8_skip_layers", "nowhere"});
  EXPECT_EQ(glob.exit_code, 2);
  EXPECT_THAT(glob.err, HasSubstr("'nowhere' matches no layer"));
}

// The demo's samples count here as they do in its training.
TEST(PlanCli, FitsWhereTrainingFits) {
  const TemporaryFolder folder;
  const auto train = [&](const std::string& limit) {
    return run_process(
        test::octet_program(),
        {"train", "--dry_run", "--num_threads", "1", "--device", "cpu", "--device_memory_limit_gb", limit},
        folder.path());
  };
  for (const char* limit : {"0.03", "0.033"}) {
    const ProcessResult planned = plan_on_cpu({"--num_threads", "1", "--device_memory_limit_gb", limit});
    const ProcessResult trained = train(limit);
    const size_t at = planned.out.find("this does not fit: ");
    EXPECT_EQ(at == std::string::npos, trained.exit_code == 0) << limit;
    EXPECT_THAT(planned.out, HasSubstr("plus 2.56 MiB for generating samples"));
    if (at != std::string::npos) {
      const size_t begin = planned.out.find("the run", at);
      EXPECT_EQ(trained.err, "error: " + planned.out.substr(begin));
    }
  }
  EXPECT_EQ(train("0.03").exit_code, 2);
  EXPECT_EQ(train("0.033").exit_code, 0);
}

TEST(PlanCli, WarnsOfSettingsThatCostAccuracy) {
  const ProcessResult planned = plan({"--gpu", "h200", "--model_preset", "gpt2", "--optimizer_state", "fp8",
                                      "--master_weights", "stochastic"});
  ASSERT_EQ(planned.exit_code, 0) << planned.err;
  EXPECT_THAT(planned.err, HasSubstr("warning: master_weights stochastic may cost accuracy"));
}

TEST(PlanCli, SaysWhereSumsOfWeightsGradientsStayExact) {
  const auto notes = [](const char* rows, const std::vector<std::string>& more) {
    std::vector<std::string> flags = {
        "--gpu", "h200", "--model_preset", "gpt2", "--per_device_train_batch_size", rows, "--max_seq_length",
        "1024"};
    flags.insert(flags.end(), more.begin(), more.end());
    const ProcessResult planned = plan(flags);
    EXPECT_EQ(planned.exit_code, 0) << planned.err;
    return planned.err;
  };
  const char* note = "fp8_fast_accum all: the gradients of weights keep exact sums";
  EXPECT_THAT(notes("9", {"--fp8_fast_accum", "all"}),
              HasSubstr(std::string(note) +
                        ", because a micro-batch has 9216 tokens; sums over more than 8192 are never fast"));
  EXPECT_THAT(notes("8", {"--fp8_fast_accum", "all"}), Not(HasSubstr(note)));
  EXPECT_THAT(notes("9", {"--fp8_fast_accum", "forward_dgrad"}), Not(HasSubstr(note)));
  EXPECT_THAT(notes("9", {"--fp8_fast_accum", "all", "--fp8_recipe", "block"}), Not(HasSubstr(note)));
  EXPECT_THAT(notes("9", {"--fp8_fast_accum", "all", "--mixed_precision", "bf16"}), Not(HasSubstr(note)));
  EXPECT_THAT(notes("9", {"--fp8_fast_accum", "all", "--finetuning_type", "lora"}), Not(HasSubstr(note)));
}

TEST(PlanCli, WarnsOfFastSumsThatWereNotComparedWithBf16) {
  const auto notes = [](const char* model, const std::vector<std::string>& more) {
    std::vector<std::string> flags = {"--gpu", "h200", "--model_preset", model, "--max_seq_length", "1024"};
    flags.insert(flags.end(), more.begin(), more.end());
    const ProcessResult planned = plan(flags);
    EXPECT_EQ(planned.exit_code, 0) << planned.err;
    return planned.err;
  };
  const char* warning =
      "warning: fp8_fast_accum may cost accuracy: fast sums in gradients of inputs were compared with BF16 only for ";
  const std::string of_the_8b =
      std::string(warning) + "layers with up to 16384 outputs; this model has layers with 28672";
  EXPECT_THAT(notes("llama-3.1-8b", {"--fp8_fast_accum", "all"}), HasSubstr(of_the_8b));
  EXPECT_THAT(notes("llama-3.1-8b", {"--fp8_fast_accum", "forward_dgrad"}), HasSubstr(of_the_8b));
  EXPECT_THAT(notes("llama-3.1-8b", {"--fp8_fast_accum", "all", "--finetuning_type", "lora"}),
              HasSubstr(of_the_8b));
  EXPECT_THAT(notes("llama-3.1-8b", {}), Not(HasSubstr(warning)));
  EXPECT_THAT(notes("llama-3.1-8b", {"--fp8_fast_accum", "all", "--fp8_skip_layers", "*.mlp.up"}),
              Not(HasSubstr(warning)));
  EXPECT_THAT(notes("llama-3.1-8b", {"--fp8_fast_accum", "all", "--fp8_recipe", "block"}),
              Not(HasSubstr(warning)));
  EXPECT_THAT(notes("llama-3.1-8b", {"--fp8_fast_accum", "all", "--mixed_precision", "bf16"}),
              Not(HasSubstr(warning)));
  EXPECT_THAT(notes("llama-3.2-1b", {"--fp8_fast_accum", "all"}), Not(HasSubstr(warning)));
  for (const char* wide : {"llama-3.1-8b", "qwen2.5-7b", "llama-3.1-70b"})
    EXPECT_THAT(notes(wide, {}), Not(HasSubstr("may cost accuracy"))) << "the defaults do not warn";
}

TEST(PlanCli, SaysThatForwardSumsOverManyInputsStayExact) {
  const auto notes = [](const char* model, const std::vector<std::string>& more) {
    std::vector<std::string> flags = {"--gpu", "h200", "--model_preset", model, "--max_seq_length", "1024"};
    flags.insert(flags.end(), more.begin(), more.end());
    return plan(flags).err;
  };
  const auto note = HasSubstr(
      "fp8_fast_accum: the forward products of 28 layers keep exact sums; sums over more than 16384 inputs are never fast");
  EXPECT_THAT(notes("qwen2.5-7b", {}), note) << "mlp.down has 18,944 inputs";
  EXPECT_THAT(notes("qwen2.5-7b", {"--fp8_fast_accum", "all"}), note);
  const auto any = HasSubstr("keep exact sums; sums over");
  EXPECT_THAT(notes("qwen2.5-7b", {"--fp8_fast_accum", "none"}), Not(any));
  EXPECT_THAT(notes("qwen2.5-7b", {"--fp8_recipe", "block"}), Not(any));
  EXPECT_THAT(notes("qwen2.5-7b", {"--mixed_precision", "bf16"}), Not(any));
  EXPECT_THAT(notes("llama-3.1-8b", {}), Not(any));
}

TEST(PlanCli, OnlyTheDemosModelsArePlannedForTheDemo) {
  const ProcessResult real = plan({"--gpu", "h200", "--model_preset", "gpt2"});
  ASSERT_EQ(real.exit_code, 0) << real.err;
  EXPECT_THAT(real.out, AllOf(HasSubstr("8 x 1024 tokens"), Not(HasSubstr("samples"))));
  EXPECT_THAT(real.err, HasSubstr("no dataset given: planning for 1024-token sequences"));
  const ProcessResult tiny = plan({"--gpu", "h200", "--model_preset", "gpt2-tiny"});
  EXPECT_THAT(tiny.out, AllOf(HasSubstr("8 x 128 tokens"), HasSubstr("samples")));
  EXPECT_EQ(tiny.err, "");
}

TEST(PlanCli, AutomaticBatchSizeThatFindsNoneIsNoError) {
  const ProcessResult result = plan({"--gpu", "h200", "--model_preset", "qwen2.5-14b", "--auto_batch_size"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("this does not fit: even one sequence of 1024 tokens needs 209 GiB"));
}

TEST(PlanCli, SaysWhatHasNoEffectAndWhatIsMissing) {
  const TemporaryFolder folder;
  folder.write("text.txt", "some text\n");
  EXPECT_THAT(plan({"--gpu", "h200", "--device", "cpu"}).err, HasSubstr("warning: device cpu has no effect"));
  const auto warnings = [&](std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--device", "cpu"});
    const ProcessResult result = plan(std::move(flags), folder.path());
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.err;
  };
  EXPECT_EQ(warnings({"--dataset", "text.txt", "--model_preset", "llama-tiny"}), "");
  EXPECT_EQ(warnings({"--dataset", "org/name", "--model_preset", "gpt2"}),
            "");  // may be on the hub, which is not asked
  EXPECT_THAT(warnings({"--dataset", "none.txt"}),
              HasSubstr("warning: this run would not start: [dataset] none.txt"));
  EXPECT_THAT(warnings({"--dataset", "none.jsonl"}), HasSubstr("none.jsonl: no such file"));
  EXPECT_THAT(warnings({"--dataset", "text.txt", "--eval_dataset", "e*.txt"}), HasSubstr("[dataset] e*.txt"));
  EXPECT_THAT(warnings({"--tokenizer", "/none"}), HasSubstr("this run would not start: [tokenizer] '/none'"));
  // A prepared dataset has a tokenizer of its own.
  const ProcessResult prepared =
      run_process(test::octet_program(),
                  {"prepare", "--dataset", "text.txt", "--output", "prepared", "--tokenizer",
                   test::source_path("/tests/golden/sentencepiece/bpe.model"), "--eval_split", "0"},
                  folder.path());
  ASSERT_EQ(prepared.exit_code, 0) << prepared.err;
  EXPECT_THAT(warnings({"--dataset", "prepared", "--model_preset", "gpt2-tiny", "--vocab_size", "300"}),
              HasSubstr("this run would not start: tokenizer '" + test::source_path("")));
}

}  // namespace
}  // namespace octet::test
