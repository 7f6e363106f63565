#include "data/datasets/prepare.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/philox.h"
#include "data/datasets/tokenize_pipeline.h"
#include "data/shards/split_writer.h"

namespace octet {
namespace {

using nlohmann::ordered_json;

constexpr uint64_t kSplitStream = 0x7072657061726501;
constexpr const char* kLockName = ".lock";
constexpr const char* kTemporaryPrefix = ".tmp-";
constexpr const char* kTrainName = "train";
constexpr const char* kValidationName = "validation";

// Nothing when it was stopped while waiting.
std::optional<FileLock> lock_folder(Env& env, const PrepareOptions& options, const PrepareHooks& hooks) {
  const std::string path = join_path(options.output, kLockName);
  const auto on_wait = [&] {
    if (!options.wait_for_lock) {
      fail("[prepare] {}: another process is preparing this folder (it holds {})", options.output, path);
    }
    log_info("data: another process is preparing {}; waiting for it", options.output);
  };
  return wait_for_lock(env, path, fmt::format("{}\n", getpid()), on_wait, hooks.stop);
}

// Names what differs, so that the user sees which flag to change back.
void check_same(const DatasetManifest& there, const DatasetManifest& asked, const std::string& folder) {
  const auto differ = [&](const std::string& what, const std::string& old, const std::string& now) {
    fail(
        "[prepare] {} was prepared with {} {}, this call asks for {}; choose another folder or remove this "
        "one",
        folder, what, old, now);
  };
  if (there.tokenizer_hash != asked.tokenizer_hash) {
    differ("tokenizer", fmt::format("{} ({:016x})", there.tokenizer, there.tokenizer_hash),
           fmt::format("{} ({:016x})", asked.tokenizer, asked.tokenizer_hash));
  }
  if (there.options == asked.options) return;
  for (const auto& [key, value] : asked.options.items()) {
    const auto old = there.options.find(key);
    if (old == there.options.end()) differ(key, "not given", value.dump());
    if (*old != value) differ(key, old->dump(), value.dump());
  }
  fail("[prepare] {} was prepared with other options, {}; choose another folder or remove this one", folder,
       there.options.dump());
}

// "train_00012.octet" or "validation_00000.octet".
bool is_shard_name(std::string_view name) {
  for (const std::string_view split : {kTrainName, kValidationName}) {
    if (!name.starts_with(split)) continue;
    std::string_view rest = name.substr(split.size());
    if (!rest.starts_with('_') || !rest.ends_with(kShardExtension)) return false;
    rest = rest.substr(1, rest.size() - 1 - std::string_view(kShardExtension).size());
    return rest.size() >= 5 && rest.find_first_not_of("0123456789") == rest.npos;
  }
  return false;
}

// Removes what a crash left. Refuses a folder with other files, and then changes nothing.
void tidy_folder(Env& env, const std::string& folder, const DatasetManifest& known) {
  std::vector<std::string> left_over;
  for (const std::string& name : env.list(folder)) {
    const auto listed = [&](const SplitManifest& split) {
      return std::any_of(split.shards.begin(), split.shards.end(),
                         [&](const ShardEntry& shard) { return shard.name == name; });
    };
    if (name == kLockName || name == kProgressName || listed(known.train) || listed(known.validation))
      continue;
    std::string_view own = name;
    const bool is_temporary = own.starts_with(kTemporaryPrefix);
    if (is_temporary) own.remove_prefix(std::string_view(kTemporaryPrefix).size());
    // A shard that is whole but not yet in the progress file is written again, with the same bytes.
    if (is_shard_name(own) || (is_temporary && (own == kProgressName || own == kManifestName))) {
      left_over.push_back(name);
      continue;
    }
    fail("[prepare] {} holds '{}', which is not part of a dataset; expected an empty or a new folder", folder,
         name);
  }
  for (const std::string& name : left_over) env.remove_file(join_path(folder, name));
}

void check_listed(Env& env, const std::string& folder, const SplitManifest& split) {
  for (const ShardEntry& shard : split.shards) {
    const std::string path = join_path(folder, shard.name);
    require(env.exists(path) && env.file_size(path) == shard.size,
            "[prepare] {} is missing or does not have the {} bytes that {} says; remove the folder and start "
            "again",
            path, shard.size, kProgressName);
  }
}

class Preparation {
 public:
  Preparation(Env& env, const PrepareOptions& options, const Tokenizer& tokenizer, DatasetManifest start,
              const PrepareHooks& hooks)
      : env_(env), options_(options), tokenizer_(tokenizer), manifest_(std::move(start)), hooks_(hooks) {}

