#include "plan/data_stage.h"

#include <algorithm>
#include <filesystem>

#include "base/log.h"
#include "data/shards/manifest.h"
#include "data/tokenizer/no_tokenizer.h"
#include "plan/dataset_items.h"

namespace octet {

namespace fs = std::filesystem;

namespace {

// The tokenizer of the first prepared dataset, or nothing if there is none.
std::string tokenizer_of_prepared(const DataKeys& keys) {
  std::error_code error;
  for (const DatasetPart& part : expanded_dataset(keys)) {
    if (fs::is_directory(part.path, error) && has_dataset_manifest(posix_env(), part.path))
      return read_dataset_manifest(posix_env(), join_path(part.path, kManifestName)).tokenizer;
  }
  return "";
}

}  // namespace

std::string choose_tokenizer(const DataKeys& keys, const std::string& of_model) {
  std::string name = keys.tokenizer;
  if (!keys.is_set("tokenizer")) {
    if (const std::string prepared = tokenizer_of_prepared(keys); !prepared.empty()) {
      name = prepared;
    } else if (!of_model.empty()) {
      name = of_model;
      log_info("data: using the tokenizer of the model, {}", name);
    }
    if (name == "bytes" && of_model.empty() && !keys.model_name_or_path.empty()) {
      log_warning("{} has no tokenizer and none is given: text is read as bytes", keys.model_name_or_path);
    }
  }
  // The run may be looked at from another folder, and resumed after the tokenizer is gone.
  return name == "bytes" || is_hub_tokenizer(name) ? name : fs::absolute(name).lexically_normal().string();
}

std::unique_ptr<const Tokenizer> read_tokenizer(const DataKeys& keys, std::string& name, std::string& source,
                                                InNeed in_need) {
  try {
    source = local_tokenizer(source);  // the hub is asked once
  } catch (const ConfigError& error) {
    if (keys.is_set("tokenizer") || name != tokenizer_of_preset(keys)) throw;
    if (!keys.is_set("model_preset") || in_need == InNeed::Error) {
      fail_config(
          "{}\ntext for GPT-2 needs its tokenizer: give it with --tokenizer FOLDER (tokenizer.json, or vocab.json and "
          "merges.txt), or read bytes with --tokenizer bytes; --model_preset llama-tiny is a small model of bytes, for a try "
          "on a CPU",
          error.what());
    }
    log_warning(
        "text is read as bytes, because the tokenizer of {} cannot be had: {}; give it with --tokenizer FOLDER, or set "
        "--tokenizer bytes",
        keys.model_preset, error.what());
    name = source = "bytes";
  }
  return make_tokenizer(source);
}

namespace {

// As read_tokenizer. Data that are tokens already can be trained on without a tokenizer.
void open_tokenizer(const DataKeys& keys, DataChoice& choice) {
  std::string& source = choice.tokenizer_source;
  const bool may_be_absent = is_hub_tokenizer(source) || source == tokenizer_of_prepared(keys);
  if (!may_be_absent || needs_tokenizer(keys)) {
    try {
      choice.tokenizer = read_tokenizer(keys, choice.tokenizer_name, source);
    } catch (const ConfigError&) {
      throw_config_errors(missing_parts(keys));  // who misspelt the dataset needs no advice on tokenizers
      throw;
    }
    return;
  }
  try {
    source = local_tokenizer(source);
    choice.tokenizer = make_tokenizer(source);
  } catch (const ConfigError&) {
    log_info(
        "data: the tokenizer {} cannot be had; the data are tokens already and do not need it, but no samples are made",
        choice.tokenizer_name);
    source.clear();
    choice.tokenizer = std::make_unique<NoTokenizer>(choice.tokenizer_name);
  }
}

bool is_plain_text(const DataKeys& keys, const DataChoice& choice) {
  if (choice.tokenizer_source.empty()) return false;
  // Tokens of an unknown tokenizer are not bytes.
  const bool is_known = keys.is_set("tokenizer") || choice.tokenizer_name != "bytes" ||
                        needs_tokenizer(keys) || !tokenizer_of_prepared(keys).empty();
  if (!is_known) return false;
  return std::ranges::all_of(choice.data.train,
                             [](const DataPart& part) { return !part.note || part.note->is_text; });
}

void check_vocabulary(const std::string& name, const Tokenizer& tokenizer, const ModelChoice& model) {
  const int64_t ids = tokenizer.vocab_size();
  if (ids <= model.config.vocab) return;
  const bool random_start = !model.resumed && !model.has_weights();
  fail_config("tokenizer '{}' has {} ids, but model {} has a vocabulary of {}; {}", name, ids,
              model.config.name, model.config.vocab,
              random_start ? fmt::format("set --vocab_size {}", ids)
                           : "use the tokenizer that the model was trained with");
}

}  // namespace

std::vector<std::string> missing_data(const DataKeys& config, const ModelChoice& model) {
  std::vector<std::string> missing = missing_parts(config);
  const auto attempt = [&](const auto& open) {
    try {
      open();
    } catch (const Error& error) {
      missing.emplace_back(error.what());
    }
  };
  if (config.resume.empty()) {  // a checkpoint may have a copy
    attempt([&] {
      std::string name = config.tokenizer;
      if (!config.is_set("tokenizer")) {
        std::string prepared;
        try {
          prepared = tokenizer_of_prepared(config);
        } catch (const Error&) {
          if (!missing.empty()) return;  // said already
          throw;
        }
        if (!prepared.empty() || !model.tokenizer.empty())
          name = prepared.empty() ? model.tokenizer : prepared;
      }
      const bool is_gone = name != "bytes" && !posix_env().exists(name);
      if (is_gone && name == tokenizer_of_prepared(config) && !needs_tokenizer(config)) return;
      if (!is_hub_tokenizer(name)) check_vocabulary(name, *make_tokenizer(name), model);
    });
  }
  return missing;
}

namespace {

void check_training_data(const DataKeys& keys, const DataPart& part) {
  if (!part.plan) {
    if (part.tokens.size() >= keys.max_seq_length + 1) return;
    fail_config("dataset '{}' has {} tokens to train on, fewer than max_seq_length {} + 1", part.path,
                part.tokens.size(), keys.max_seq_length);
  }
  const ShardCounts& counts = part.documents.counts();
  if (part.plan->rows() == 0) {
    fail_config("dataset '{}' is empty: {} documents with {} tokens to train on", part.path, counts.documents,
                counts.tokens);
  }
  const PackingPlan::Totals& totals = part.plan->totals();
  if (totals.split_documents == 0) return;
  log_info("data: {} of {} documents of {} are longer than max_seq_length {} and are cut into windows{}",
           totals.split_documents, counts.documents, part.path, keys.max_seq_length,
           totals.dropped_windows > 0
               ? fmt::format("; {} windows without a target are skipped", totals.dropped_windows)
               : "");
}

}  // namespace

DataChoice open_data(const DataKeys& keys, const ModelChoice& model) {
  DataChoice choice;
  choice.tokenizer_name = choose_tokenizer(keys, model.tokenizer);
  choice.tokenizer_source =
      model.resumed ? tokenizer_source(*model.resumed, choice.tokenizer_name) : choice.tokenizer_name;
  if (choice.tokenizer_source != choice.tokenizer_name) {
    log_warning("tokenizer {} {}; using the copy in {}", choice.tokenizer_name,
                posix_env().exists(choice.tokenizer_name) ? "has changed since the run began" : "is gone",
                choice.tokenizer_source);
  }
  open_tokenizer(keys, choice);
  check_vocabulary(choice.tokenizer_name, *choice.tokenizer, model);
  choice.data = open_parts(keys, model.config.vocab, choice.tokenizer_name, *choice.tokenizer);
  for (const DataPart& part : choice.data.train) {
    check_training_data(keys, part);
    choice.sequences += part.passes * part.sequences(keys.max_seq_length);
  }
  choice.is_plain_text = is_plain_text(keys, choice);
  return choice;
}

}  // namespace octet
