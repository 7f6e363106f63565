#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "base/error.h"
#include "base/input_errors.h"
#include "base/log.h"
#include "base/print.h"
#include "base/signals.h"
#include "base/text.h"
#include "command.h"
#include "data/datasets/prepared_list.h"
#include "import/import.h"
#include "plan/data_parts.h"
#include "plan/data_prepare.h"
#include "plan/dataset_items.h"
#include "plan/marked_text.h"
#include "plan/resolve.h"
#include "report/console.h"
#include "report/text.h"

namespace octet {
namespace {

struct Options {
  std::string output;
  int64_t preview = 0;
  RunArguments run;
};

// Prints the first examples as the model will see them. Nothing is written.
void show_examples(const ExampleOptions& examples, const std::string& tokenizer_name,
                   const Tokenizer& tokenizer, int64_t count) {
  const bool color = terminal_traits(STDOUT_FILENO).color;
  const std::unique_ptr<DatasetReader> reader = open_examples(examples, tokenizer);
  Example example;
  for (int64_t i = 0; i < count && reader->next(example); ++i) {
    const bool is_text = reader->format() == ExampleFormat::Text;
    if (i == 0) {
      std::string format = fmt::format("{} ({})", name_of(reader->format()), reader->columns());
      if (!is_text) {
        const ChatRenderer renderer({reader->chat_template(), examples.default_system}, tokenizer, {});
        format += fmt::format("; chat template {}", name_of(reader->chat_template()));
        if (!renderer.default_system().empty())
          format += fmt::format("; default system \"{}\"", renderer.default_system());
      }
      print_stdout("format     {}\nloss       {}\ntokenizer  {}\n", format,
                   loss_text(examples.loss_on, is_text), tokenizer_text(tokenizer_name, tokenizer));
    }
    const Document document = encode_example(example, tokenizer);
    // Not with print_stdout: marked_text() is safe to print, and may have colours of its own.
    fmt::print("\nexample {}: {}; trained tokens {}\n{}\n", i + 1, marked_counts(document),
               color ? "in green" : "in [[ ]]",
               marked_text(document, tokenizer, color ? MarkStyle::Color : MarkStyle::Brackets));
  }
  if (reader->skipped().total() > 0) print_stdout("\nskipped: {}\n", reader->skipped().describe());
}

// A folder for a list must not hold anything else.
void check_folder(const std::string& folder, const std::vector<DatasetPart>& list) {
  Env& env = posix_env();
  env.make_directories(folder);
  for (const std::string& name : env.list(folder)) {
    const bool is_part = std::ranges::find(list, name, &DatasetPart::path) != list.end();
    if (!is_part && name != kPreparedListName && name != fmt::format(".tmp-{}", kPreparedListName)) {
      fail_config("{} holds '{}', which is no dataset of this list; expected an empty or a new folder",
                  folder, name);
    }
  }
}

enum class Shards { All, Changed };  // since they were checked last

// Reads shards of these folders. An error names every damaged file.
void verify_shards(std::span<const std::string> folders, Shards which) {
  std::string damage;
  for (const std::string& folder : folders) {
    FileChecks checks(posix_env(), which == Shards::All);
    const auto open = [&](const DatasetManifest& manifest, const SplitManifest& split) {
      try {
        open_split(posix_env(), folder, manifest, split, checks);
      } catch (const Error& error) {
        damage += fmt::format("{}{}", damage.empty() ? "" : "\n", error.what());
      }
    };
    const DatasetManifest manifest =
        reading_input([&] { return read_dataset_manifest(posix_env(), join_path(folder, kManifestName)); });
    open(manifest, manifest.train);
    open(manifest, manifest.validation);
    if (damage.empty()) log_verified(checks, folder);
    if (const FileChecks::Amount& read = checks.amount();
        damage.empty() && !checks.verify() && read.files > 0)
      log_info("data: checked {} of {}, {}: no damage was found", counted(read.files, "file"), folder,
               human_bytes(static_cast<double>(read.bytes)));
  }
  if (!damage.empty()) throw ConfigError(damage);
}

// Checks what an earlier call has written, whatever it was made of.
int verify_prepared(const std::string& output) {
  if (!posix_env().is_directory(output))
    fail_config("[{}] is not a folder, expected a prepared dataset", output);
  std::vector<std::string> folders = {output};
  if (has_prepared_list(output)) {
    folders.clear();
    for (const DatasetPart& part : reading_input([&] { return read_prepared_list(output); }))
      folders.push_back(part.path);
  }
  for (const std::string& folder : folders) {
    if (!has_dataset_manifest(posix_env(), folder)) {
      const bool has_begun = has_dataset_progress(posix_env(), folder);
      fail_config("{} holds no {}prepared dataset: it has no {}{}", folder, has_begun ? "finished " : "",
                  kManifestName, has_begun ? "; run the same 'octet prepare' command again" : "");
    }
  }
  verify_shards(folders, Shards::All);
  return kExitDone;
}

int run(const Options& options) {
  TrainConfig config = load_train_config(read_run_file(options.run.config_file), options.run.settings);
  if (config.verify && !config.is_set("dataset") && !options.output.empty())
    return verify_prepared(options.output);
  std::vector<std::string> errors;
  if (config.is_demo())
    errors.emplace_back("octet prepare needs --dataset: a file, a folder, a glob, a preset or a hub id");
  if (options.output.empty() && options.preview == 0)
    errors.emplace_back("octet prepare needs --output DIR, the folder for shards and manifest");
  throw_config_errors(errors);
  if (options.preview == 0) survive_broken_pipes();

  if (!config.is_set("tokenizer") && assumes_gpt2(config))
    log_info("no model and no tokenizer is named: the tokenizer of GPT-2 is used");
  if (!config.is_set("tokenizer") && config.model_name_or_path.empty() &&
      tokenizer_of_preset(config).empty()) {
    log_warning("no --tokenizer is given: text is read as bytes");
  }
  std::string tokenizer_name;
  std::unique_ptr<const Tokenizer> tokenizer;
  std::vector<DatasetPart> parts;
  reading_input([&] {
    const ResolvedRun run = resolve(config, Wanted::by_prepare());
    config = run.keys;
    parts = expanded_dataset(config);
    const std::vector<int64_t> times = join_same_data(parts);
    for (size_t i = 0; i < parts.size(); ++i) {
      if (times[i] > 1 && parts[i].weight == 0)
        fail_config(
            "dataset {} is named {} times: prepare it once, and name what is prepared {} times to train",
            printable(parts[i].path), times[i], times[i]);
    }
    for (const DatasetPart& part : parts) {
      if (has_dataset_manifest(posix_env(), part.path))
        fail_config(
            "dataset {} is already prepared: train on it as it is, or give the files that it was made from",
            part.path);
      if (has_dataset_progress(posix_env(), part.path))
        fail_config(
            "dataset {} is not fully prepared: run the same 'octet prepare' command again, or give the files that it is made from",
            part.path);
    }
    tokenizer_name = choose_tokenizer(config, run.model.tokenizer);
    std::string source = tokenizer_name;
    tokenizer = read_tokenizer(config, tokenizer_name, source, InNeed::Error);
    throw_config_errors(idle_choices(config));
    if (options.preview == 0) return;
    for (const DatasetPart& part : parts)
      show_examples(train_examples(config, part), tokenizer_name, *tokenizer, options.preview);
  });
  if (options.preview > 0) return kExitDone;
  const auto prepare = [&](const DatasetPart& part, const std::string& output) {
    const PreparedFolder prepared =
        prepare_with_progress(config,
                              {.examples = train_examples(config, part),
                               .tokenizer = tokenizer_name,
                               .max_samples = part.max_samples > 0 ? part.max_samples : config.max_samples,
                               .eval_split = config.eval_split,
                               .seed = static_cast<uint64_t>(config.seed),
                               .output = output},
                              *tokenizer);
    if (config.verify || prepared.result.was_there)
      verify_shards(std::span(&prepared.folder, 1), config.verify ? Shards::All : Shards::Changed);
    if (config.progress == ConsoleMode::Quiet) return;
    if (parts.size() > 1) print_stdout("{}\n", part.path);
    print_stdout("{}{}", statistics_text(prepared.result.manifest), parts.size() > 1 ? "\n" : "");
  };
  if (parts.size() == 1) {
    prepare(parts[0], options.output);
    return kExitDone;
  }
  std::vector<DatasetPart> list;
  for (std::string& name : part_names(parts)) {
    std::ranges::replace(name, '/', '-');
    list.push_back({.path = std::move(name), .weight = parts[list.size()].weight});
  }
  check_folder(options.output, list);
  for (size_t i = 0; i < parts.size(); ++i) prepare(parts[i], join_path(options.output, list[i].path));
  write_prepared_list(posix_env(), options.output, list);
  return kExitDone;
}

}  // namespace

Command prepare_command() {
  CommandBuilder<Options> builder("prepare",
                                  "Turn a dataset into token shards, so that training starts at once");
  builder.line.usage =
      "[CONFIG.yaml] --dataset DATA --tokenizer FILE_OR_FOLDER --output DIR [--key value]...";
  builder.line.about =
      "Reads a dataset, tokenizes it on all cores and writes token shards and a manifest.json into DIR. "
      "Train on the result with 'octet train --dataset DIR'. If dataset is a list, DIR gets one folder per "
      "item, and datasets.json, which lists them with their weights.\n"
      "If it is stopped (Ctrl-C), start it again with the same options: it continues after the last "
      "complete shard and writes the same bytes. It refuses a DIR that was made with other options or "
      "another tokenizer.";
  builder.line.notes =
      "Only these keys have an effect here. What is read: dataset, dataset_split, dataset_subset, "
      "dataset_revision, dataset_dir, dataset_format, text_column, prompt_column, completion_column, "
      "messages_column, max_samples, on_error. How it becomes tokens: tokenizer, chat_template, "
      "default_system, train_on. The validation split: eval_split, seed. The work: shard_tokens, "
      "num_threads, progress. verify: read what was written before, and compare it with its checksums; for this alone, "
      "'octet prepare --output DIR --verify' is enough.";
  builder.keys
      .add("output", &Options::output,
           "Folder for the prepared dataset. It must be new, empty, or made by an earlier call with the same "
           "options.")
      .value("DIR")
      .short_flag('o')
      .note("none; must be given");
  builder.keys
      .add(
          "preview", &Options::preview,
          "Print the text of the first N examples, with the trained tokens marked, and stop. Nothing is written.")
      .value("N")
      .at_least(1)
      .at_most(1e6)
      .note("0");
  builder.run_arguments(&Options::run);
  return builder.command(run);
}

}  // namespace octet