  // False when it was stopped.
  bool run(DatasetReader& reader) {
    const ShardKind kind{tokenizer_.vocab_size(), tokenizer_.fingerprint()};
    SplitWriter train(env_, options_.output, kTrainName, kind, options_.shard_tokens, manifest_.train);
    SplitWriter validation(env_, options_.output, kValidationName, kind, options_.shard_tokens,
                           manifest_.validation);
    const auto writer_of = [&](int64_t example) -> SplitWriter& {
      return is_validation_example(example, options_.eval_split, options_.seed) ? validation : train;
    };
    const int64_t train_from = train.first_wanted(), validation_from = validation.first_wanted();
    TokenizePipeline pipeline(reader, tokenizer_,
                              {.threads = options_.threads,
                               .max_examples = options_.max_examples,
                               .wanted = [&, train_from, validation_from](int64_t example) {
                                 return example >=
                                        (is_validation_example(example, options_.eval_split, options_.seed)
                                             ? validation_from
                                             : train_from);
                               }});
    PrepareProgress progress{0, train.written().counts.documents + validation.written().counts.documents,
                             train.written().counts.tokens + validation.written().counts.tokens};
    std::vector<TokenizePipeline::Item> items;
    while (pipeline.next(items)) {
      for (TokenizePipeline::Item& item : items) {
        ++progress.documents;
        progress.tokens += static_cast<int64_t>(item.document.tokens.size());
        SplitWriter& writer = writer_of(item.example);
        // The last training document is held back because validation may need it.
        if (&writer == &train && last_) {
          if (train.add(last_->document, last_->example)) save(train, validation);
          last_.reset();
        }
        if (&writer == &train) {
          last_ = std::move(item);
        } else if (validation.add(item.document, item.example)) {
          save(train, validation);
        }
      }
      if (hooks_.stop && hooks_.stop()) return false;
      progress.share = pipeline.progress();
      if (hooks_.progress) hooks_.progress(progress);
    }
    if (last_) end_splits(train, validation);
    train.finish(pipeline.examples());
    validation.finish(pipeline.examples());
    manifest_.examples = pipeline.examples();
    manifest_.format = name_of(reader.format());
    manifest_.columns = reader.columns();
    manifest_.chat_template = name_of(reader.chat_template());
    for (size_t i = 0; i < kSkipReasons; ++i) {
      const auto reason = static_cast<SkipReason>(i);
      if (const int64_t count = reader.skipped().of(reason); count > 0)
        manifest_.skipped[name_of(reason)] = count;
    }
    manifest_.train = train.written();
    manifest_.validation = validation.written();
    return true;
  }

  const DatasetManifest& manifest() const { return manifest_; }

 private:
  // The document that was held back. If no document was drawn for validation, it is used for that. If it is the only
  // document, only its end is used. So a small dataset still gets an evaluation.
  void end_splits(SplitWriter& train, SplitWriter& validation) {
    const TokenizePipeline::Item last = *std::exchange(last_, std::nullopt);
    const bool lacks_validation = options_.eval_split > 0 && !validation.has_documents();
    if (lacks_validation && train.has_documents()) {
      log_info("data: no document was drawn for validation; the last one is held out");
      validation.add(last.document, last.example);
      return;
    }
    const auto tokens = static_cast<int64_t>(last.document.tokens.size());
    const int64_t tail =
        std::max<int64_t>(2, std::llround(options_.eval_split * static_cast<double>(tokens)));
    if (lacks_validation && tokens - tail >= 2) {
      const auto part = [&](int64_t begin, int64_t end) {
        const Document& whole = last.document;
        return Document{{whole.tokens.begin() + begin, whole.tokens.begin() + end},
                        {whole.is_target.begin() + begin, whole.is_target.begin() + end}};
      };
      const Document front = part(0, tokens - tail), end = part(tokens - tail, tokens);
      if (SplitWriter::predicts(front) && SplitWriter::predicts(end)) {
        log_info("data: there is one document; its last {} of {} tokens are held out", tail, tokens);
        train.add(front, last.example);
        validation.add(end, last.example);
        return;
      }
    }
    train.add(last.document, last.example);
  }

