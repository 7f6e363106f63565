#include "plan/data_stage.h"

#include <algorithm>
#include <filesystem>

#include "base/log.h"
#include "base/text.h"
#include "data/datasets/dataset_files.h"
#include "data/datasets/dataset_presets.h"
#include "plan/data_prepare.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

// The validation split does not depend on the seed of the run: runs with different seeds share the prepared files and
// are evaluated on the same documents.
constexpr uint64_t kSplitSeed = 42;

enum class DataKind {
  Prepared,  // a folder of octet's shards
  Stream,    // the demo, token files or plain text, all of which data/dataset.h opens
  Examples,  // records, to be prepared
};

bool ends_with_any(const std::string& path, std::initializer_list<const char*> endings) {
  return std::any_of(endings.begin(), endings.end(),
                     [&](const char* ending) { return path.ends_with(ending); });
}

bool asks_for_documents(const TrainConfig& config) {
  return config.packing == TrainConfig::Packing::BestFit || config.packing == TrainConfig::Packing::None ||
         config.dataset_format != ExampleFormat::Auto || !config.text_column.empty() ||
         !config.prompt_column.empty() || !config.messages_column.empty();
}

DataKind kind_of_file(const TrainConfig& config, const std::string& path) {
  if (path.ends_with(".bin")) return DataKind::Stream;
  if (path.ends_with(".txt") && !asks_for_documents(config)) return DataKind::Stream;
  return DataKind::Examples;
}

DataKind kind_of(const TrainConfig& config, const std::string& dataset) {
  if (dataset == "demo") return DataKind::Stream;
  std::error_code error;
  if (!fs::is_directory(dataset, error)) return kind_of_file(config, dataset);
  if (has_dataset_manifest(posix_env(), dataset)) return DataKind::Prepared;
  require(!fs::exists(fs::path(dataset) / kProgressName, error),
          "[dataset] {} is not fully prepared; run the same 'octet prepare' command again", dataset);
  bool tokens = false, text = false, records = false;
  for (const fs::directory_entry& entry : fs::directory_iterator(dataset)) {
    const std::string path = entry.path().string();
    tokens = tokens || path.ends_with(".bin");
    text = text || path.ends_with(".txt");
    records = records || ends_with_any(path, {".jsonl", ".json", ".csv", ".parquet", ".gz", ".zst"});
  }
  if (tokens || (text && !records)) return kind_of_file(config, tokens ? "x.bin" : "x.txt");
  return DataKind::Examples;
}

std::vector<Shard> open_prepared(const std::string& folder, const DatasetManifest& manifest,
                                 const SplitManifest& split) {
  return open_split(posix_env(), folder, manifest, split);
}

DatasetManifest read_prepared(const std::string& folder, const std::string& tokenizer_name,
                              const Tokenizer& tokenizer) {
  DatasetManifest manifest = read_dataset_manifest(posix_env(), join_path(folder, kManifestName));
  if (manifest.tokenizer_hash != tokenizer.fingerprint()) {
    fail_config("dataset {} was prepared with tokenizer {} ({:016x}), but the run uses {} ({:016x})", folder,
                manifest.tokenizer, manifest.tokenizer_hash, tokenizer_name, tokenizer.fingerprint());
  }
  return manifest;
}

class DataOpener {
 public:
  DataOpener(const TrainConfig& config, int64_t vocab_size, std::string tokenizer_name,
             const Tokenizer& tokenizer)
      : config_(config),
        vocab_size_(vocab_size),
        tokenizer_name_(std::move(tokenizer_name)),
        tokenizer_(tokenizer) {}

  TrainingData open() {
    const bool names_eval = !config_.eval_dataset.empty();
    const DataKind kind = kind_of(config_, config_.dataset);
    if (kind == DataKind::Stream) {
      open_streams(names_eval && kind_of(config_, config_.eval_dataset) == DataKind::Stream);
    } else {
      const ExampleOptions examples = train_examples(config_);
      const std::string validation = names_eval ? "" : own_validation_split(examples);
      const bool holds_out = !names_eval && validation.empty() && config_.eval_split > 0;
      const auto [folder, manifest] =
          find_prepared(examples, kind, holds_out ? config_.eval_split : 0, config_.max_samples);
      std::vector<Shard> shards = open_prepared(folder, manifest, manifest.train);
      add_note(note_of(examples.dataset, manifest, shards, tokenizer_));
      set_train(std::move(shards));
      if (!validation.empty()) {
        ExampleOptions of_validation = examples;
        of_validation.split = validation;
        open_eval_examples(of_validation, kind);
      } else if (!names_eval) {
        set_eval(open_prepared(folder, manifest, manifest.validation));
      }
    }
    if (names_eval && data_.eval.empty()) open_eval();
    return std::move(data_);
  }

  // Without any training data.
  TrainingData open_eval_alone() {
    open_eval();
    return std::move(data_);
  }

