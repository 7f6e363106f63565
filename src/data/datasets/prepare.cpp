#include "data/datasets/prepare.h"

#include <unistd.h>

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "data/datasets/hold_out.h"
#include "data/datasets/tokenize_pipeline.h"
#include "data/records/record_reader.h"
#include "data/shards/split_writer.h"
#include "io/checked_files.h"

namespace octet {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kBlockTokens = 1 << 20;  // documents are held out block by block
constexpr int kSplitVersion = 2;           // of the way in which they are chosen
constexpr const char* kLockName = ".lock";
constexpr const char* kTemporaryPrefix = ".tmp-";

// Nothing when it was stopped while waiting.
std::optional<FileLock> lock_folder(Env& env, const PrepareOptions& options, const PrepareHooks& hooks) {
  const std::string path = join_path(options.output, kLockName);
  const auto on_wait = [&] {
    if (!options.in_cache) {
      fail("[prepare] {}: another process is preparing this folder (it holds {})", options.output, path);
    }
    log_info("data: another process is preparing {}; waiting for it", options.output);
  };
  return wait_for_lock(env, path, fmt::format("{}\n", getpid()), on_wait, hooks.stop);
}

// The first input file whose name, size or time is another one now; "" if the lists differ in nothing that is known.
std::string changed_input(const ordered_json& old, const ordered_json& now) {
  const auto entries = [](const ordered_json& files) {
    return files.is_array() ? files : ordered_json::array();
  };
  const ordered_json before = entries(old), after = entries(now);
  const auto path_of = [](const ordered_json& file) {
    return file.is_object() && file.contains("path") ? file["path"].dump() : file.dump();
  };
  const auto find = [&](const ordered_json& files, const ordered_json& file) {
    return std::ranges::find_if(files,
                                [&](const ordered_json& other) { return path_of(other) == path_of(file); });
  };
  for (const ordered_json& file : after) {
    const auto same = find(before, file);
    if (same == before.end()) return fmt::format("{} was not among its input files", path_of(file));
    if (*same != file) return fmt::format("{} has changed since (its size or time)", path_of(file));
  }
  for (const ordered_json& file : before) {
    if (find(after, file) == after.end())
      return fmt::format("{} is no longer among the input files", path_of(file));
  }
  return "";
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
    if (const std::string change = key == "files" ? changed_input(*old, value) : ""; !change.empty()) {
      fail("[prepare] {} was prepared before, but {}; choose another folder or remove this one", folder,
           change);
    }
    if (*old != value) differ(key, old->dump(), value.dump());
  }
  fail("[prepare] {} was prepared with other options, {}; choose another folder or remove this one", folder,
       there.options.dump());
}

// A file that may be another program's: nothing is said of removing it.
void require_own(bool is_own, const std::string& path) {
  require(is_own, "[prepare] {} is no manifest of an octet dataset, or is damaged; choose another folder",
          path);
}

// Removes what a crash left. Refuses a folder with other files, and then changes nothing. Shards may be left over only if
// `may_have_shards`: otherwise they are what remains of a dataset whose manifest is gone.
void tidy_folder(Env& env, const std::string& folder, const DatasetManifest& known, bool may_have_shards) {
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
    if (is_shard_name(name) && !may_have_shards) {
      fail(
          "[prepare] {} holds shards ('{}'), but no {} and no {}, so what they are made of is not known; choose another "
          "folder or remove this one",
          folder, name, kManifestName, kProgressName);
    }
    // A shard that is whole but not yet in the progress file is written again, with the same bytes.
    if (is_shard_name(own) || is_checked_files_name(name) ||
        (is_temporary && (own == kProgressName || own == kManifestName))) {
      left_over.push_back(name);
      continue;
    }
    fail("[prepare] {} holds '{}', which is not part of a dataset; expected an empty or a new folder", folder,
         name);
  }
  for (const std::string& name : left_over) env.remove_file(join_path(folder, name));
}

class Preparation {
 public:
  Preparation(Env& env, const PrepareOptions& options, const Tokenizer& tokenizer, DatasetManifest start,
              const PrepareHooks& hooks)
      : env_(env), options_(options), tokenizer_(tokenizer), manifest_(std::move(start)), hooks_(hooks) {}