  void save(const SplitWriter& train, const SplitWriter& validation) {
    manifest_.train = train.written();
    manifest_.validation = validation.written();
    write_file_atomically(env_, options_.output, kProgressName, dataset_manifest_text(manifest_));
  }

  Env& env_;
  const PrepareOptions& options_;
  const Tokenizer& tokenizer_;
  DatasetManifest manifest_;
  const PrepareHooks& hooks_;
  std::optional<TokenizePipeline::Item> last_;  // last document of the training split, not written yet
};

void check(const PrepareOptions& options) {
  require(!options.output.empty(), "[prepare] no folder to write to");
  require(options.shard_tokens > 0, "[prepare] shard_tokens {}, expected at least 1", options.shard_tokens);
  require(options.eval_split >= 0 && options.eval_split < 1,
          "[prepare] eval_split {}, expected 0 <= eval_split < 1", options.eval_split);
}

}  // namespace

bool is_validation_example(int64_t example, double eval_split, uint64_t seed) {
  if (example == 0) return false;  // a dataset of one document is for training
  const double draw =
      static_cast<double>(Philox(seed, kSplitStream).bits(static_cast<uint64_t>(example)) >> 11);
  return draw * 0x1p-53 < eval_split;
}

ordered_json prepare_identity(const PrepareOptions& options) {
  ordered_json identity = options.identity.is_null() ? ordered_json::object() : options.identity;
  identity["shard_tokens"] = options.shard_tokens;
  identity["eval_split"] = options.eval_split;
  identity["seed"] = options.seed;
  identity["max_samples"] = options.max_examples;
  return identity;
}

PrepareResult prepare_dataset(Env& env, const PrepareOptions& options, const Tokenizer& tokenizer,
                              const std::function<std::unique_ptr<DatasetReader>()>& open_reader,
                              const PrepareHooks& hooks) {
  check(options);
  DatasetManifest asked;
  asked.tokenizer = options.tokenizer_name;
  asked.tokenizer_hash = tokenizer.fingerprint();
  asked.vocab_size = tokenizer.vocab_size();
  asked.options = prepare_identity(options);

  require(!env.exists(options.output) || env.is_directory(options.output),
          "[prepare] {} is a file, expected a folder or a new name", options.output);
  env.make_directories(options.output);
  PrepareResult result;
  const std::optional<FileLock> lock = lock_folder(env, options, hooks);
  if (!lock) return result;
  const auto path = [&](const char* name) { return join_path(options.output, name); };
  if (env.exists(path(kManifestName))) {
    result.manifest = read_dataset_manifest(env, path(kManifestName));
    check_same(result.manifest, asked, options.output);
    if (env.exists(path(kProgressName))) env.remove_file(path(kProgressName));  // a crash just after the end
    result.whole = result.was_there = true;
    return result;
  }
  if (env.exists(path(kProgressName))) {
    DatasetManifest there = read_dataset_manifest(env, path(kProgressName));
    check_same(there, asked, options.output);
    asked = std::move(there);
    asked.tokenizer = options.tokenizer_name;
    check_listed(env, options.output, asked.train);
    check_listed(env, options.output, asked.validation);
    result.examples_skipped = asked.train.end_example();
  }
  tidy_folder(env, options.output, asked);

  const std::unique_ptr<DatasetReader> reader = open_reader();
  Preparation preparation(env, options, tokenizer, std::move(asked), hooks);
  result.whole = preparation.run(*reader);
  result.manifest = preparation.manifest();
  result.first_skip_error = reader->skipped().first_error;
  if (!result.whole) return result;
  require(result.manifest.train.counts.documents > 0 || result.manifest.validation.counts.documents > 0,
          "[dataset] no document with a token to predict in {} examples; {} records were skipped",
          result.manifest.examples, reader->skipped().total());
  write_file_atomically(env, options.output, kManifestName, dataset_manifest_text(result.manifest));
  if (env.exists(path(kProgressName))) env.remove_file(path(kProgressName));
  return result;
}

}  // namespace octet