 private:
  std::pair<std::string, DatasetManifest> find_prepared(const ExampleOptions& examples, DataKind kind,
                                                        double split, int64_t max_samples) {
    const std::string& dataset = examples.dataset;
    if (kind == DataKind::Prepared) return {dataset, read_prepared(dataset, tokenizer_name_, tokenizer_)};
    const PreparedFolder prepared = prepare_with_progress(config_,
                                                          {.examples = examples,
                                                           .tokenizer = tokenizer_name_,
                                                           .max_samples = max_samples,
                                                           .eval_split = split,
                                                           .seed = kSplitSeed},
                                                          tokenizer_);
    return {prepared.folder, prepared.result.manifest};
  }

  // The validation split of a preset, if it has one and the run trains on the training split. It is better than a part
  // of the training split, and the only choice if that is a single document. Empty: none.
  std::string own_validation_split(const ExampleOptions& examples) const {
    constexpr const char* kValidation = "validation";
    std::error_code error;
    const DatasetPreset* preset = find_dataset_preset(examples.dataset);
    if (!preset || fs::exists(examples.dataset, error) || config_.eval_split == 0) return "";
    if (!examples.split.empty() && examples.split != preset->split) return "";
    const std::vector<std::string> splits = split_list(preset->splits);
    if (std::find(splits.begin(), splits.end(), kValidation) == splits.end()) return "";
    if (examples.data_dir.empty()) return kValidation;
    ExampleOptions of_validation = examples;  // the user's folder may have fewer splits than the hub
    of_validation.split = kValidation;
    try {
      resolve_dataset(of_validation);
      return kValidation;
    } catch (const Error&) {
      return "";
    }
  }

  void open_streams(bool eval_too) {
    if (config_.dataset == "demo" && config_.packing != TrainConfig::Packing::Auto &&
        config_.packing != TrainConfig::Packing::Stream) {
      log_warning("packing {} has no effect: the demo's stories are a stream that is cut into documents",
                  config_text(config_, "packing"));
    }
    if (asks_for_documents(config_) && config_.dataset != "demo") {
      fail_config(
          "dataset {} is a stream of tokens without documents; expected packing stream or auto (now {}), and "
          "no dataset_format or text_column",
          config_.dataset, config_text(config_, "packing"));
    }
    Dataset opened =
        open_dataset({.dataset = config_.dataset,
                      .eval_dataset = eval_too ? config_.eval_dataset : "",
                      .eval_split = eval_too || config_.eval_dataset.empty() ? config_.eval_split : 0,
                      .seed = static_cast<uint64_t>(config_.seed),
                      .skip_bad_text = config_.on_error == OnError::Skip},
                     vocab_size_, &tokenizer_);
    data_.train = std::move(opened.train);
    if (eval_too || config_.eval_dataset.empty()) data_.eval = std::move(opened.eval);
  }

  void open_eval() {
    const DataKind kind = kind_of(config_, config_.eval_dataset);
    if (kind != DataKind::Examples && !config_.eval_dataset_split.empty()) {
      fail_config(
          "eval_dataset_split is '{}', but eval_dataset {} holds tokens, which have no splits; name the "
          "token files in eval_dataset instead",
          config_.eval_dataset_split, config_.eval_dataset);
    }
    if (config_.eval_dataset == "demo") {
      data_.eval = open_dataset({.seed = static_cast<uint64_t>(config_.seed)}, vocab_size_, &tokenizer_).eval;
      return;
    }
    if (kind == DataKind::Stream) {
      data_.eval =
          open_tokens(config_.eval_dataset, vocab_size_, &tokenizer_, config_.on_error == OnError::Skip);
      return;
    }
    open_eval_examples(eval_examples(config_), kind);
  }

  void open_eval_examples(const ExampleOptions& examples, DataKind kind) {
    const auto [folder, manifest] = find_prepared(examples, kind, 0, 0);
    // A prepared folder's validation split is meant for this; one without it is taken whole.
    const SplitManifest& split = manifest.validation.shards.empty() ? manifest.train : manifest.validation;
    set_eval(open_prepared(folder, manifest, split));
  }

  void add_note(DatasetNote note) {
    if (!data_.chat) data_.chat = note.chat;
    data_.notes.push_back(std::move(note));
  }

  void set_train(std::vector<Shard> shards) {
    for (const Shard& shard : shards) data_.train.append(TokenSource::from_shard(shard, vocab_size_));
    if (config_.packing == TrainConfig::Packing::Stream) return;
    data_.train_documents = DocumentSource(std::move(shards), vocab_size_);
    data_.train_plan = make_plan(data_.train_documents);
  }
  void set_eval(std::vector<Shard> shards) {
    for (const Shard& shard : shards) data_.eval.append(TokenSource::from_shard(shard, vocab_size_));
    if (config_.packing == TrainConfig::Packing::Stream) return;
    data_.eval_documents = DocumentSource(std::move(shards), vocab_size_);
    data_.eval_plan = make_plan(data_.eval_documents);
  }

