// Whatever the bytes: as an adapter_config.json they give an Error or adapters of a model, and those are the same after
// they were written and read again.

#include "base/error.h"
#include "fuzz_support.h"
#include "hf/peft_config.h"

namespace {

using namespace octet;

ModelConfig model_of(const char* preset) {
  ModelConfig config = model_preset(preset);
  config.layers = 2;
  return config;
}

void check_written(const PeftConfig& config, const AdapterPlan& plan, const ModelConfig& model) {
  const PeftConfig again = peft_config_from_json(to_peft_config(model, plan, config.base), "written");
  const AdapterPlan same = plan_of(again, model, "written");
  expect(again.base == config.base && same.dropout == plan.dropout);
  expect(same.adapters.size() == plan.adapters.size());
  for (size_t i = 0; i < plan.adapters.size(); ++i) {
    const Adapter &a = plan.adapters[i], &b = same.adapters[i];
    expect(a.module == b.module && a.rank == b.rank && a.alpha == b.alpha && a.rslora == b.rslora);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const ModelConfig models[] = {model_of("llama-tiny"), model_of("gpt2-tiny")};
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const ModelConfig& model : models) {
    try {
      const PeftConfig config = peft_config_from_json(text, "fuzz");
      const AdapterPlan plan = plan_of(config, model, "fuzz");
      must_succeed([&] { check_written(config, plan, model); });
    } catch (const Error&) {  // what does not fit
    }
  }
  return 0;
}
