#include "import/environment.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/process.h"
#include "import/tree.h"

namespace octet {
namespace {

using enum EnvironmentEffect;

struct Variable {
  std::string_view names;  // a "*" at the end: all names that start so
  std::string_view note;
  EnvironmentEffect effect = Nothing;
  std::string_view value = {};  // only this value means it; empty: all values
};

// The first that matches decides.
constexpr Variable kVariables[] = {
    {"NVTE_FP8_ALLREDUCE",
     "never existed in Transformer Engine: it has no effect anywhere. octet reduces gradients in "
     "gradient_reduce_dtype"},
    {"NVTE_FLASH_ATTN NVTE_FUSED_ATTN NVTE_UNFUSED_ATTN NVTE_FUSED_ATTN_BACKEND",
     "chooses the attention kernel of Transformer Engine. octet has its own attention"},
    {"NVTE_ALLOW_NONDETERMINISTIC_ALGO",
     "makes the attention of Transformer Engine deterministic if it is 0. The key here is deterministic"},
    {"NVTE_FP8_DPA_BWD",
     "sets the precision of attention in Transformer Engine. octet keeps attention in BF16"},
    {"NVTE_BIAS_GELU_NVFUSION", "fuses operations in Transformer Engine. octet fuses always"},
    {"NVTE_TORCH_COMPILE", "compiles parts of Transformer Engine. octet is compiled already"},
    {"NVTE_DEBUG NVTE_DEBUG_LEVEL",
     "prints what Transformer Engine chooses. 'octet plan' shows what runs in FP8"},
    {"NVTE_FRAMEWORK NVTE_CUDA_ARCHS", "is read when Transformer Engine is built. It has no effect here"},
    {"NVTE_*", "is for Transformer Engine, which octet does not use: it has no effect here"},
    {"CUDA_DEVICE_MAX_CONNECTIONS",
     "orders kernels for tensor parallelism in Megatron; set to 1 it takes away overlap elsewhere. octet does not "
     "need it",
     Hurts, "1"},
    {"CUDA_DEVICE_MAX_CONNECTIONS",
     "orders kernels for tensor parallelism in Megatron. octet does not need it"},
    {"CUDA_LAUNCH_BLOCKING",
     "makes the program wait for every kernel. It is for debugging: training is much slower", Hurts, "1"},
    {"CUDA_MODULE_LOADING", "loads all kernels at the start, which then takes longer", Hurts, "EAGER"},
    {"CUBLASLT_LOG_LEVEL", "turns the log of cuBLASLt off", Works, "0"},
    {"CUDNN_LOGLEVEL_DBG", "turns the log of cuDNN off", Works, "0"},
    {"CUBLASLT_LOG_LEVEL", "makes cuBLASLt log its calls, which takes time", Hurts},
    {"CUDNN_LOGLEVEL_DBG", "makes cuDNN log its calls, which takes time", Hurts},
    {"CUBLAS_WORKSPACE_CONFIG",
     "makes cuBLAS deterministic in PyTorch. octet gives it memory of its own; the key here is deterministic"},
    {"FP8_BACKEND",
     "is set by LLaMA-Factory and read by nothing: Accelerate reads ACCELERATE_FP8_BACKEND. It has no effect here"},
    {"FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER",
     "is set by LLaMA-Factory and read by nothing: Accelerate reads ACCELERATE_FP8_ENABLE_FSDP_FLOAT8_ALL_GATHER. It "
     "has no effect here"},
    {"ACCELERATE_FP8_AMAX_HISTORY_LENGTH",
     "is read by nothing: Accelerate reads ACCELERATE_FP8_AMAX_HISTORY_LEN. The key here is fp8_amax_history_len"},
    {"ACCELERATE_FP8_AMAX_COMPUTE_ALGORITHM",
     "is read by nothing: Accelerate reads ACCELERATE_FP8_AMAX_COMPUTE_ALGO. The key here is fp8_amax_compute"},
    {"ACCELERATE_MIXED_PRECISION", "is for Accelerate. The key here is mixed_precision"},
    {"ACCELERATE_FP8_*",
     "is for Accelerate. The keys here are fp8_recipe, fp8_format, fp8_margin and others"},
    {"ACCELERATE_*", "is for Accelerate: it has no effect here"},
    {"DS_SKIP_CUDA_CHECK", "is for DeepSpeed: it has no effect here"},
    {"PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF",
     "is for PyTorch's allocator. octet plans memory before the first step"},
    {"TORCH_NCCL_*", "is for PyTorch. The keys here are comm_timeout and rendezvous_timeout"},
    {"NCCL_P2P_DISABLE", "keeps GPUs of one machine from using NVLink: several GPUs are much slower", Hurts,
     "1"},
    {"NCCL_SHM_DISABLE", "keeps NCCL from using shared memory inside a machine", Hurts, "1"},
    {"NCCL_IB_DISABLE", "keeps NCCL from using InfiniBand: several machines are much slower", Hurts, "1"},
    {"NCCL_SOCKET_IFNAME GLOO_SOCKET_IFNAME",
     "chooses the network interface here, too, if there are several machines", Works},
    {"NCCL_*", "is read by NCCL here, too", Works},
    {"OMP_NUM_THREADS", "limits the CPU threads to one: preparing data and runs on the CPU are slower", Hurts,
     "1"},
    {"OMP_NUM_THREADS", "limits the CPU threads here, too; so does num_threads", Works},
    {"CUDA_VISIBLE_DEVICES", "chooses the GPUs here, too", Works},
    {"HF_HOME HF_HUB_CACHE", "is the cache of downloads here, too", Works},
    {"HF_HUB_OFFLINE", "keeps octet from asking the hub, too", Works},
    {"HF_ENDPOINT", "is the hub that is asked here, too", Works},
    {"FORCE_TORCHRUN", "is for LLaMA-Factory. Start several ranks with 'octet launch -n N train'"},
    {"USE_MODELSCOPE_HUB", "is for LLaMA-Factory. octet downloads from the Hugging Face hub"},
    {"WANDB_*", "is read here, too, if use_wandb is set", Works},
};

bool matches(const Variable& variable, std::string_view name, std::string_view value) {
  if (!variable.value.empty() && variable.value != value) return false;
  return std::ranges::any_of(parts_of(variable.names, ' '), [&](std::string_view one) {
    return one.ends_with('*') ? name.starts_with(one.substr(0, one.size() - 1)) : name == one;
  });
}

}  // namespace

std::vector<EnvironmentNote> environment_effects(const EnvironmentNames& environment) {
  std::vector<EnvironmentNote> notes;
  for (const std::string& entry : environment) {
    const size_t equals = std::min(entry.find('='), entry.size());
    const std::string name = entry.substr(0, equals),
                      value = entry.substr(std::min(equals + 1, entry.size()));
    const auto found = std::ranges::find_if(
        kVariables, [&](const Variable& variable) { return matches(variable, name, value); });
    if (found != std::end(kVariables)) notes.push_back({name, std::string(found->note), found->effect});
  }
  std::ranges::sort(notes, {}, &EnvironmentNote::name);
  return notes;
}

std::vector<std::string> environment_notes(const EnvironmentNames& environment, bool with_working) {
  std::vector<std::string> notes;
  for (const EnvironmentNote& note : environment_effects(environment)) {
    if (with_working || note.effect != Works)
      notes.push_back(fmt::format("environment variable {} {}", note.name, note.text));
  }
  return notes;
}

std::string environment_report() {
  std::string text;
  for (const std::string& note : environment_notes(environment_entries(), true))
    text += fmt::format("{}\n", note);
  return text.empty() ? text : '\n' + text;
}

}  // namespace octet
