#include "plan/data_prepare.h"

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "base/hash.h"
#include "base/input_errors.h"
#include "base/log.h"
#include "base/signals.h"
#include "data/records/record_reader.h"
#include "io/cache_folder.h"
#include "io/checked_files.h"
#include "report/console.h"
#include "report/table.h"
#include "report/text.h"

namespace octet {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using nlohmann::ordered_json;

std::string absolute_if_there(const std::string& path) {
  std::error_code error;
  return fs::exists(path, error) ? fs::absolute(path, error).lexically_normal().string() : path;
}

// What the shards depend on in addition to the tokenizer: the current files and how they are read.
ordered_json identity_of(const DataKeys& config, const ExampleOptions& examples,
                         const std::vector<std::string>& files) {
  ordered_json identity = {{"reader_version", kReaderVersion},
                           {"dataset", absolute_if_there(examples.dataset)},
                           {"dataset_split", examples.split},
                           {"dataset_subset", examples.subset},
                           {"dataset_revision", examples.revision}};
  identity["dataset_format"] = name_of(examples.format);
  identity["text_column"] = examples.text_column;
  identity["prompt_column"] = examples.prompt_column;
  identity["completion_column"] = examples.completion_column;
  identity["messages_column"] = examples.messages_column;
  for (const char* key : {"chat_template", "default_system", "train_on", "on_error"}) {
    identity[key] = config_text(config, key);
  }
  identity["files"] = ordered_json::array();
  for (const std::string& file : files) {
    const FileStamp stamp = file_stamp(file);
    identity["files"].push_back(
        {{"path", absolute_if_there(file)}, {"size", stamp.size}, {"modified_ns", stamp.modified_ns}});
  }
  return identity;
}

// "my-chats-0123456789abcdef": a name that people recognise, and a hash of everything that the shards depend on.
std::string cache_name(const std::string& dataset, const PrepareOptions& options,
                       const Tokenizer& tokenizer) {
  std::string stem = fs::path(dataset).lexically_normal().filename().string();
  if (stem.empty()) stem = fs::path(dataset).lexically_normal().parent_path().filename().string();
  stem = stem.substr(0, std::min<size_t>(stem.find('.'), 40));
  for (char& c : stem) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_') c = '-';
  }
  Hash64 hash;
  hash.add(prepare_identity(options).dump()).add(static_cast<int64_t>(tokenizer.fingerprint()));
  return fmt::format("{}-{}", stem.empty() ? "dataset" : stem, hash.text());
}

// The progress bar; in plain mode a line every ten seconds.
class ProgressDisplay {
 public:
  explicit ProgressDisplay(Console& console) : console_(console) { console_.begin(0, kParts); }
  ~ProgressDisplay() { console_.finish(); }

  void show(const PrepareProgress& progress) {
    const auto now = Clock::now();
    const double seconds = std::chrono::duration<double>(now - started_).count();
    if (first_tokens_ < 0) first_tokens_ = progress.tokens;  // of an earlier call
    const double rate = static_cast<double>(progress.tokens - first_tokens_) / std::max(seconds, 1e-3);
    const auto part = static_cast<int64_t>(progress.share * kParts);
    const std::string label =
        fmt::format("{} documents, {} tokens", human_count(static_cast<double>(progress.documents)),
                    human_count(static_cast<double>(progress.tokens)));
    console_.advance(part, label, rate);
    if (console_.mode() != ConsoleMode::Plain || now - said_ < std::chrono::seconds(10)) return;
    said_ = now;
    const double left = progress.share > 0 ? seconds / progress.share * (1 - progress.share) : 0;
    console_.print(fmt::format("preparing: {:.0f} % | {} | {} tok/s | ETA {}", 100 * progress.share, label,
                               human_count(rate), clock_duration(left)));
  }

 private:
  static constexpr int64_t kParts = 10000;
  Console& console_;
  Clock::time_point started_ = Clock::now(), said_ = started_;
  int64_t first_tokens_ = -1;
};

