#include "checkpoint/export.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/input_errors.h"
#include "base/json.h"
#include "base/log.h"
#include "base/parallel_for.h"
#include "checkpoint/chat_style.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/export_tokenizer_choice.h"
#include "checkpoint/model_weights.h"
#include "data/tokenizer/hf_tokenizer.h"
#include "data/tokenizer/tokenizer.h"
#include "hf/export_tokenizer.h"
#include "hf/hf_folder.h"
#include "hf/peft_folder.h"
#include "io/temporary_file.h"
#include "model/family.h"

namespace octet {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kGenerationName = "generation_config.json";

// The folder under its temporary name: removed again unless it is published.
class TemporaryOutput {
 public:
  TemporaryOutput(Env& env, std::string output)
      : env_(env), output_(std::move(output)), path_(temporary_name(output_)) {
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

std::vector<std::byte> as_bytes_of(std::span<const float> values, SafeDType dtype) {
  std::vector<std::byte> bytes(values.size() * (dtype == SafeDType::F32 ? 4 : 2));
  if (dtype == SafeDType::F32) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  parallel_for(std::ssize(values), kElementsPerPiece, [&](int64_t begin, int64_t end) {
    for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
      const Bf16 value = to_bf16(values[i]);
      std::memcpy(bytes.data() + 2 * i, &value, 2);
    }
  });
  return bytes;
}

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

// The folder's own generation settings, with the ids that begin and end a text, and that pad it.
std::string generation_config(Env& env, const ModelFolder& model, const ModelConfig& config,
                              std::optional<int32_t> pad) {
  Json json = {{"_from_model_config", true}};
  const std::string path = join_path(model.folder, kGenerationName);
  if (!model.folder.empty() && env.exists(path)) {
    const std::string text = env.read_text(path);
    parse_json(text, path);
    json = Json::parse(text);  // a second time, to keep the order of the keys
    require(json.is_object(), "[{}] is {}, expected an object", path, json.type_name());
    if (json.value("eos_token_id", Json()) == Json(config.eos_ids)) return text;
  } else {
    if (config.bos_id) json["bos_token_id"] = *config.bos_id;
    if (pad) json["pad_token_id"] = *pad;
  }
  if (config.eos_ids.size() == 1) json["eos_token_id"] = config.eos_ids.front();
  if (config.eos_ids.size() > 1) json["eos_token_id"] = config.eos_ids;
  return json.dump(2) + "\n";
}

// The padding token of the model: config.json's, otherwise the one of generation_config.json.
std::optional<int32_t> own_pad_id(const ModelFolder& model) {
  if (model.config.pad_id) return model.config.pad_id;
  const std::string path = join_path(model.folder, kGenerationName);
  if (model.folder.empty() || !posix_env().exists(path)) return std::nullopt;
  const nlohmann::json json = parse_json(posix_env().read_text(path), path);
  if (!json.is_object()) return std::nullopt;
  const std::vector<int32_t> ids = HfFields(json, path).token_ids("pad_token_id");
  return !ids.empty() && ids.front() < model.config.vocab ? std::optional(ids.front()) : std::nullopt;
}

std::optional<int32_t> pad_id_of_tokenizer(const std::string& name) {
  if (name == "bytes") return std::nullopt;
  const TokenizerSpec spec = read_tokenizer_spec(local_tokenizer(name));
  return std::visit([](const VocabularySpec& common) { return common.pad; }, spec);
}

}  // namespace

TokenizerChoice choose_tokenizer(const ModelFolder& model, const ExportOptions& options, ModelConfig& config,
                                 const std::optional<ChatStyle>& chat) {
  const std::string name = options.tokenizer.empty() ? model.tokenizer : options.tokenizer;
  if (name.empty()) return {.name = "", .chat = std::nullopt, .pad = own_pad_id(model)};
  const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer(name);
  if (tokenizer->vocab_size() > config.vocab) {
    fail_config(
        "tokenizer '{}' has {} ids, but the model has a vocabulary of {}; use the tokenizer of the model",
        name, tokenizer->vocab_size(), config.vocab);
  }
  if (!config.bos_id) config.bos_id = tokenizer->bos();
  // A folder's own template that octet only recognised stays as it is, and so do the ids that end a text.
  const bool is_trained = model.checkpoint && model.checkpoint->has_file(checkpoint_file::kChat);
  const std::optional<ChatRenderer> renderer = chat ? renderer_for(chat, *tokenizer)
                                               : is_trained
                                                   ? renderer_for(find_chat_style(model).style, *tokenizer)
                                                   : std::nullopt;
  config.eos_ids = end_ids_of(model, tokenizer.get(), renderer ? &*renderer : nullptr);
  TokenizerChoice choice{.name = name, .chat = std::nullopt, .pad = pad_id_of_tokenizer(name)};
  if (!choice.pad) choice.pad = own_pad_id(model);
  if (renderer) choice.chat = ExportedChat{.jinja = renderer->jinja(), .end = renderer->end_token()};
  return choice;
}

namespace {

void export_tokenizer_to(Env& env, const TokenizerChoice& tokenizer, const std::string& folder,
                         const ModelConfig& config, Exported& exported) {
  if (tokenizer.name.empty()) return;
  exported.tokenizer = export_tokenizer(env, tokenizer.name, folder, config.max_positions, tokenizer.chat);
  if (tokenizer.chat) exported.chat_end = tokenizer.chat->end;
}

// A suffix is added for the temporary name.
std::string without_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

}  // namespace

namespace {

// `read` gives the weights of the table, in octet's layout, as bytes of `exported.dtype`.
Exported write_model(Env& env, const ModelFolder& about, const ModelConfig& config,
                     const TokenizerChoice& tokenizer, std::span<const ParameterSpec> table,
                     const ReadWeightRows& read, const std::string& output, int64_t shard_bytes,
                     SafeDType dtype) {
  Exported exported;
  exported.dtype = dtype;
  TemporaryOutput folder(env, without_slash(output));
  env.write_synced(join_path(folder.path(), "config.json"),
                   to_hf_config(config, dtype == SafeDType::F32 ? DType::F32 : DType::BF16));
  env.write_synced(join_path(folder.path(), kGenerationName),
                   generation_config(env, about, config, tokenizer.pad));
  export_tokenizer_to(env, tokenizer, folder.path(), config, exported);
  write_weights(env, folder.path(), hf_tensors(table), dtype, read, shard_bytes, exported);
  folder.publish();
  return exported;
}

// `read` gives the adapters of the table in F32.
void write_adapter(Env& env, const ModelConfig& config, const TokenizerChoice& tokenizer,
                   std::span<const ParameterSpec> table, const ReadWeightRows& read,
                   const std::string& output, ExportedAdapter& exported) {
  TemporaryOutput folder(env, without_slash(output));
  env.write_synced(join_path(folder.path(), kAdapterConfigName),
                   to_peft_config(config, exported.plan, exported.base));
  export_tokenizer_to(env, tokenizer, folder.path(), config, exported);
  const std::vector<HfTensor> tensors = hf_tensors(table);
  WritableFile file = env.create(join_path(folder.path(), kAdapterWeightsName));
  write_hf_tensors(file, tensors, SafeDType::F32, read);
  file.sync();
  file.close();
  for (const HfTensor& tensor : tensors) exported.bytes += tensor.as(SafeDType::F32).byte_size();
  exported.tensors = std::ssize(tensors);
  exported.files = 1;
  folder.publish();
}

}  // namespace

Exported export_model(Env& env, const ModelFolder& model, const std::string& output,
                      const ExportOptions& options) {
  ModelConfig config = model.config;
  const TokenizerChoice tokenizer = reading_input([&] { return choose_tokenizer(model, options, config); });
  const std::vector<ParameterSpec> table = parameter_table(config);
  const std::unique_ptr<Device> cpu = make_cpu_device(0);
  ModelWeights weights = reading_input([&] { return ModelWeights(model, table, *cpu); });
  const SafeDType dtype = options.dtype ? *options.dtype : weights.stored_dtype();
  // An adapter was trained on the weights of its base without remainders.
  if (dtype == SafeDType::F32 && model.checkpoint && !model.adapter)
    reading_input([&] { weights.open_remainders(env, *model.checkpoint); });
  const auto read = [&](size_t parameter, int64_t begin, int64_t rows) {
    return as_bytes_of(weights.rows(table[parameter], begin, rows), dtype);
  };
  return write_model(env, model, config, tokenizer, table, read, output, options.shard_bytes, dtype);
}

ExportedAdapter export_adapter(Env& env, const ModelFolder& model, const std::string& output,
                               const ExportOptions& options) {
  require(model.adapter.has_value(), "[{}] has no adapter to export", model.source);
  ModelConfig config = model.config;
  const TokenizerChoice tokenizer = reading_input([&] { return choose_tokenizer(model, options, config); });
  const PeftAdapter adapter = reading_input([&] { return PeftAdapter(env, model.adapter->folder, config); });
  const std::vector<ParameterSpec> table = adapters_of(parameter_table(config, adapter.plan()));
  ExportedAdapter exported;
  exported.plan = adapter.plan();
  exported.base = options.base.empty() ? adapter.config().base : options.base;

  const HfWeights weights = adapter.weights();
  const auto read = [&](size_t parameter, int64_t begin, int64_t rows) {
    return as_bytes_of(weights.values(table[parameter], begin, rows), SafeDType::F32);
  };
  write_adapter(env, config, tokenizer, table, read, output, exported);
  return exported;
}

void export_trained(Env& env, Device& device, Transformer& model, const ModelFolder& about,
                    const std::optional<ChatStyle>& chat, const std::string& base,
                    const std::string& output) {
  const ExportOptions options;
  ModelConfig config = model.config();
  const TokenizerChoice tokenizer =
      reading_input([&] { return choose_tokenizer(about, options, config, chat); });
  std::vector<ParameterSpec> table;
  std::vector<size_t> indices;  // of the table's parameters in the model
  for (size_t i = 0; i < model.parameters().all().size(); ++i) {
    const ParameterSpec& spec = model.parameters().all()[i].spec;
    if (model.has_adapters() && !spec.is_adapter()) continue;
    table.push_back(spec);
    indices.push_back(i);
  }
  const SafeDType dtype = model.has_adapters() ? SafeDType::F32 : safe_dtype(model.numerics().dense());
  const ReadWeightRows on_device = device_weight_rows(device, model.parameters(), dtype);
  const auto read = [&](size_t parameter, int64_t begin, int64_t rows) {
    return on_device(indices[parameter], begin, rows);
  };
  if (model.has_adapters()) {
    ExportedAdapter exported;
    exported.plan = model.finetuning().adapters;
    exported.base = base;
    write_adapter(env, config, tokenizer, table, read, output, exported);
  } else {
    write_model(env, about, config, tokenizer, table, read, output, options.shard_bytes, dtype);
  }
}

std::vector<std::string> adapter_loaders(const ModelConfig& config, const AdapterPlan& plan) {
  const Adapter& first = plan.adapters.front();
  int64_t rank = 0;
  bool one_rank = true, one_alpha = true;
  for (const Adapter& adapter : plan.adapters) {
    rank = std::max(rank, adapter.rank);
    one_rank = one_rank && adapter.rank == first.rank;
    one_alpha = one_alpha && adapter.alpha == first.alpha;
  }
  const bool conv1d = config.family->tensors.transposed;

  // Values of --max-lora-rank from its default on.
  constexpr int64_t kVllmRanks[] = {16, 32, 64, 128, 256, 320, 512};
  const auto vllm_rank = std::ranges::find_if(kVllmRanks, [&](int64_t allowed) { return allowed >= rank; });
  std::string vllm = "yes";
  if (conv1d) {
    vllm = fmt::format("no, it has no LoRA for {}", config.family->architecture);
  } else if (!one_rank || !one_alpha) {
    vllm = "no, it ignores rank_pattern and alpha_pattern and would use a wrong scale";
  } else if (vllm_rank == std::end(kVllmRanks)) {
    vllm = fmt::format("no, rank {} is above its limit of 512", rank);
  } else if (*vllm_rank > 16) {
    vllm = fmt::format("yes, with --max-lora-rank {} (its default is 16)", *vllm_rank);
  }
  std::string llama_cpp = "yes, after convert_lora_to_gguf.py";
  if (conv1d) {
    llama_cpp = "no, its converter does not take the Conv1D layers of this family";
  } else if (!one_alpha) {
    llama_cpp = "no, it ignores alpha_pattern and would use a wrong scale";
  } else if (first.rslora) {
    llama_cpp = "no, it ignores use_rslora and would use a wrong scale";
  }
  return {"PEFT: yes", "vLLM: " + vllm, "llama.cpp: " + llama_cpp};
}

}  // namespace octet
