#include "plan/dataset_items.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "data/datasets/dataset.h"
#include "data/datasets/dataset_files.h"
#include "data/datasets/dataset_info.h"
#include "data/datasets/dataset_presets.h"
#include "data/datasets/prepared_list.h"
#include "data/shards/manifest.h"
#include "data/shards/split_writer.h"
#include "plan/data_prepare.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

bool ends_with_any(const std::string& path, std::initializer_list<const char*> endings) {
  return std::any_of(endings.begin(), endings.end(),
                     [&](const char* ending) { return path.ends_with(ending); });
}

}  // namespace

bool asks_for_documents(const DataKeys& config, const ExampleOptions& examples) {
  return config.packing == PackingKey::BestFit || config.packing == PackingKey::None ||
         examples.format != ExampleFormat::Auto || !examples.text_column.empty() ||
         !examples.prompt_column.empty() || !examples.completion_column.empty() ||
         !examples.messages_column.empty();
}

DataKind kind_of(const DataKeys& config, const ExampleOptions& examples) {
  const std::string& dataset = examples.dataset;
  const auto kind_of_file = [&](const std::string& path) {
    if (path.ends_with(".bin")) return DataKind::Stream;
    if (path.ends_with(".txt") && !asks_for_documents(config, examples)) return DataKind::Stream;
    return DataKind::Examples;
  };
  if (dataset == kDemo) return DataKind::Stream;
  std::error_code error;
  if (!fs::is_directory(dataset, error)) return kind_of_file(dataset);
  if (has_dataset_manifest(posix_env(), dataset)) return DataKind::Prepared;
  require(!has_dataset_progress(posix_env(), dataset),
          "[dataset] {} is not fully prepared; run the same 'octet prepare' command again", dataset);
  bool tokens = false, text = false, records = false, shards = false;
  for (const fs::directory_entry& entry : fs::directory_iterator(dataset)) {
    const std::string path = entry.path().string();
    tokens = tokens || path.ends_with(".bin");
    text = text || path.ends_with(".txt");
    shards = shards || (entry.is_regular_file() && is_shard_name(entry.path().filename().string()));
    records = records || ends_with_any(path, {".jsonl", ".json", ".csv", ".parquet", ".gz", ".zst"});
  }
  require(!shards, "[dataset] {} holds shards of a prepared dataset, but its {} is missing or damaged; {}",
          dataset, kManifestName, kPrepareAgain);
  if (tokens || (text && !records)) return kind_of_file(tokens ? "x.bin" : "x.txt");
  return DataKind::Examples;
}