std::string tokenizer_name(const std::string& name) {
  return name == "bytes" ? name : absolute_if_there(name);
}

}  // namespace

std::string cache_folder(const DataKeys& config) {
  if (!config.cache_dir.empty()) return config.cache_dir;
  if (const std::string folder = octet_cache_folder(); !folder.empty()) return folder;
  return join_path(config.output_dir, "cache");
}

ExampleOptions train_examples(const DataKeys& config, const DatasetPart& part) {
  const auto or_default = [](const std::string& own, const std::string& of_run) {
    return own.empty() ? of_run : own;
  };
  ExampleOptions options;
  options.dataset = part.path;
  options.split = or_default(part.split, config.dataset_split);
  options.subset = or_default(part.subset, config.dataset_subset);
  options.revision = or_default(part.revision, config.dataset_revision);
  options.data_dir = or_default(part.dataset_dir, config.dataset_dir);
  options.text_column = or_default(part.text_column, config.text_column);
  options.prompt_column = or_default(part.prompt_column, config.prompt_column);
  options.completion_column = or_default(part.completion_column, config.completion_column);
  options.messages_column = or_default(part.messages_column, config.messages_column);
  options.format = part.format != ExampleFormat::Auto ? part.format : config.dataset_format;
  options.chat_template = config.chat_template;
  options.loss_on = config.train_on;
  if (config.default_system != "auto") options.default_system = config.default_system;
  options.on_error = config.on_error;
  return options;
}

ExampleOptions eval_examples(const DataKeys& config, const DatasetPart& part) {
  ExampleOptions options = train_examples(config, part);
  const auto trained_on = std::ranges::find(config.dataset, part.path, &DatasetPart::path);
  if (trained_on == config.dataset.end()) {
    options.split = part.split;
    options.subset = part.subset;
    options.revision = part.revision;
    options.data_dir = part.dataset_dir;
  } else if (part == DatasetPart{.path = part.path}) {  // the same dataset without keys of its own
    options = train_examples(config, *trained_on);
  }
  if (!config.eval_dataset_split.empty() && part.split.empty()) options.split = config.eval_dataset_split;
  return options;
}

PreparedFolder prepare_with_progress(const DataKeys& config, const PrepareRequest& request,
                                     const Tokenizer& tokenizer) {
  std::optional<StopSignal> stop;  // not yet: a download ends at once
  std::unique_ptr<DatasetReader> reader = reading_input([&] {
    return open_examples(request.examples, tokenizer, [&stop] { return stop && stop->requested(); });
  });
  const std::string& dataset = request.examples.dataset;
  PrepareOptions options{.tokenizer_name = tokenizer_name(request.tokenizer),
                         .shard_tokens = config.shard_tokens,
                         .eval_split = request.eval_split,
                         .seed = request.seed,
                         .max_examples = request.max_samples,
                         .threads = static_cast<int>(config.num_threads),
                         .identity = identity_of(config, request.examples, reader->files())};
  options.in_cache = request.output.empty();
  options.output = request.output.empty() ? join_path(join_path(cache_folder(config), "datasets"),
                                                      cache_name(dataset, options, tokenizer))
                                          : request.output;

  Console console(config.progress);
  stop.emplace();
  PreparedFolder prepared{.folder = options.output, .result = {}};
  std::unique_ptr<ProgressDisplay> display;
  bool has_documents = false;
  const auto open = [&] {
    log_info("data: preparing {} into {}", dataset, options.output);
    display = std::make_unique<ProgressDisplay>(console);
    return std::move(reader);
  };
  const auto show = [&](const PrepareProgress& progress) {
    has_documents = true;
    display->show(progress);
  };
  try {
    prepared.result = prepare_dataset(posix_env(), options, tokenizer, open,
                                      {.progress = show, .stop = [&] { return stop->requested(); }});
  } catch (const IoError& error) {
    if (has_documents) throw;
    throw ConfigError(request.output.empty() ? error.what() + cache_note(options.output) : error.what());
  } catch (const Error& error) {
    if (has_documents) throw;
    throw ConfigError(error.what());  // the first records
  }
  display.reset();
  const DatasetManifest& manifest = prepared.result.manifest;
  if (!prepared.result.whole) {
    throw Interrupted(
        fmt::format("stopped while preparing {}: {} complete shards are in {}; run the same command again "
                    "to continue",
                    dataset, manifest.train.shards.size() + manifest.validation.shards.size(),
                    options.output),
        stop->number());
  }
  if (!prepared.result.first_skip_error.empty()) {
    int64_t skipped = 0;
    for (const auto& [reason, records] : manifest.skipped) skipped += records;
    log_warning("data: {} skipped; the first one: {}",
                skipped == 1 ? "1 record was" : fmt::format("{} records were", skipped),
                prepared.result.first_skip_error);
  }
  if (prepared.result.was_there) {
    log_info(
        "data: {} was prepared before: {} documents, {} tokens in {}", dataset,
        manifest.train.counts.documents + manifest.validation.counts.documents,
        human_count(static_cast<double>(manifest.train.counts.tokens + manifest.validation.counts.tokens)),
        options.output);
  }
  return prepared;
}

