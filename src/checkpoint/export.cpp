#include "checkpoint/export.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "checkpoint/checkpoint.h"
#include "data/tokenizer/tokenizer.h"
#include "hf/export_tokenizer.h"
#include "hf/hf_folder.h"
#include "tensor/split_fp32.h"

namespace octet {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kGenerationName = "generation_config.json";

// The folder under its temporary name: removed again unless it is published.
class TemporaryOutput {
 public:
  TemporaryOutput(Env& env, std::string output)
      : env_(env), output_(std::move(output)), path_(fmt::format("{}.tmp-{}", output_, ::getpid())) {
    if (env.exists(output_)) {
      if (!env.is_directory(output_) || !env.list(output_).empty()) {
        fail_config("[{}] already exists and is not an empty folder; choose another --output", output_);
      }
    }
    env.make_directories(parent_path(output_));
    env.make_directory(path_);
  }
  ~TemporaryOutput() {
    if (published_) return;
    try {
      env_.remove_tree(path_);
    } catch (const Error& error) {
      log_warning("the temporary folder {} could not be removed: {}", path_, error.what());
    }
  }
  TemporaryOutput(const TemporaryOutput&) = delete;

  const std::string& path() const { return path_; }
  void publish() {
    env_.sync_directory(path_);
    env_.rename(path_, output_);
    published_ = true;
    env_.sync_directory(parent_path(output_));
  }

 private:
  Env& env_;
  std::string output_, path_;
  bool published_ = false;
};

// Weights as the folder has them, and with the remainders of a checkpoint once those are opened.
class WeightSource {
 public:
  WeightSource(const ModelFolder& model, std::span<const ParameterSpec> table)
      : files_(model.folder), weights_(files_.weights()), table_(table) {
    if (const std::vector<std::string> surplus = files_.surplus(table); !surplus.empty()) {
      fail("[{}] holds tensors that the model does not have:\n  {}", model.folder,
           fmt::join(surplus, "\n  "));
    }
    weights_.check(table);
  }

  // Error if the checksum of their file is wrong: find_model has checked only the weights.
  void open_remainders(Env& env, const Checkpoint& checkpoint) {
    if (!checkpoint.has_file(checkpoint_file::kOptimizer)) return;
    optimizer_ = SafetensorsFile::open(env, checkpoint.file_path(checkpoint_file::kOptimizer));
    if (std::ranges::any_of(table_, [this](const ParameterSpec& spec) { return remainder_of(spec); }))
      verify_files(env, checkpoint, std::array<std::string_view, 1>{checkpoint_file::kOptimizer});
  }

  // The type that all weights are stored in, or F32 where they differ.
  SafeDType stored_dtype(std::span<const HfTensor> tensors) const {
    for (const HfTensor& tensor : tensors) {
      if (files_.find(tensor.part->name)->dtype != SafeDType::BF16) return SafeDType::F32;
    }
    return SafeDType::BF16;
  }

  ReadWeightRows reader(SafeDType dtype) const {
    return [this, dtype](size_t parameter, int64_t begin, int64_t rows) {
      const ParameterSpec& spec = table_[parameter];
      std::vector<float> values = weights_.values(spec, begin, rows);
      add_remainder(spec, begin, values);
      std::vector<std::byte> bytes(values.size() * (dtype == SafeDType::F32 ? 4 : 2));
      if (dtype == SafeDType::F32) {
        std::memcpy(bytes.data(), values.data(), bytes.size());
      } else {
        for (size_t i = 0; i < values.size(); ++i) {
          const Bf16 value = to_bf16(values[i]);
          std::memcpy(bytes.data() + 2 * i, &value, 2);
        }
      }
      return bytes;
    };
  }

 private:
  const SafeTensor* remainder_of(const ParameterSpec& spec) const {
    return optimizer_ ? optimizer_->find(spec.name + ".remainder") : nullptr;
  }

  // A checkpoint keeps the exact weights of a bf16 run: see tensor/split_fp32.h.
  void add_remainder(const ParameterSpec& spec, int64_t begin, std::vector<float>& values) const {
    const SafeTensor* remainder = remainder_of(spec);
    if (!remainder) return;
    require(remainder->dtype == SafeDType::U16 && remainder->count() == spec.shape.numel(),
            "[{}] {} is not the remainder of a weight of {} elements", optimizer_->place(), remainder->name,
            spec.shape.numel());
    const int64_t width = spec.shape.rank() == 1 ? 1 : spec.shape[1];
    const std::byte* from = remainder->bytes.data() + 2 * begin * width;
    for (size_t i = 0; i < values.size(); ++i) {
      uint16_t low = 0;
      std::memcpy(&low, from + 2 * i, 2);
      values[i] = std::bit_cast<float>(join_bits(std::bit_cast<uint32_t>(values[i]), low));
    }
  }

