#include "plan/data_parts.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "data/datasets/dataset.h"
#include "data/datasets/dataset_files.h"
#include "data/datasets/dataset_presets.h"
#include "data/shards/manifest.h"
#include "plan/data_prepare.h"
#include "plan/dataset_items.h"
#include "report/text.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

// The validation split does not depend on the seed of the run: runs with different seeds share the prepared files and
// are evaluated on the same documents.
constexpr uint64_t kSplitSeed = 42;

DatasetManifest read_prepared(const std::string& folder, const std::string& tokenizer_name,
                              const Tokenizer* tokenizer) {
  DatasetManifest manifest = read_dataset_manifest(posix_env(), join_path(folder, kManifestName));
  // A tokenizer that is not at hand has no ids.
  if (tokenizer && tokenizer->vocab_size() > 0 && manifest.tokenizer_hash != tokenizer->fingerprint()) {
    fail_config("dataset {} was prepared with tokenizer {} ({:016x}), but the run uses {} ({:016x})", folder,
                manifest.tokenizer, manifest.tokenizer_hash, tokenizer_name, tokenizer->fingerprint());
  }
  return manifest;
}

class PartOpener {
 public:
  PartOpener(const DataKeys& config, int64_t vocab_size, const std::string& tokenizer_name,
             const Tokenizer* tokenizer)
      : config_(config),
        vocab_size_(vocab_size),
        tokenizer_name_(tokenizer_name),
        tokenizer_(tokenizer),
        checks_(posix_env(), config.verify) {}

  const FileChecks& checks() const { return checks_; }

  // The training data of an item. `held_out` gets what is held out of it; null: nothing is.
  DataPart open(const DatasetPart& part, DataPart* held_out) {
    const ExampleOptions examples = train_examples(config_, part);
    const DataKind kind = kind_of(config_, examples);
    if (kind == DataKind::Stream) return open_stream(examples, held_out);
    const std::string validation = held_out ? own_validation_split(examples) : "";
    const double split = held_out && validation.empty() ? config_.eval_split : 0;
    const int64_t max_samples = part.max_samples > 0 ? part.max_samples : config_.max_samples;
    const auto [folder, manifest] = find_prepared(examples, kind, split, max_samples);
    if (!validation.empty()) {
      ExampleOptions of_validation = examples;
      of_validation.split = validation;
      *held_out = open_eval_examples(of_validation, kind);
    } else if (held_out) {
      *held_out = from_shards(open_split(posix_env(), folder, manifest, manifest.validation, checks_));
    }
    std::vector<Shard> shards = open_split(posix_env(), folder, manifest, manifest.train, checks_);
    DatasetNote note = note_of(examples.dataset, manifest, shards, *tokenizer_);
    DataPart opened = from_shards(std::move(shards));
    opened.note = std::move(note);
    return opened;
  }

  DataPart open_eval(const DatasetPart& part) {
    const ExampleOptions examples = eval_examples(config_, part);
    const DataKind kind = kind_of(config_, examples);
    if (part.path == kDemo)
      return demo(
          open_dataset({.seed = static_cast<uint64_t>(config_.seed)}, vocab_size_, tokenizer_, checks_).eval);
    if (kind == DataKind::Stream) {
      return {.tokens = open_tokens(part.path, vocab_size_, tokenizer_, checks_,
                                    config_.on_error == OnError::Skip)};
    }
    return open_eval_examples(examples, kind);
  }