std::string statistics_text(const DatasetManifest& manifest) {
  const auto count = [](int64_t value) { return fmt::format("{}", value); };
  const auto share = [](int64_t part, int64_t whole) {
    return whole == 0
               ? std::string("-")
               : fmt::format("{:.1f} %", 100.0 * static_cast<double>(part) / static_cast<double>(whole));
  };
  Table table({{"dataset"}, {"train", Align::Right}, {"validation", Align::Right}});
  const SplitManifest &train = manifest.train, &validation = manifest.validation;
  const auto row = [&](const char* what, auto&& value) {
    table.add_row({what, value(train), value(validation)});
  };
  row("documents", [&](const SplitManifest& split) { return count(split.counts.documents); });
  row("tokens", [&](const SplitManifest& split) { return count(split.counts.tokens); });
  row("targets",
      [&](const SplitManifest& split) { return share(split.counts.targets, split.counts.tokens); });
  row("tokens per document", [&](const SplitManifest& split) {
    return split.counts.documents == 0
               ? std::string("-")
               : fmt::format("{:.1f}", static_cast<double>(split.counts.tokens) /
                                           static_cast<double>(split.counts.documents));
  });
  row("longest document", [&](const SplitManifest& split) { return count(split.lengths.longest); });
  row("shards", [&](const SplitManifest& split) { return count(static_cast<int64_t>(split.shards.size())); });
  if (train.dropped + validation.dropped > 0) {
    row("without a target", [&](const SplitManifest& split) { return count(split.dropped); });
  }
  std::string text = table.str();

  constexpr int64_t kWidestBar = 40;
  LengthStatistics lengths = train.lengths;
  lengths += validation.lengths;
  const int64_t most = *std::max_element(lengths.counts.begin(), lengths.counts.end());
  Table histogram({{"length in tokens", Align::Right}, {"documents", Align::Right}, {""}});
  bool begun = false;
  for (size_t i = 0; i < lengths.counts.size(); ++i) {
    begun = begun || lengths.counts[i] > 0;
    if (!begun || (int64_t{1} << i) > lengths.longest) continue;
    const auto bar = static_cast<size_t>((lengths.counts[i] * kWidestBar + most - 1) / most);
    histogram.add_row({fmt::format("{} - {}", int64_t{1} << i, (int64_t{2} << i) - 1),
                       count(lengths.counts[i]), std::string(bar, '#')});
  }
  text += fmt::format("\n{}", histogram.str());
  for (const auto& [reason, records] : manifest.skipped) {
    text += fmt::format("{}skipped: {} records, {}\n",
                        &records == &manifest.skipped.begin()->second ? "\n" : "", records, reason);
  }
  return text;
}

}  // namespace octet
