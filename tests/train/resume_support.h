#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/resume.h"
#include "config/config.h"
#include "hf/hf_folder.h"
#include "model/transformer.h"
#include "plan/resume_config.h"
#include "support/process.h"

namespace octet::test {

namespace fs = std::filesystem;
using Setting = std::pair<std::string, std::string>;
using Settings = std::vector<Setting>;

// The files that equal states have in common.
inline constexpr const char* kStateFiles[] = {
    "model.safetensors", "adapter_model.safetensors", "adapter_config.json",
    "base.json",         "optimizer.safetensors",     "fp8_state.bin",
    "state.json"};

// What a run says on stderr.
class Stderr {
 public:
  Stderr() { testing::internal::CaptureStderr(); }
  std::string text() { return testing::internal::GetCapturedStderr(); }
};

// Runs of octet train inside this process, of a model small enough for many of them.
struct Resume : testing::Test {
  Resume() {
    std::string text;
    for (int i = 0; i < 400; ++i) text += fmt::format("number {} follows {}\n", i * 7919 % 1000, i * 31 % 97);
    dataset = folder.write("text.txt", text);
  }

  // A run of a few steps of a two-layer model, as flags; `changes` come last and win.
  TrainConfig config(const std::string& name, const Settings& changes) {
    std::map<std::string, std::string> flags = {{"dataset", dataset},
                                                {"model_name_or_path", model_folder()},
                                                {"device", "cpu"},
                                                {"max_seq_length", "24"},
                                                {"per_device_train_batch_size", "2"},
                                                {"max_steps", "12"},
                                                {"save_steps", "6"},
                                                {"eval_batches", "1"},
                                                {"eval_split", "0.1"},
                                                {"eval_steps", "0"},
                                                {"learning_rate", "0.002"},
                                                {"num_threads", "2"},
                                                {"use_tensorboard", "false"},
                                                {"progress", "quiet"},
                                                {"output_dir", folder.path() + "/runs"},
                                                {"run_name", name}};
    for (const auto& [key, value] : changes) flags[key] = value;
    std::vector<KeySetting> settings;
    for (const auto& [key, value] : flags) settings.push_back({.name = key, .values = {value}});
    return load_resumable_config({}, settings);
  }

  // Two layers of width 64 keep a run under a tenth of a second.
  std::string model_folder() {
    const std::string path = folder.path() + "/model";
    if (fs::exists(path)) return path;
    fs::create_directories(path);
    ModelConfig model = model_preset("llama-tiny");
    model.layers = 2;
    model.width = 64;
    model.heads = 2;
    model.kv_heads = 1;
    model.ffn = 96;
    const auto device = make_cpu_device(1);
    Transformer transformer(model, {.rows = 1, .length = 8, .training = false},
                            {.precision = Precision::Fp32}, *device);
    transformer.allocate();
    transformer.parameters().initialise(*device, 3);
    std::ofstream(path + "/config.json") << to_hf_config(model, DType::F32);
    WritableFile file = posix_env().create(path + "/model.safetensors");
    save_hf_weights(file, *device, transformer.parameters(), SafeDType::F32);
    return path;
  }

  std::string checkpoint(const std::string& run, int step, bool fp8) {
    return fmt::format("{}/runs/{}/{}/step_{}", folder.path(), run, fp8 ? "checkpoints_fp8" : "checkpoints",
                       step);
  }

  void expect_equal_states(const std::string& a, const std::string& b) {
    for (const char* name : kStateFiles) {
      ASSERT_EQ(fs::exists(a + "/" + name), fs::exists(b + "/" + name)) << name;
      if (!fs::exists(a + "/" + name)) continue;
      EXPECT_TRUE(read_text(a + "/" + name) == read_text(b + "/" + name)) << name;
    }
  }

  TemporaryFolder folder;
  std::string dataset;
};

}  // namespace octet::test