 private:
  std::pair<std::string, DatasetManifest> find_prepared(const ExampleOptions& examples, DataKind kind,
                                                        double split, int64_t max_samples) const {
    const std::string& dataset = examples.dataset;
    if (kind == DataKind::Prepared) return {dataset, read_prepared(dataset, tokenizer_name_, tokenizer_)};
    const PreparedFolder prepared = prepare_with_progress(config_,
                                                          {.examples = examples,
                                                           .tokenizer = tokenizer_name_,
                                                           .max_samples = max_samples,
                                                           .eval_split = split,
                                                           .seed = kSplitSeed},
                                                          *tokenizer_);
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

  DataPart demo(TokenSource tokens) const {
    return {.tokens = std::move(tokens), .document_end = tokenizer_->eos()};
  }

  DataPart open_stream(const ExampleOptions& examples, DataPart* held_out) {
    const bool is_demo = examples.dataset == kDemo;
    if (is_demo && config_.packing != PackingKey::Auto && config_.packing != PackingKey::Stream) {
      log_warning("packing {} has no effect: the demo's stories are a stream that is cut into documents",
                  config_text(config_, "packing"));
    }
    if (asks_for_documents(config_, examples) && !is_demo) {
      fail_config(
          "dataset {} is a stream of tokens without documents; expected packing stream or auto (now {}), and "
          "no dataset_format or column",
          examples.dataset, config_text(config_, "packing"));
    }
    Dataset opened = open_dataset({.dataset = examples.dataset,
                                   .eval_split = held_out ? config_.eval_split : 0,
                                   .seed = static_cast<uint64_t>(config_.seed),
                                   .skip_bad_text = config_.on_error == OnError::Skip},
                                  vocab_size_, tokenizer_, checks_);
    const auto as_part = [&](TokenSource tokens) {
      return is_demo ? demo(std::move(tokens)) : DataPart{.tokens = std::move(tokens)};
    };
    if (held_out) *held_out = as_part(std::move(opened.eval));
    return as_part(std::move(opened.train));
  }

  DataPart open_eval_examples(const ExampleOptions& examples, DataKind kind) {
    const auto [folder, manifest] = find_prepared(examples, kind, 0, 0);
    // A prepared folder's validation split is meant for this; one without it is taken whole.
    const bool has_validation = !manifest.validation.shards.empty();
    const SplitManifest& split = has_validation ? manifest.validation : manifest.train;
    if (kind == DataKind::Prepared && has_validation)
      log_info("data: the held-out part of {} is evaluated: {} of {} tokens", folder, split.counts.tokens,
               manifest.train.counts.tokens + split.counts.tokens);
    return from_shards(open_split(posix_env(), folder, manifest, split, checks_));
  }

  DataPart from_shards(std::vector<Shard> shards) const {
    DataPart part;
    for (const Shard& shard : shards) part.tokens.append(TokenSource::from_shard(shard, vocab_size_));
    if (config_.packing == PackingKey::Stream) return part;
    part.documents = DocumentSource(std::move(shards), vocab_size_);
    const bool padded = config_.packing == PackingKey::None;
    part.plan = stored_packing_plan(posix_env(), join_path(cache_folder(config_), "packing"), part.documents,
                                    config_.max_seq_length, padded ? Packing::None : Packing::BestFit);
    return part;
  }

  const DataKeys& config_;
  int64_t vocab_size_;
  const std::string& tokenizer_name_;
  const Tokenizer* tokenizer_;  // null only if no text is read
  FileChecks checks_;
};

std::vector<DataPart> open_eval_items(const DataKeys& keys, PartOpener& opener) {
  const std::vector<DatasetPart> items = expanded_eval_dataset(keys);
  const std::vector<std::string> names = part_names(items);
  std::vector<DataPart> parts;
  for (size_t i = 0; i < items.size(); ++i) {
    parts.push_back(opener.open_eval(items[i]));
    parts.back().path = items[i].path;
    parts.back().name = names[i];
  }
  return parts;
}

// The model is talked to with one template afterwards.
void check_one_chat_style(const std::vector<DataPart>& parts) {
  const DataPart* first = nullptr;
  for (const DataPart& part : parts) {
    if (!part.note || !part.note->chat) continue;
    if (!first) first = &part;
    const ChatStyle &one = *first->note->chat, &other = *part.note->chat;
    if (one.chat_template != other.chat_template) {
      fail_config(
          "dataset {} has conversations in the chat template {}, but {} in {}; set chat_template, so that the model "
          "learns one (folders of 'octet prepare' must be prepared again with it)",
          first->path, name_of(one.chat_template), part.path, name_of(other.chat_template));
    }
    if (first->note->system != part.note->system) {
      fail_config(
          "dataset {} has the default system message \"{}\", but {} has \"{}\"; prepare both with the same "
          "default_system",
          first->path, printable(first->note->system), part.path, printable(part.note->system));
    }
  }
}

}  // namespace

int64_t DataPart::sequences(int64_t length) const {
  if (plan) return plan->rows();
  return tokens.size() > 0 ? (tokens.size() - 1) / length : 0;
}

std::optional<ChatStyle> TrainingData::chat() const {
  for (const DataPart& part : train) {
    if (part.note && part.note->chat) return part.note->chat;
  }
  return std::nullopt;
}

int64_t TrainingData::train_tokens() const {
  int64_t sum = 0;
  for (const DataPart& part : train) sum += part.tokens.size();
  return sum;
}

int64_t TrainingData::eval_tokens() const {
  int64_t sum = 0;
  for (const DataPart& part : eval) sum += part.tokens.size();
  return sum;
}