  HfFiles files_;
  HfWeights weights_;
  std::span<const ParameterSpec> table_;
  std::optional<SafetensorsFile> optimizer_;
};

void write_weights(Env& env, const std::string& folder, const std::vector<HfTensor>& tensors, SafeDType dtype,
                   const ReadWeightRows& read, int64_t shard_bytes, Exported& exported) {
  // Tensors in the order of the model, as many to a file as fit.
  std::vector<std::vector<HfTensor>> shards(1);
  int64_t filled = 0;
  for (const HfTensor& tensor : tensors) {
    const int64_t bytes = tensor.as(dtype).byte_size();
    if (filled > 0 && filled + bytes > shard_bytes) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().push_back(tensor);
    filled += bytes;
    exported.bytes += bytes;
    ++exported.tensors;
  }
  exported.files = std::ssize(shards);
  Json map = Json::object();
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shards.size() == 1
                                 ? "model.safetensors"
                                 : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    WritableFile file = env.create(join_path(folder, name));
    write_hf_tensors(file, shards[i], dtype, read);
    file.sync();
    file.close();
    for (const HfTensor& tensor : shards[i]) map[tensor.part->name] = name;
  }
  if (shards.size() == 1) return;
  const Json index = {{"metadata", {{"total_size", exported.bytes}}}, {"weight_map", map}};
  env.write_synced(join_path(folder, "model.safetensors.index.json"), index.dump(2) + "\n");
}

// What the folder itself says of generation, or else the ids that begin and end a text.
std::string generation_config(Env& env, const ModelFolder& model, const ModelConfig& config) {
  if (const std::string path = join_path(model.folder, kGenerationName); env.exists(path))
    return env.read_text(path);
  Json json = {{"_from_model_config", true}};
  if (config.bos_id) json["bos_token_id"] = *config.bos_id;
  if (config.eos_ids.size() == 1) json["eos_token_id"] = config.eos_ids.front();
  if (config.eos_ids.size() > 1) json["eos_token_id"] = config.eos_ids;
  return json.dump(2) + "\n";
}

}  // namespace

Exported export_model(Env& env, const ModelFolder& model, const std::string& output,
                      const ExportOptions& options) {
  const std::string tokenizer_name = options.tokenizer.empty() ? model.tokenizer : options.tokenizer;
  ModelConfig config = model.config;
  if (!tokenizer_name.empty()) {
    const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(tokenizer_name);
    if (tokenizer->vocab_size() > config.vocab) {
      fail_config(
          "tokenizer '{}' has {} ids, but the model has a vocabulary of {}; use the tokenizer of the model",
          tokenizer_name, tokenizer->vocab_size(), config.vocab);
    }
    if (!config.bos_id) config.bos_id = tokenizer->bos();
    if (config.eos_ids.empty() && tokenizer->eos()) config.eos_ids = {*tokenizer->eos()};
  }
  const std::vector<ParameterSpec> table = parameter_table(config);
  const std::vector<HfTensor> tensors = hf_tensors(table);
  WeightSource source(model, table);
  Exported exported;
  exported.dtype = options.dtype ? *options.dtype : source.stored_dtype(tensors);
  if (exported.dtype == SafeDType::F32 && model.checkpoint) source.open_remainders(env, *model.checkpoint);

  // No slash at the end, because a suffix is added for the temporary name.
  std::string target = output;
  while (target.size() > 1 && target.back() == '/') target.pop_back();
  TemporaryOutput folder(env, target);
  env.write_synced(join_path(folder.path(), "config.json"),
                   to_hf_config(config, exported.dtype == SafeDType::F32 ? DType::F32 : DType::BF16));
  env.write_synced(join_path(folder.path(), kGenerationName), generation_config(env, model, config));
  if (!tokenizer_name.empty())
    exported.tokenizer = export_tokenizer(env, tokenizer_name, folder.path(), config.max_positions);
  write_weights(env, folder.path(), tensors, exported.dtype, source.reader(exported.dtype),
                options.shard_bytes, exported);
  folder.publish();
  return exported;
}

}  // namespace octet
