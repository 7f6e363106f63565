// A sharded folder is loaded into FP8 copies without a dense copy of the model in memory.

#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "backend/cpu/cpu_device.h"
#include "base/philox.h"
#include "hf/hf_folder.h"
#include "io/env.h"
#include "model/family.h"

namespace octet::test {
namespace {

namespace fs = std::filesystem;

// Memory of this process that is not backed by files, in bytes.
int64_t anonymous_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssAnon:")) return std::stoll(line.substr(8)) << 10;
  }
  return 0;
}

// The most anonymous memory while it lives.
class MemoryWatch {
 public:
  MemoryWatch() : before_(anonymous_memory()), peak_(before_) {
    thread_ = std::thread([this] {
      while (!done_) {
        peak_ = std::max<int64_t>(peak_, anonymous_memory());
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  }
  ~MemoryWatch() { stop(); }
  int64_t stop() {
    done_ = true;
    if (thread_.joinable()) thread_.join();
    return peak_ - before_;
  }

 private:
  int64_t before_;
  std::atomic<int64_t> peak_;
  std::atomic<bool> done_ = false;
  std::thread thread_;
};

// About 300 million parameters in layers whose matrices have up to 45 million.
ModelConfig large_model() {
  ModelSizes sizes;
  sizes.width = 2048, sizes.layers = 4, sizes.heads = 16, sizes.kv_heads = 8, sizes.ffn = 11008;
  sizes.vocab = 1024, sizes.max_positions = 64;
  return resolve_model("llama", sizes);
}

// Random bf16 weights, each layer in a file of its own.
void write_folder(const ModelConfig& config, const std::string& folder) {
  const std::vector<ParameterSpec> table = parameter_table(config);
  const std::vector<HfTensor> tensors = hf_tensors(table);
  std::vector<Bf16> pattern(1 << 16);
  const Philox random(3, 0);
  for (size_t i = 0; i < pattern.size(); ++i) pattern[i] = to_bf16(0.02f * random.normal(i));
  const ReadWeightRows read = [&](size_t parameter, int64_t begin, int64_t rows) {
    const Shape& shape = table[parameter].shape;
    const int64_t width = shape.rank() == 1 ? 1 : shape[1];
    std::vector<std::byte> bytes(static_cast<size_t>(2 * rows * width));
    // Rows differ: each starts at another place of the pattern.
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < width; ++c) {
        const auto at = static_cast<size_t>((begin + r) * 977 + c + static_cast<int64_t>(parameter) * 31);
        std::memcpy(bytes.data() + 2 * (r * width + c), &pattern[at % pattern.size()], 2);
      }
    }
    return bytes;
  };
  std::map<std::string, std::vector<HfTensor>> files;
  for (const HfTensor& tensor : tensors) {
    const bool in_layer = tensor.spec->name.starts_with("layers.");
    files[in_layer ? tensor.spec->name.substr(7, tensor.spec->name.find('.', 7) - 7) : "rest"].push_back(
        tensor);
  }
  nlohmann::json map;
  for (const auto& [name, part] : files) {
    const std::string file = fmt::format("model-{}.safetensors", name);
    WritableFile sink = posix_env().create(folder + "/" + file);
    write_hf_tensors(sink, part, SafeDType::BF16, read);
    sink.close();
    for (const HfTensor& tensor : part) map[tensor.part->name] = file;
  }
  std::ofstream(folder + "/model.safetensors.index.json") << nlohmann::json{{"weight_map", map}};
}

TEST(StreamingLoad, NoDenseCopyOfTheModelExists) {
  const std::string folder = testing::TempDir() + "streaming_load";
  fs::create_directories(folder);
  const ModelConfig config = large_model();
  write_folder(config, folder);
  int64_t dense_bytes = 0;
  for (const ParameterSpec& spec : parameter_table(config)) dense_bytes += 2 * spec.shape.numel();
  ASSERT_GT(dense_bytes, int64_t{500} << 20);

  CpuDevice device(2);
  Transformer model(config, {.rows = 1, .length = 16}, {.precision = Precision::Fp8}, device,
                    {.adapters = plan_adapters(config, {.rank = 4}), .one_copy_layers = kAllLayers});
  const int64_t weights = model.plan().bytes(MemoryCategory::Weights);
  EXPECT_LT(weights, dense_bytes * 6 / 10);  // one byte per weight of the layers
  MemoryWatch watch;
  model.allocate();
  model.initialise(1, false);
  load_hf_folder(device, model, folder);
  const int64_t used = watch.stop();
  // The matrix that is being filled passes through staging memory. The rest: adapters and their state, headers of the
  // files, stacks.
  [[maybe_unused]] constexpr int64_t kStaging = int64_t{64} << 20, kSlack = int64_t{32} << 20;
#ifndef OCTET_SANITIZED  // sanitizers need memory of their own
  EXPECT_LE(used, weights + kStaging + kSlack);
#endif
  EXPECT_GE(used, weights) << "nothing was loaded";

  // What was loaded is what the files hold.
  Linear& down = const_cast<Linear&>(model.blocks().back().mlp.down);
  const HfFiles files(folder);
  const std::vector<float> values = files.weights().values(down.weight.parameter().spec);
  const QuantizedMatrix& codes = down.weight.copies()->rowwise;
  const float* table = fp8_values(DType::E4M3);
  float amax = 0;
  for (const float value : values) amax = std::max(amax, std::fabs(value));
  const float inverse = *codes.tensor_scale;
  EXPECT_FLOAT_EQ(inverse, amax / 448.0f);
  for (size_t i = 0; i < values.size(); i += 1009) {
    const float value = table[static_cast<const uint8_t*>(codes.codes.data)[i]] * inverse;
    // Half a step of e4m3: 1/16 of the value, or half of the smallest step.
    ASSERT_NEAR(value, values[i], std::max(std::fabs(values[i]) / 16, inverse * 0x1p-10f)) << i;
  }
  fs::remove_all(folder);
}

}  // namespace
}  // namespace octet::test