void log_verified(const FileChecks& checks, const std::string& folder) {
  if (!checks.verify()) return;
  const FileChecks::Amount& read = checks.amount();
  if (read.files == 0) {
    log_warning("verify has no effect: only prepared datasets and token files (*.bin) are checked");
    return;
  }
  log_info("data: verified {}{}, {}, in {}: no damage was found", counted(read.files, "file"),
           folder.empty() ? "" : fmt::format(" of {}", folder), human_bytes(static_cast<double>(read.bytes)),
           human_duration(read.seconds));
}

std::vector<DataPart> open_eval_parts(const DataKeys& keys, int64_t vocab_size,
                                      const std::string& tokenizer_name, const Tokenizer* tokenizer) {
  throw_config_errors(idle_choices(keys));
  PartOpener opener(keys, vocab_size, tokenizer_name, tokenizer);
  std::vector<DataPart> parts = open_eval_items(keys, opener);
  log_verified(opener.checks());
  return parts;
}

bool has_eval_text(const DataKeys& keys) {
  return std::ranges::any_of(expanded_eval_dataset(keys), [&](const DatasetPart& part) {
    const DataKind kind = kind_of(keys, eval_examples(keys, part));
    if (kind != DataKind::Stream) return kind != DataKind::Prepared;
    return part.path == kDemo || !stream_files(part.path).front().ends_with(".bin");
  });
}

TrainingData open_parts(const DataKeys& keys, int64_t vocab_size, const std::string& tokenizer_name,
                        const Tokenizer& tokenizer) {
  throw_config_errors(idle_choices(keys));
  PartOpener opener(keys, vocab_size, tokenizer_name, &tokenizer);
  std::vector<DatasetPart> items = expanded_dataset(keys);
  const std::vector<int64_t> times = join_same_data(items);
  const std::vector<std::string> names = part_names(items);
  const bool names_eval = !keys.eval_dataset.empty();
  TrainingData data;
  for (size_t i = 0; i < items.size(); ++i) {
    DataPart held_out;
    DataPart part = opener.open(items[i], names_eval ? nullptr : &held_out);
    for (DataPart* opened : {&part, &held_out}) {
      opened->path = items[i].path;
      opened->name = names[i];
      opened->weight = items[i].weight;
    }
    if (times[i] > 1) {
      const bool has_weight = part.weight > 0;
      if (!has_weight) part.passes = times[i];
      log_info("data: {} is named {} times: {}", printable(part.path), times[i],
               has_weight ? fmt::format("its weight is {}", part.weight)
                          : fmt::format("an epoch reads it {} times", part.passes));
    }
    data.train.push_back(std::move(part));
    if (!names_eval) data.eval.push_back(std::move(held_out));
  }
  check_one_chat_style(data.train);
  if (names_eval) data.eval = open_eval_items(keys, opener);
  log_verified(opener.checks());
  return data;
}

namespace {

enum class Use { Train, TrainAndEval, Eval };

// The splits that a run opens.
void check_prepared(const std::string& folder, Use use) {
  const DatasetManifest manifest = read_dataset_manifest(posix_env(), join_path(folder, kManifestName));
  const bool has_validation = !manifest.validation.shards.empty();
  if (use != Use::Eval || !has_validation) check_shard_sizes(posix_env(), folder, manifest.train);
  if (use != Use::Train && has_validation) check_shard_sizes(posix_env(), folder, manifest.validation);
}

}  // namespace

std::vector<std::string> missing_parts(const DataKeys& keys) {
  std::vector<std::string> missing = idle_choices(keys);
  const auto find = [&](const ExampleOptions& examples, Use use) {
    if (examples.dataset == kDemo) return;
    try {
      const DataKind kind = kind_of(keys, examples);
      if (kind == DataKind::Stream) stream_files(examples.dataset);
      if (kind == DataKind::Prepared) check_prepared(examples.dataset, use);
      if (kind == DataKind::Examples && !is_on_hub(examples)) resolve_dataset(examples);
    } catch (const Error& error) {
      missing.emplace_back(error.what());
    }
  };
  try {
    const Use use = keys.eval_dataset.empty() ? Use::TrainAndEval : Use::Train;
    for (const DatasetPart& part : expanded_dataset(keys)) find(train_examples(keys, part), use);
    for (const DatasetPart& part : expanded_eval_dataset(keys)) find(eval_examples(keys, part), Use::Eval);
  } catch (const Error& error) {
    missing.emplace_back(error.what());
  }
  return missing;
}

}  // namespace octet
