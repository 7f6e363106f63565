#include "plan/model_stage.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/base_identity.h"
#include "checkpoint/chat_style.h"
#include "checkpoint/checkpoint.h"
#include "data/tokenizer/tokenizer.h"
#include "hf/hf_folder.h"
#include "hf/peft_folder.h"
#include "model/family.h"
#include "model/parameters.h"

namespace octet {
namespace {

struct SizeKey {
  const char* name;
  int64_t ModelKeys::*key;
  int64_t ModelSizes::*given;
  int64_t ModelConfig::*size;
};
constexpr SizeKey kSizeKeys[] = {
    {"hidden_size", &ModelKeys::hidden_size, &ModelSizes::width, &ModelConfig::width},
    {"num_hidden_layers", &ModelKeys::num_hidden_layers, &ModelSizes::layers, &ModelConfig::layers},
    {"num_attention_heads", &ModelKeys::num_attention_heads, &ModelSizes::heads, &ModelConfig::heads},
    {"num_key_value_heads", &ModelKeys::num_key_value_heads, &ModelSizes::kv_heads, &ModelConfig::kv_heads},
    {"head_dim", &ModelKeys::head_dim, &ModelSizes::head_dim, &ModelConfig::head_dim},
    {"intermediate_size", &ModelKeys::intermediate_size, &ModelSizes::ffn, &ModelConfig::ffn},
    {"vocab_size", &ModelKeys::vocab_size, &ModelSizes::vocab, &ModelConfig::vocab},
    {"max_position_embeddings", &ModelKeys::max_position_embeddings, &ModelSizes::max_positions,
     &ModelConfig::max_positions},
};
constexpr const char* kTied = "tie_word_embeddings";
using Tie = TieWordEmbeddings;

ModelSizes sizes_of(const ModelKeys& config) {
  ModelSizes sizes;
  for (const SizeKey& size : kSizeKeys) sizes.*size.given = config.*size.key;
  if (config.tie_word_embeddings != Tie::Auto) sizes.tied_head = config.tie_word_embeddings == Tie::Yes;
  return sizes;
}

std::vector<std::string> given_sizes(const ModelKeys& config) {
  std::vector<std::string> names;
  for (const SizeKey& size : kSizeKeys) {
    if (config.*size.key > 0) names.push_back(size.name);
  }
  if (config.tie_word_embeddings != Tie::Auto) names.push_back(kTied);
  return names;
}

// "hidden_size is 128, not 256", of the first size that is not the same; else the first weight. Empty: none.
std::string first_difference(const ModelConfig& preset, const ModelConfig& model) {
  const auto shapes = [](const ModelConfig& of) {
    std::map<std::string, std::string> result;
    for (const ParameterSpec& spec : parameter_table(of)) result[spec.name] = spec.shape.to_string();
    return result;
  };
  const auto expected = shapes(preset), found = shapes(model);
  if (expected == found) return "";
  for (const SizeKey& size : kSizeKeys) {
    if (preset.*size.size != model.*size.size)
      return fmt::format("{} is {} in the preset and {} there", size.name, preset.*size.size,
                         model.*size.size);
  }
  for (const auto& [name, shape] : expected) {
    if (!found.contains(name)) return fmt::format("the preset has {}, which is not there", name);
    if (found.at(name) != shape)
      return fmt::format("{} is {} in the preset and {} there", name, shape, found.at(name));
  }
  for (const auto& [name, shape] : found) {
    if (!expected.contains(name)) return fmt::format("{} is there, which the preset does not have", name);
  }
  return "";
}

// The preset of a dataset without a model is a guess, which a checkpoint corrects.
bool has_preset(const ModelKeys& config) {
  return !config.model_preset.empty() &&
         (config.model_preset != kAssumedPreset || config.is_set("model_preset"));
}

// Keys that describe another model than the checkpoint are refused: who changed them expects that other model.
void refuse_other_model(const ModelKeys& config, const ModelConfig& model, const std::string& path) {
  for (const SizeKey& size : kSizeKeys) {
    if (config.*size.key > 0 && config.*size.key != model.*size.size) {
      fail_config("{} is {}, but the model of {} has {}", size.name, config.*size.key, path,
                  model.*size.size);
    }
  }
  if (config.tie_word_embeddings != Tie::Auto && (config.tie_word_embeddings == Tie::Yes) != model.tied_head)
    fail_config("{} is {}, but the model of {} has {}", kTied, !model.tied_head, path, model.tied_head);
  if (!has_preset(config)) return;
  const ModelConfig preset = resolve_model(config.model_preset, sizes_of(config));
  const std::string difference = first_difference(preset, model);
  if (!difference.empty())
    fail_config("model_preset {} is not the model of {}: {}", config.model_preset, path, difference);
}

ModelChoice model_of_checkpoint(const ModelKeys& keys, Checkpoint resumed) {
  ModelChoice choice;
  choice.config = read_hf_config(resumed.path);
  refuse_other_model(keys, choice.config, resumed.path);
  if (has_preset(keys)) choice.config.name = keys.model_preset;
  choice.tokenizer = tokenizer_of(resumed);
  choice.resumed = std::move(resumed);
  return choice;
}

ModelChoice model_of_keys(const ModelKeys& keys) {
  ModelChoice choice;
  if (keys.model_name_or_path.empty()) {
    choice.config = resolve_model(keys.model_preset, sizes_of(keys));
    choice.tokenizer = tokenizer_of_preset(keys);
    return choice;
  }
  choice.start = find_start(keys.model_name_or_path);
  choice.tokenizer = choice.start->tokenizer;
  if (!choice.start->has_weights) {
    choice.config = resolve_model(choice.start->config, sizes_of(keys));
    log_warning("{} has no weights (*.safetensors): training starts from random weights",
                choice.start->source);
    return choice;
  }
  if (const std::vector<std::string> given = given_sizes(keys); !given.empty()) {
    fail_config("{} cannot be set with model_name_or_path {}: its weights have their own sizes",
                fmt::join(given, ", "), keys.model_name_or_path);
  }
  choice.config = choice.start->config;
  return choice;
}

void refuse_other_finetuning(const ModelKeys& keys, const Checkpoint& resumed) {
  const bool adapters = resumed.has_file(checkpoint_file::kAdapterWeights);
  if (adapters == keys.is_lora()) return;
  fail_config(
      "finetuning_type is {}, but the checkpoint {} holds {}; to start a new run from it, set {} to it instead "
      "of resume",
      config_text(keys, "finetuning_type"), resumed.path, adapters ? "adapters" : "all weights of a model",
      adapters ? "adapter_name_or_path" : "model_name_or_path");
}

// An adapter names its base, so no other key needs to.
void take_base(ModelKeys& keys) {
  if (keys.adapter_name_or_path.empty() || keys.is_set("model_preset") || !keys.model_name_or_path.empty())
    return;
  const std::string folder = find_adapter(keys.adapter_name_or_path).folder;
  keys.model_preset.clear();  // the default of runs without a model
  keys.model_name_or_path = read_peft_config(posix_env(), folder).base;
  if (keys.model_name_or_path.empty()) {
    fail_config("the adapter {} does not name its base model; set model_name_or_path or model_preset",
                folder);
  }
}

std::vector<std::string> modules_of(const AdapterPlan& plan) {
  std::vector<std::string> names;
  for (const Adapter& adapter : plan.adapters) names.push_back(adapter.module);
  return names;
}

// Settings of new adapters, which must not contradict those of an adapter that the run starts or continues from. `lora`
// is what its file says.
void refuse_other_adapter(const ModelKeys& keys, const LoraConfig& lora, const ModelChoice& choice) {
  const LoraConfig& settings = *choice.lora;
  const auto refuse = [&](const char* key, const std::string& value) {
    fail_config("{} is {}, but the adapter {} has {}; remove the key", key, config_text(keys, key),
                choice.adapter_folder, value);
  };
  if (keys.is_set("lora_rank") && keys.lora_rank != lora.rank && keys.lora_rank != settings.rank)
    refuse("lora_rank", fmt::format("{}", lora.rank));
  // 0 is the default.
  if (keys.is_set("lora_alpha") && keys.lora_alpha != 0 && keys.lora_alpha != lora.alpha &&
      keys.lora_alpha != settings.alpha)
    refuse("lora_alpha", fmt::format("{}", lora.alpha));
  if (keys.is_set("use_rslora") && keys.use_rslora != lora.rslora)
    refuse("use_rslora", lora.rslora ? "true" : "false");
  if (!keys.is_set("lora_target")) return;
  const AdapterPlan wanted = plan_adapters(choice.config, {.targets = keys.lora_target}, "lora_target");
  if (modules_of(wanted) == modules_of(choice.adapters)) return;
  const std::string layers =
      settings.layers.empty() ? "" : fmt::format(" in layers {}", fmt::join(settings.layers, ","));
  refuse("lora_target", fmt::format("{}{}", fmt::join(settings.targets, ","), layers));
}

// Where the base of a LoRA run is now: where the keys say, or else where it was when the checkpoint was saved. A run may
// be continued from another directory, where a relative path leads nowhere.
std::string base_of_run(const ModelKeys& keys, const Checkpoint& resumed) {
  const std::string& name = keys.model_name_or_path;
  if (name.empty() || posix_env().exists(name)) return name;
  const std::string path = resumed.file_path(checkpoint_file::kBase);
  const std::string saved = base_identity_from_json(posix_env().read_text(path), path).path;
  if (!saved.empty() && posix_env().exists(saved)) return saved;
  if (saved == name) return name;  // a hub id
  fail_config(
      "the base of the run, {}, does not exist; if it was moved, pass its place as --model_name_or_path",
      saved.empty() ? name : saved);
}

void choose_adapters(const ModelKeys& keys, std::optional<Checkpoint> resumed, ModelChoice& choice) {
  choice.resumed = std::move(resumed);
  if (choice.has_weights()) {
    const bool is_folder = posix_env().exists(keys.model_name_or_path);
    choice.base_name = is_folder ? std::filesystem::absolute(choice.start->folder).lexically_normal().string()
                                 : keys.model_name_or_path;
  }
  // The adapters of a run that continues are in its checkpoint.
  if (choice.resumed) {
    if (keys.is_set_by_flag("adapter_name_or_path")) {
      fail_config("{} has no effect with resume, which continues the adapters of {}; remove one of the two",
                  keys.origins.at("adapter_name_or_path"), choice.resumed->path);
    }
    choice.adapter_folder = choice.resumed->path;
  } else if (!keys.adapter_name_or_path.empty()) {
    choice.adapter_folder = find_adapter(keys.adapter_name_or_path).folder;
  }
  if (choice.adapter_folder.empty()) {
    choice.adapters = plan_adapters(choice.config,
                                    {.rank = keys.lora_rank,
                                     .alpha = keys.lora_alpha,
                                     .dropout = keys.lora_dropout,
                                     .rslora = keys.use_rslora,
                                     .targets = keys.lora_target},
                                    "lora_target");
    return;
  }
  const PeftConfig adapter = read_peft_config(posix_env(), choice.adapter_folder);
  choice.adapters = plan_of(adapter, choice.config, choice.adapter_folder);
  choice.lora = lora_of(choice.config, choice.adapters);  // as the checkpoints of the run say it
  refuse_other_adapter(keys, adapter.lora, choice);
  if (keys.is_set("lora_dropout")) choice.adapters.dropout = keys.lora_dropout;
}

}  // namespace

ModelChoice choose_model(const ModelKeys& given, std::optional<Checkpoint> resumed) {
  if (resumed) refuse_other_finetuning(given, *resumed);
  ModelKeys keys = given;
  take_base(keys);
  if (resumed && keys.is_lora()) keys.model_name_or_path = base_of_run(keys, *resumed);
  // Adapters are continued on their base.
  ModelChoice choice =
      resumed && !keys.is_lora() ? model_of_checkpoint(keys, std::move(*resumed)) : model_of_keys(keys);
  if (keys.is_lora()) choose_adapters(keys, std::move(resumed), choice);
  return choice;
}

void check_length(const ModelChoice& model, int64_t max_seq_length) {
  // A run that was begun with longer sequences is continued as it was.
  if (model.resumed && !model.config.learned_positions && max_seq_length > model.config.max_positions) {
    log_warning("max_seq_length {} is more than the {} positions of the model, as in the resumed run",
                max_seq_length, model.config.max_positions);
    return;
  }
  check_sequence_length(model.config, "max_seq_length", max_seq_length,
                        !model.resumed && !model.has_weights());
}

std::string tokenizer_of_preset(const ModelKeys& keys) {
  constexpr int64_t kIdsOfGpt2 = 50257;
  if (keys.model_preset.empty() || !keys.model_name_or_path.empty()) return "";
  const ModelConfig model = resolve_model(keys.model_preset, sizes_of(keys));
  // Presets of Llama and Qwen have several tokenizers, most of them behind a licence.
  return model.family->name == "gpt2" && model.vocab >= kIdsOfGpt2 ? "openai-community/gpt2" : "";
}

void take_adapter(ModelKeys& keys, const ModelChoice& model) {
  if (!model.lora) return;
  take_base(keys);
  keys.lora_rank = model.lora->rank;
  keys.lora_alpha = model.lora->alpha;
  keys.use_rslora = model.lora->rslora;
  keys.lora_dropout = model.adapters.dropout;
  if (!keys.is_set("lora_target"))
    keys.lora_target = model.lora->layers.empty() ? model.lora->targets : modules_of(model.adapters);
}

void take_model(DataKeys& keys, const ModelConfig& model) {
  if (sizes_of(keys) != ModelSizes{}) {
    for (const SizeKey& size : kSizeKeys) keys.*size.key = model.*size.size;
    keys.tie_word_embeddings = model.tied_head ? Tie::Yes : Tie::No;
  }
  if (!keys.is_set("max_seq_length"))
    keys.max_seq_length = std::min(keys.max_seq_length, model.max_positions);
}

void take_chat(DataKeys& keys, const std::optional<ModelFolder>& start, bool may_download) {
  if (keys.chat_template != ChatTemplate::Auto) return;
  ModelChat chat;
  if (!keys.is_set("tokenizer")) {
    if (start) chat = find_chat_style(*start);
  } else if (const std::string folder = may_download ? local_tokenizer(keys.tokenizer) : keys.tokenizer;
             posix_env().is_directory(folder)) {
    chat = chat_style_in(folder);
  }
  if (!chat.unknown.empty()) {
    log_warning(
        "octet does not know the chat template in {}; for conversations it chooses one by the tokenizer. Set "
        "chat_template to choose another",
        chat.unknown);
  }
  if (!chat.style) return;
  keys.chat_template = chat.style->chat_template;
  if (keys.default_system == "auto" && chat.style->default_system)
    keys.default_system = *chat.style->default_system;
}

void check_weights(const ModelChoice& model) {
  if (model.has_weights()) check_hf_folder(parameter_table(model.config), model.start->folder);
  // Adapters are small: they are read as a whole.
  if (!model.adapter_folder.empty() && !model.resumed)
    PeftAdapter(posix_env(), model.adapter_folder, model.config);
}

}  // namespace octet