namespace {

bool is_glob(const std::string& path) {
  return path.find_first_of("*?[{") != std::string::npos;
}

const std::string& folder_of(const DataKeys& keys, const DatasetPart& part) {
  return part.dataset_dir.empty() ? keys.dataset_dir : part.dataset_dir;
}

// What the dataset_info.json says about the item; nothing if the item is not a name in it.
std::optional<DatasetPart> described(const DataKeys& keys, const DatasetPart& part) {
  std::error_code error;
  const std::string& folder = folder_of(keys, part);
  if (!has_dataset_info(folder) || fs::exists(part.path, error)) return std::nullopt;
  std::optional<DatasetPart> found = find_dataset_info(folder, part.path);
  if (found) return found;
  if (is_glob(part.path) || find_dataset_preset(part.path) || part.path == kDemo ||
      part.path.find('/') != part.path.npos) {
    return std::nullopt;
  }
  const std::vector<std::string> names = dataset_info_names(folder);
  const std::string near = nearest_name(part.path, names);
  fail_config("dataset {} is no path, and {} has no such name{}", part.path,
              join_path(folder, kDatasetInfoName),
              near.empty() ? fmt::format("; it has {} names", names.size())
                           : fmt::format("; did you mean '{}'?", near));
}

// The keys of the item over those of the file.
DatasetPart merged(DatasetPart info, const DatasetPart& own) {
  const KeyTable<DatasetPart>& table = dataset_part_keys();
  for (const auto& [name, value] : table.changed(own)) {
    if (name != "path") table.set(info, table.index_of(name), value_of(value));
  }
  return info;
}

std::vector<DatasetPart> expanded(const DataKeys& keys, const std::vector<DatasetPart>& items) {
  std::vector<DatasetPart> parts;
  for (const DatasetPart& item : items) {
    if (has_prepared_list(item.path)) {
      if (items.size() > 1) {
        fail_config(
            "dataset {} is a folder of several prepared datasets, which cannot be an item of a list; name its "
            "subfolders instead",
            item.path);
      }
      return read_prepared_list(item.path);
    }
    const std::optional<DatasetPart> info = described(keys, item);
    parts.push_back(info ? merged(*info, item) : item);
  }
  return parts;
}

// Which keys choose something in an item, and why the others do not.
struct Choices {
  bool split = false, hub = false, folder = false;
  bool samples = false;   // max_samples
  bool reading = true;    // format and columns, as far as other keys allow
  bool one_file = false;  // a split names nothing in it, and harms nothing
  std::string why;
};

constexpr const char* kReadingKeys[] = {"format", "text_column", "prompt_column", "completion_column",
                                        "messages_column"};

Choices choices_of(const DataKeys& keys, const DatasetPart& part, const std::string& folder) {
  std::error_code error;
  const std::string& path = part.path;
  const auto is_stream = [&] { return kind_of(keys, train_examples(keys, part)) == DataKind::Stream; };
  if (path == kDemo) return {.why = "the demo has no files"};
  if (fs::is_directory(path, error)) {
    if (has_prepared_list(path) || has_dataset_manifest(posix_env(), path))
      return {.reading = false, .why = fmt::format("{} is a prepared dataset", path)};
    if (is_stream())
      return {.why = fmt::format("{} is a folder of token or text files, which are all read", path)};
    return {.split = true, .samples = true, .why = fmt::format("{} is a folder on this machine", path)};
  }
  if (fs::exists(path, error)) {
    const bool stream = is_stream();
    return {.samples = !stream,
            .one_file = true,
            .why = fmt::format("{} is a single file{}", path,
                               stream ? " of text or tokens without records" : "")};
  }
  if (is_glob(path)) {
    const bool stream = is_stream();
    return {.split = !stream, .samples = !stream, .why = fmt::format("{} names files on this machine", path)};
  }
  if (const std::optional<DatasetPart> info = described(keys, part)) {
    Choices choices = choices_of(keys, *info, "");
    choices.folder = true;
    return choices;
  }
  if (find_dataset_preset(path)) {
    return {.split = true,
            .hub = folder.empty(),
            .folder = true,
            .samples = true,
            .why = fmt::format("the files of {} are taken from dataset_dir", path)};
  }
  return {.split = true,
          .hub = true,
          .samples = true,
          .why = fmt::format("{} is not a preset, and the folder has no {}", path, kDatasetInfoName)};
}

struct Choice {
  const char* item_key;                        // of an item
  const char* run_key;                         // of the run
  std::string (*of_item)(const DatasetPart&);  // "": not given
  std::string (*of_run)(const DataKeys&);
  bool Choices::*has_effect;
};

std::string text_of(int64_t count) {
  return count > 0 ? std::to_string(count) : "";
}

constexpr Choice kChoices[] = {
    {"split", "dataset_split", [](const DatasetPart& part) { return part.split; },
     [](const DataKeys& keys) { return keys.dataset_split; }, &Choices::split},
    {"subset", "dataset_subset", [](const DatasetPart& part) { return part.subset; },
     [](const DataKeys& keys) { return keys.dataset_subset; }, &Choices::hub},
    {"revision", "dataset_revision", [](const DatasetPart& part) { return part.revision; },
     [](const DataKeys& keys) { return keys.dataset_revision; }, &Choices::hub},
    {"dataset_dir", "dataset_dir", [](const DatasetPart& part) { return part.dataset_dir; },
     [](const DataKeys& keys) { return keys.dataset_dir; }, &Choices::folder},
    {"max_samples", "max_samples", [](const DatasetPart& part) { return text_of(part.max_samples); },
     [](const DataKeys& keys) { return text_of(keys.max_samples); }, &Choices::samples}};

// Keys that count when a dataset is prepared, and not later: those of conversations, and all others.
constexpr std::string_view kChatKeys[] = {"train_on", "chat_template", "default_system"};
constexpr std::string_view kPreparingKeys[] = {"eval_split",    "dataset_format",    "text_column",
                                               "prompt_column", "completion_column", "messages_column",
                                               "on_error",      "shard_tokens"};

// Whether the user asks for the value of a key now. A run writes all keys to its configuration. Some of its values were asked
// for long ago, and its chat template and system prompt may be those of the model that it started from.
bool is_asked_for(const DataKeys& keys, std::string_view key) {
  if (!is_changed(keys, key)) return false;
  if (keys.is_set_by_flag(key)) return true;
  return keys.resume.empty() && key != "chat_template" && key != "default_system";
}

// Keys of the run that ask for something else than a prepared dataset has.
void find_other_preparation(const DataKeys& keys, const std::string& folder, std::vector<std::string>& idle) {
  const DatasetManifest manifest = read_dataset_manifest(posix_env(), join_path(folder, kManifestName));
  const auto compare = [&](std::string_view key) {
    const auto found = manifest.options.find(key);
    std::string prepared;  // "": not known
    if (found != manifest.options.end())
      prepared = found->is_string() ? found->get<std::string>() : found->dump();
    if (prepared == "auto" && key == "chat_template") prepared = manifest.chat_template;
    const std::string given = config_text(keys, key);
    if (!is_asked_for(keys, key) || given == prepared) return;
    idle.push_back(
        fmt::format("{} is '{}', which has no effect: {} is a prepared dataset{}; prepare it again", key,
                    given, folder, prepared.empty() ? "" : fmt::format(", made with '{}'", prepared)));
  };
  std::ranges::for_each(kPreparingKeys, compare);
  if (manifest.format != name_of(ExampleFormat::Text)) std::ranges::for_each(kChatKeys, compare);
}

// `lists`: the items, whether the keys of the run hold for them.
void find_idle(const DataKeys& keys, const std::vector<DatasetPart>& items, std::string_view list,
               bool of_run, std::vector<std::string>& idle) {
  std::vector<Choices> choices;
  for (const DatasetPart& item : items)
    choices.push_back(choices_of(keys, item, of_run ? folder_of(keys, item) : item.dataset_dir));
  const bool all_files = std::ranges::all_of(choices, &Choices::one_file);
  for (const Choice& choice : kChoices) {
    const bool is_split = choice.has_effect == &Choices::split;
    const auto tell = [&](bool harmless, std::string text) {
      if (harmless && is_split) {
        log_info("data: {}", text);
      } else {
        idle.push_back(std::move(text));
      }
    };
    for (size_t i = 0; i < items.size(); ++i) {
      const std::string own = choice.of_item(items[i]);
      if (!own.empty() && !(choices[i].*choice.has_effect))
        tell(choices[i].one_file, fmt::format("{} '{}' of item {} of {} has no effect: {}", choice.item_key,
                                              own, i + 1, list, choices[i].why));
    }
    const std::string given = choice.of_run(keys);
    const auto affected = [&](const Choices& of_item) { return of_item.*choice.has_effect; };
    if (of_run && !given.empty() && std::ranges::none_of(choices, affected))
      tell(all_files,
           fmt::format("{} is '{}', which has no effect: {}", choice.run_key, given, choices.front().why));
  }
  const auto is_prepared = [](const Choices& of_item) { return !of_item.reading; };
  if (of_run && std::ranges::all_of(choices, is_prepared)) {
    for (const DatasetPart& part : expanded(keys, items)) find_other_preparation(keys, part.path, idle);
  }
  for (size_t i = 0; i < items.size(); ++i) {
    const auto idle_key = [&](std::string_view key, const std::string& why) {
      idle.push_back(fmt::format("{} of item {} of {} has no effect: {}", key, i + 1, list, why));
    };
    for (const auto& [key, value] : dataset_part_keys().changed(items[i])) {
      if (!choices[i].reading && std::ranges::find(kReadingKeys, key) != std::end(kReadingKeys))
        idle_key(key, choices[i].why);
      if (key == "weight" && has_prepared_list(items[i].path))
        idle_key(key, fmt::format("{} has weights of its own", items[i].path));
      if (key == "max_samples" && !of_run && choices[i].samples)
        idle_key(key, fmt::format("{} is always read whole", list));
    }
  }
  if (list != "eval_dataset" || keys.eval_dataset_split.empty()) return;
  if (std::ranges::any_of(choices, &Choices::split)) return;
  std::string text = fmt::format("eval_dataset_split is '{}', which has no effect: {}",
                                 keys.eval_dataset_split, choices.front().why);
  if (all_files) {
    log_info("data: {}", text);
  } else {
    idle.push_back(std::move(text));
  }
}

}  // namespace

