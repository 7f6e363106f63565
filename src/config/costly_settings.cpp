#include "config/costly_settings.h"

namespace octet {

std::vector<std::string> costly_settings(const TrainConfig& config) {
  std::vector<std::string> texts;
  const bool has_matrices_in_bf16 =
      config.mixed_precision != TrainConfig::Precision::Fp32 && !config.is_lora();
  if (config.master_weights == TrainConfig::MasterWeights::Stochastic && has_matrices_in_bf16)
    texts.emplace_back(
        "master_weights stochastic costs accuracy: the evaluation loss of GPT-2 124M was 0.3 % higher; if memory "
        "allows, set master_weights to compact (half a byte more per weight)");
  const bool fp8_logits = config.fp8_head == Fp8Head::All || config.fp8_head == Fp8Head::Forward;
  if (config.mixed_precision == TrainConfig::Precision::Fp8 && fp8_logits)
    texts.push_back(fmt::format(
        "fp8_head {} costs accuracy: its logits are computed in FP8; set fp8_head to backward, which keeps most of "
        "the speed",
        config.fp8_head == Fp8Head::All ? "all" : "forward"));
  return texts;
}

}  // namespace octet
