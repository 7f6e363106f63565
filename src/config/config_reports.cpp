#include <fmt/format.h>

#include <algorithm>

#include "base/log.h"
#include "base/text.h"
#include "config/report_keys.h"

// report_to, the key of Hugging Face's trainer.

namespace octet {
namespace {

// Services that the trainer of Hugging Face knows and octet does not.
constexpr std::string_view kOtherServices[] = {"azure_ml", "clearml", "codecarbon", "comet_ml",
                                               "dagshub",  "dvclive", "flyte",      "mlflow",
                                               "neptune",  "swanlab", "trackio",    "aim"};

}  // namespace

void apply_report_to(ReportKeys& keys, KeyOrigins& origins, std::vector<std::string>& errors) {
  const auto origin = origins.origins.find("report_to");
  if (origin == origins.origins.end()) return;
  bool wandb = false, tensorboard = false;
  for (const std::string& given : keys.report_to) {
    std::string word = given;
    std::ranges::transform(word, word.begin(),
                           [](char c) { return c >= 'A' && c <= 'Z' ? char(c + 32) : c; });
    if (word == "none" || word.empty()) {
      if (keys.report_to.size() > 1)
        errors.push_back(
            fmt::format("{} names none and something else; expected one or the other", origin->second));
    } else if (word == "all" || word == "wandb" || word == "tensorboard") {
      wandb = wandb || word != "tensorboard";
      tensorboard = tensorboard || word != "wandb";
    } else if (std::ranges::find(kOtherServices, word) != std::end(kOtherServices)) {
      log_warning("{} names {}: octet sends nothing there; metrics.jsonl of the run has all figures",
                  origin->second, word);
    } else {
      errors.push_back(fmt::format("{} names '{}'; expected wandb, tensorboard, all or none", origin->second,
                                   printable(given)));
    }
  }
  const bool by_flag = origin->second.starts_with("--");
  const auto settle = [&](const char* key, bool ReportKeys::*member, bool wanted) {
    const auto own = origins.origins.find(key);
    if (own != origins.origins.end() && keys.*member != wanted) {
      const bool own_by_flag = own->second.starts_with("--");
      if (own_by_flag == by_flag) {
        errors.push_back(
            fmt::format("{} and {} contradict each other: report_to sets {} to {}; give one of them",
                        origin->second, own->second, key, wanted));
        return;
      }
      if (own_by_flag) return;
    }
    keys.*member = wanted;
    origins.origins[key] = origin->second;
  };
  settle("use_wandb", &ReportKeys::use_wandb, wandb);
  settle("use_tensorboard", &ReportKeys::use_tensorboard, tensorboard);
}

}  // namespace octet
