#include "other_names.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace octet {
namespace {

struct OtherName {
  std::string_view name;  // as plain_name gives it
  std::string_view here;  // what follows "octet"
  std::string_view why = "";
};

constexpr std::string_view kTrain = "train CONFIG.yaml";
constexpr std::string_view kPrecision = "it trains in FP8; --mixed_precision bf16 is the baseline";
constexpr std::string_view kLaunch = "it starts one process per GPU";
constexpr std::string_view kDoctor = "it multiplies in FP8 on this machine and lists what is missing";
constexpr std::string_view kCompare =
    "it sets speed, memory and losses of the runs side by side, with a verdict";
constexpr std::string_view kBench = "it times training steps in BF16 and in FP8";
constexpr std::string_view kLr =
    "it draws the learning rate and warns of a schedule that does not fit the run";
constexpr std::string_view kSweep = "it runs W&B's sweep files without a server";
constexpr std::string_view kSubmit =
    "it writes the batch script, submits it, and continues the run after its time limit";
constexpr std::string_view kEval = "it prints the loss on a dataset, or the score of a benchmark";

// A command's name in other programs, and its name here.
constexpr OtherName kOtherNames[] = {
    {"finetune", "train --model_name_or_path MODEL --dataset DATA"},
    {"fine_tune", "train --model_name_or_path MODEL --dataset DATA"},
    {"sft", "train --model_name_or_path MODEL --dataset DATA"},
    {"train_lora", "train CONFIG.yaml --finetuning_type lora"},
    {"pretrain", "train"},
    {"fit", "train"},
    {"run", "train"},
    {"train_fp8", kTrain, kPrecision},
    {"train_bf16", "train CONFIG.yaml --mixed_precision bf16", "FP8 is the default"},
    {"train_improved", "train CONFIG.yaml --mixed_precision bf16", "FP8 is the default"},
    {"setup_fp8_mixed_precision_training", kTrain, "FP8 is the default and needs no set-up"},
    {"load_in_fp8", kTrain,
     "it trains in FP8 by default; load_in_fp8 is for inference elsewhere and does not make training faster"},
    {"llama_8b_full_finetune_fp8", "train configs/llama3.1-8b-full-fp8.yaml"},
    {"llama_8b_full_finetune_bf16", "train configs/llama3.1-8b-full-bf16.yaml"},
    {"test_fp8_8b_low_lora", "train configs/llama3.1-8b-lora.yaml --lora_rank 8"},
    {"train_multi_gpu", "launch -n N train CONFIG.yaml", kLaunch},
    {"train_ddp", "launch -n N train CONFIG.yaml", kLaunch},
    {"train_fsdp", "launch -n N train CONFIG.yaml --sharding_mode fsdp_full", kLaunch},
    {"torchrun", "launch -n N train CONFIG.yaml", kLaunch},
    {"accelerate", "launch -n N train CONFIG.yaml", kLaunch},
    {"deepspeed", "launch -n N train CONFIG.yaml", kLaunch},
    {"resume", "train --resume"},
    {"continue", "train --resume"},
    {"chat", "generate MODEL --chat"},
    {"inference", "generate MODEL"},
    {"infer", "generate MODEL"},
    {"sample", "generate MODEL"},
    {"evaluate", "eval MODEL", kEval},
    {"validate", "eval MODEL", kEval},
    {"test", "eval MODEL", kEval},
    {"merge", "export RUN --output DIR"},
    {"convert", "export RUN --output DIR"},
    {"save", "export RUN --output DIR"},
    {"list", "checkpoints RUN"},
    {"ls", "checkpoints RUN"},
    {"list_checkpoints", "checkpoints RUN"},
    {"preprocess", "prepare --dataset DATA --output DIR"},
    {"prepare_data", "prepare --dataset DATA --output DIR"},
    {"benchmark", "bench", kBench},
    {"benchmark_fp8", "bench", kBench},
    {"benchmark_fp8_vs_bf16", "bench", kBench},
    {"profile", "bench --profile", kBench},
    {"compare_performance", "compare RUN RUN", kCompare},
    {"compare_fp8_bf16", "compare RUN RUN", kCompare},
    {"memory", "plan"},
    {"estimate", "plan"},
    {"schedule", "lr CONFIG.yaml", kLr},
    {"visualize_lr_schedule", "lr CONFIG.yaml", kLr},
    {"plot_lr_schedule", "lr CONFIG.yaml", kLr},
    {"test_lr_schedule", "lr CONFIG.yaml", kLr},
    {"config", "keys"},
    {"options", "keys"},
    {"follow", "watch RUN"},
    {"monitor", "watch RUN"},
    {"top", "watch RUN"},
    {"start_tensorboard", "tensorboard runs", "it opens TensorBoard on the runs of this folder"},
    {"sbatch", "submit CONFIG.yaml --time TIME", kSubmit},
    {"slurm", "submit CONFIG.yaml --time TIME", kSubmit},
    {"submit_fp8", "submit CONFIG.yaml --time TIME", kSubmit},
    {"submit_job", "submit CONFIG.yaml --time TIME", kSubmit},
    {"submit_sweep", "submit SWEEP.yaml --config CONFIG.yaml --time TIME", kSubmit},
    {"agent", "sweep SWEEP.yaml", kSweep},
    {"tune", "sweep SWEEP.yaml", kSweep},
    {"run_sweep", "sweep SWEEP.yaml", kSweep},
    {"check", "doctor", kDoctor},
    {"diagnose", "doctor", kDoctor},
    {"diagnose_fp8", "plan CONFIG.yaml",
     "it lists which products of each layer run in FP8, and why others do not; 'octet doctor' tests this machine"},
    {"verify", "doctor", kDoctor},
    {"verify_fp8", "doctor", kDoctor},
    {"check_fp8", "doctor", kDoctor},
    {"test_fp8", "doctor", kDoctor},
    {"env", "doctor", kDoctor},
    {"nvidia_smi", "doctor", kDoctor},
    {"train", kTrain, kPrecision},  // train.py
    {"version", "--version"},
};

// "scripts/Train-FP8.py" as "train_fp8".
std::string plain_name(std::string_view name) {
  name.remove_prefix(name.rfind('/') + 1);
  for (const std::string_view ending : {".py", ".sh", ".sbatch", ".slurm"}) {
    if (name.ends_with(ending)) name.remove_suffix(ending.size());
  }
  std::string text(name.substr(0, name.find('(')));  // a call: load_in_fp8()
  for (char& c : text) c = c == '-' ? '_' : c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  return text;
}

}  // namespace

std::string command_here(std::string_view name) {
  const std::string plain = plain_name(name);
  const auto known = std::ranges::find(kOtherNames, std::string_view(plain), &OtherName::name);
  if (known != std::end(kOtherNames))
    return fmt::format("use 'octet {}'{}{}", known->here, known->why.empty() ? "" : ": ", known->why);
  for (const std::string_view ending : {".yaml", ".yml"}) {
    if (name.ends_with(ending))
      return fmt::format("a configuration follows a command: octet train {}", printable(name));
  }
  return "";
}

}  // namespace octet