  // False when it was stopped.
  bool run(DatasetReader& reader) {
    const ShardKind kind{tokenizer_.vocab_size(), tokenizer_.fingerprint()};
    // Both splits end their shards together, at the end of the block that brings them nearest to shard_tokens.
    const int64_t block_tokens = std::min(options_.shard_tokens, kBlockTokens);
    const int64_t enough = options_.shard_tokens - block_tokens / 2;
    SplitWriter train(env_, options_.output, kTrainName, kind, enough, manifest_.train);
    SplitWriter validation(env_, options_.output, kValidationName, kind, enough, manifest_.validation);
    const int64_t from = std::max(train.written().end_example(), validation.written().end_example());
    TokenizePipeline pipeline(reader, tokenizer_,
                              {.threads = options_.threads,
                               .max_examples = options_.max_examples,
                               .wanted = [from](int64_t example) { return example >= from; }});
    PrepareProgress progress{0, train.written().counts.documents + validation.written().counts.documents,
                             train.written().counts.tokens + validation.written().counts.tokens};
    HoldOut hold_out(options_.eval_split, options_.seed, progress.tokens, validation.written().counts.tokens);
    const auto write_block = [&](bool is_last) {
      const std::vector<int64_t> tails =
          hold_out.choose(block_, is_last, reader.format() == ExampleFormat::Text);
      for (size_t i = 0; i < block_.size(); ++i) write(train, validation, block_[i].document, tails[i]);
      if (!is_last && (train.is_full() || validation.is_full())) {
        train.end_shard(block_.back().example + 1);
        validation.end_shard(block_.back().example + 1);
        save(train, validation);
      }
      block_.clear();
      block_tokens_ = 0;
    };
    std::vector<TokenizePipeline::Item> items;
    bool is_stopped = false;
    const auto next = [&] {
      try {
        return pipeline.next(items);
      } catch (const ReadingStopped&) {  // inside a very long record
        is_stopped = true;
        return false;
      }
    };
    while (next()) {
      for (TokenizePipeline::Item& item : items) {
        const auto tokens = static_cast<int64_t>(item.document.tokens.size());
        ++progress.documents;
        progress.tokens += tokens;
        // A block is written only when there is more, because the last one makes up for what is missing.
        if (block_tokens_ >= block_tokens) write_block(false);
        if (!SplitWriter::predicts(item.document)) {
          train.add(item.document);  // counts it
          continue;
        }
        block_tokens_ += tokens;
        block_.push_back(std::move(item));
      }
      if (hooks_.stop && hooks_.stop()) return false;
      progress.share = pipeline.progress();
      if (hooks_.progress) hooks_.progress(progress);
    }
    if (is_stopped) return false;
    write_block(true);
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
  // The last `tail` tokens go into the validation split.
  static void write(SplitWriter& train, SplitWriter& validation, const Document& document, int64_t tail) {
    const auto tokens = static_cast<int64_t>(document.tokens.size());
    if (tail == 0) return train.add(document);
    if (tail == tokens) return validation.add(document);
    log_info("data: one document is split: its last {} of {} tokens are held out", tail, tokens);
    train.add(part_of(document, 0, tokens - tail));
    validation.add(part_of(document, tokens - tail, tokens));
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
  std::vector<TokenizePipeline::Item> block_;  // documents that are not written yet
  int64_t block_tokens_ = 0;
};

void check(const PrepareOptions& options) {
  require(!options.output.empty(), "[prepare] no folder to write to");
  require(options.shard_tokens > 0, "[prepare] shard_tokens {}, expected at least 1", options.shard_tokens);
  require(options.eval_split >= 0 && options.eval_split < 1,
          "[prepare] eval_split {}, expected 0 <= eval_split < 1", options.eval_split);
}

}  // namespace

ordered_json prepare_identity(const PrepareOptions& options) {
  ordered_json identity = options.identity.is_null() ? ordered_json::object() : options.identity;
  identity["shard_tokens"] = options.shard_tokens;
  identity["eval_split"] = options.eval_split;
  if (options.eval_split > 0) identity["split_version"] = kSplitVersion;
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
    require_own(has_dataset_manifest(env, options.output), path(kManifestName));
    result.manifest = read_dataset_manifest(env, path(kManifestName));
    check_same(result.manifest, asked, options.output);
    for (const SplitManifest* split : {&result.manifest.train, &result.manifest.validation})
      check_shard_sizes(env, options.output, *split);
    if (env.exists(path(kProgressName))) env.remove_file(path(kProgressName));  // a crash just after the end
    result.whole = result.was_there = true;
    return result;
  }
  const bool has_begun = env.exists(path(kProgressName));
  DatasetManifest there;
  if (has_begun) {
    require_own(has_dataset_progress(env, options.output), path(kProgressName));
    there = read_dataset_manifest(env, path(kProgressName));
  }
  // Where no shard is complete, nothing is continued.
  if (!there.train.shards.empty() || !there.validation.shards.empty()) {
    check_same(there, asked, options.output);
    asked = std::move(there);
    asked.tokenizer = options.tokenizer_name;
    check_shard_sizes(env, options.output, asked.train, kProgressName);
    check_shard_sizes(env, options.output, asked.validation, kProgressName);
    result.examples_skipped = std::max(asked.train.end_example(), asked.validation.end_example());
    log_info("data: continuing {}, complete shards so far: {}", options.output,
             asked.train.shards.size() + asked.validation.shards.size());
  }
  tidy_folder(env, options.output, asked, has_begun || options.in_cache);

  const std::unique_ptr<DatasetReader> reader = open_reader();
  write_file_atomically(env, options.output, kProgressName, dataset_manifest_text(asked));
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