std::vector<int64_t> join_same_data(std::vector<DatasetPart>& parts) {
  const auto data_of = [](DatasetPart part) {
    std::error_code error;
    const fs::path path = fs::canonical(part.path, error);
    if (!error) part.path = path.string();
    part.weight = 0;
    part.max_samples = 0;
    return part;
  };
  std::vector<DatasetPart> joined, data;
  std::vector<int64_t> times;
  for (const DatasetPart& part : parts) {
    const auto found = std::ranges::find(data, data_of(part));
    if (found == data.end()) {
      joined.push_back(part);
      data.push_back(data_of(part));
      times.push_back(1);
      continue;
    }
    const auto index = static_cast<size_t>(found - data.begin());
    DatasetPart& first = joined[index];
    if (first.max_samples != part.max_samples)
      fail_config("{} and {} are the same data with different max_samples; name it once", first.path,
                  part.path);
    first.weight += part.weight;
    ++times[index];
  }
  parts = std::move(joined);
  return times;
}

std::vector<DatasetPart> expanded_dataset(const DataKeys& keys) {
  return expanded(keys, keys.dataset);
}

std::vector<DatasetPart> expanded_eval_dataset(const DataKeys& keys) {
  std::vector<DatasetPart> parts = expanded(keys, keys.eval_dataset);
  const std::vector<int64_t> times = join_same_data(parts);
  for (size_t i = 0; i < parts.size(); ++i) {
    if (times[i] > 1)
      fail_config("{} is named {} times, but data is evaluated once; name it once", parts[i].path, times[i]);
    parts[i].weight = 0;
  }
  return parts;
}

bool needs_tokenizer(const DataKeys& keys) {
  const auto is_text = [&](const ExampleOptions& examples) {
    const DataKind kind = kind_of(keys, examples);
    if (kind != DataKind::Stream || examples.dataset == kDemo) return kind != DataKind::Prepared;
    return !std::ranges::all_of(stream_files(examples.dataset),
                                [](const std::string& file) { return file.ends_with(".bin"); });
  };
  return !keys.eval_tasks.empty() ||
         std::ranges::any_of(expanded_dataset(keys),
                             [&](const DatasetPart& part) { return is_text(train_examples(keys, part)); }) ||
         std::ranges::any_of(expanded_eval_dataset(keys),
                             [&](const DatasetPart& part) { return is_text(eval_examples(keys, part)); });
}

std::vector<std::string> idle_choices(const DataKeys& keys) {
  std::vector<std::string> idle;
  try {
    if (!keys.dataset.empty()) find_idle(keys, keys.dataset, "dataset", true, idle);
    if (!keys.eval_dataset.empty()) find_idle(keys, keys.eval_dataset, "eval_dataset", false, idle);
  } catch (const Error&) {  // what cannot be opened is reported where it is opened
  }
  return idle;
}

}  // namespace octet