  std::shared_ptr<const PackingPlan> make_plan(const DocumentSource& source) const {
    const bool padded = config_.packing == TrainConfig::Packing::None;
    return std::make_shared<PackingPlan>(source, config_.max_seq_length,
                                         padded ? Packing::None : Packing::BestFit);
  }

  const TrainConfig& config_;
  int64_t vocab_size_;
  std::string tokenizer_name_;
  const Tokenizer& tokenizer_;
  TrainingData data_;
};

}  // namespace

int64_t TrainingData::samples_per_epoch(int64_t length) const {
  if (train_plan) return train_plan->rows();
  return train.size() > 0 ? (train.size() - 1) / length : 0;
}

std::string choose_tokenizer(const TrainConfig& keys, const std::string& of_model) {
  std::string name = keys.tokenizer;
  if (!keys.is_set("tokenizer")) {
    std::error_code error;
    if (fs::is_directory(keys.dataset, error) && has_dataset_manifest(posix_env(), keys.dataset)) {
      name = read_dataset_manifest(posix_env(), join_path(keys.dataset, kManifestName)).tokenizer;
    } else if (!of_model.empty()) {
      name = of_model;
      log_info("data: using the tokenizer of the model, {}", name);
    }
    if (name == "bytes" && of_model.empty() && !keys.model_name_or_path.empty()) {
      log_warning("{} has no tokenizer and none is given: text is read as bytes", keys.model_name_or_path);
    }
  }
  // The run may be looked at from another folder, and resumed after the tokenizer is gone.
  return name == "bytes" ? name : fs::absolute(name).lexically_normal().string();
}

namespace {

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

std::vector<std::string> missing_data(const TrainConfig& config, const ModelChoice& model) {
  std::vector<std::string> missing;
  const auto attempt = [&](const auto& open) {
    try {
      open();
    } catch (const Error& error) {
      missing.emplace_back(error.what());
    }
  };
  const auto find = [&](const ExampleOptions& examples) {
    const DataKind kind = kind_of(config, examples.dataset);
    if (kind == DataKind::Stream) stream_files(examples.dataset);
    if (kind == DataKind::Examples && !is_on_hub(examples)) resolve_dataset(examples);
  };
  if (!config.is_demo() && !config.assumes_data) attempt([&] { find(train_examples(config)); });
  if (!config.eval_dataset.empty() && config.eval_dataset != "demo")
    attempt([&] { find(eval_examples(config)); });
  if (config.resume.empty()) {  // a checkpoint may have a copy
    attempt([&] {
      const bool of_model = !config.is_set("tokenizer") && !model.tokenizer.empty();
      const std::string& name = of_model ? model.tokenizer : config.tokenizer;
      check_vocabulary(name, *make_tokenizer(name), model);
    });
  }
  return missing;
}

namespace {

void check_training_data(const TrainConfig& keys, const TrainingData& data) {
  if (!data.train_plan) {
    if (data.train.size() >= keys.max_seq_length + 1) return;
    fail_config("dataset '{}' has {} tokens to train on, fewer than max_seq_length {} + 1", keys.dataset,
                data.train.size(), keys.max_seq_length);
  }
  const ShardCounts& counts = data.train_documents.counts();
  if (data.train_plan->rows() == 0) {
    fail_config("dataset '{}' is empty: {} documents with {} tokens to train on", keys.dataset,
                counts.documents, counts.tokens);
  }
  const PackingPlan::Totals& totals = data.train_plan->totals();
  if (totals.split_documents == 0) return;
  log_info("data: {} of {} documents are longer than max_seq_length {} and are cut into windows{}",
           totals.split_documents, counts.documents, keys.max_seq_length,
           totals.dropped_windows > 0
               ? fmt::format("; {} windows without a target are skipped", totals.dropped_windows)
               : "");
}

}  // namespace

DataChoice open_data(const TrainConfig& keys, const ModelChoice& model) {
  DataChoice choice;
  choice.tokenizer_name = choose_tokenizer(keys, model.tokenizer);
  choice.tokenizer_source =
      model.resumed ? tokenizer_source(*model.resumed, choice.tokenizer_name) : choice.tokenizer_name;
  if (choice.tokenizer_source != choice.tokenizer_name) {
    log_warning("tokenizer {} {}; using the copy in {}", choice.tokenizer_name,
                posix_env().exists(choice.tokenizer_name) ? "has changed since the run began" : "is gone",
                choice.tokenizer_source);
  }
  choice.tokenizer = make_tokenizer(choice.tokenizer_source);
  check_vocabulary(choice.tokenizer_name, *choice.tokenizer, model);
  choice.data = DataOpener(keys, model.config.vocab, choice.tokenizer_name, *choice.tokenizer).open();
  check_training_data(keys, choice.data);
  choice.sequences = choice.data.samples_per_epoch(keys.max_seq_length);
  return choice;
}

TrainingData open_eval_data(const TrainConfig& keys, int64_t vocab_size, const Tokenizer& tokenizer) {
  return DataOpener(keys, vocab_size, keys.tokenizer, tokenizer).open_eval_alone();
}

}  // namespace octet
