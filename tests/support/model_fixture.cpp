#include "support/model_fixture.h"

#include <filesystem>
#include <fstream>

#include "hf/hf_folder.h"
#include "support/golden_model.h"

namespace octet::test {
namespace {

void write_file(const std::string& folder, const std::string& name, const std::function<void(Sink&)>& write) {
  std::filesystem::create_directories(folder);
  WritableFile file = posix_env().create(join_path(folder, name));
  write(file);
  file.close();
}

}  // namespace

RandomModel::RandomModel(const ModelConfig& model, DType dtype, uint64_t seed)
    : config(model),
      device(make_cpu_device(1)),
      parameters(config, {.weight = dtype}, dtype == DType::BF16, planner),
      dtype_(dtype) {
  planner.finish();
  memory = device->allocate(planner.plan().peak_bytes());
  planner.bind(memory.get());
  parameters.initialise(*device, seed);
}

SafeDType RandomModel::stored() const {
  return dtype_ == DType::F32 ? SafeDType::F32 : SafeDType::BF16;
}

void RandomModel::write_folder(const std::string& folder) {
  write_file(folder, "config.json", [&](Sink& sink) { sink.append(to_hf_config(config, dtype_)); });
  write_file(folder, "model.safetensors",
             [&](Sink& sink) { save_hf_weights(sink, *device, parameters, stored()); });
}

Checkpoint RandomModel::save(CheckpointStore& store, int64_t step, double loss, bool best) {
  return store.save(
      step,
      [&](CheckpointWriter& writer) {
        writer.file("config.json", [&](Sink& sink) { sink.append(to_hf_config(config, dtype_)); });
        writer.file("model.safetensors",
                    [&](Sink& sink) { save_hf_weights(sink, *device, parameters, stored()); });
        writer.file("train_config.yaml", [](Sink& sink) { sink.append("tokenizer: bytes\n"); });
        if (dtype_ != DType::BF16) return;
        writer.file("optimizer.safetensors", [&](Sink& sink) {
          std::vector<SafeTensorSpec> specs;
          for (const Parameter& p : parameters.all())
            specs.push_back(
                {fmt::format("{}.remainder", p.spec.name), SafeDType::U16, {p.remainder.numel()}});
          SafetensorsWriter tensors(sink, specs);
          for (const SafeTensorSpec& spec : tensors.specs()) {
            const Tensor remainder = parameters[spec.name.substr(0, spec.name.rfind('.'))].remainder;
            tensors.append(spec.name, std::as_bytes(remainder.span<uint16_t>()));
          }
          tensors.finish();
        });
      },
      {dtype_ == DType::BF16 ? "bf16" : "fp32", loss}, best);
}

std::vector<float> RandomModel::exact(const std::string& parameter) {
  return ParameterSet::weight_values(*device, parameters[parameter]);
}

void write_golden_folder(const std::string& name, const std::string& folder) {
  const GoldenModel golden(name);
  RandomModel model(golden.config, DType::F32);
  HfWeights([&](std::string_view tensor) { return golden.file.find(tensor); }, name, "weights.")
      .load(*model.device, model.parameters);
  model.write_folder(folder);
}

}  // namespace octet::test
