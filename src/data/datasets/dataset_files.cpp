#include "data/datasets/dataset_files.h"

#include <glob.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <memory>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "data/datasets/dataset_presets.h"
#include "data/records/record_reader.h"
#include "data/shards/manifest.h"
#include "io/env.h"
#include "io/hub.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

// Files next to the data that describe it.
bool is_description(const std::string& path) {
  constexpr std::array<std::string_view, 5> kNames = {"dataset_info.json", "dataset_infos.json", "state.json",
                                                      "README.txt", "LICENSE.txt"};
  const std::string name = fs::path(path).filename().string();
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

bool has_word(const std::string& path, std::string_view word, std::string_view separators) {
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find_first_of(separators, begin), path.size());
    if (std::string_view(path).substr(begin, end - begin) == word) return true;
    begin = end + 1;
  }
  return false;
}

std::vector<std::string> names_of_split(const std::string& split) {
  static const std::array<std::vector<std::string>, 2> kSame = {
      std::vector<std::string>{"validation", "valid", "val", "dev"},
      std::vector<std::string>{"train", "training"}};
  for (const auto& names : kSame) {
    if (std::find(names.begin(), names.end(), split) != names.end()) return names;
  }
  return {split};
}

std::vector<std::string> paths_with_word(const std::vector<std::string>& paths,
                                         const std::vector<std::string>& words, std::string_view separators) {
  std::vector<std::string> found;
  for (const std::string& path : paths) {
    const bool fits = std::any_of(words.begin(), words.end(),
                                  [&](const std::string& word) { return has_word(path, word, separators); });
    if (fits) found.push_back(path);
  }
  return found;
}

// All files must be of one kind: a folder with both text and its tokens in JSON is two datasets.
void check_one_kind(const std::vector<std::string>& paths, const std::string& place) {
  const auto name_of_kind = [](const std::string& path) {
    const FileKind kind = *file_kind(path);
    if (kind == FileKind::Tsv) return std::string("csv");
    if (kind == FileKind::JsonLines || kind == FileKind::Json) return std::string("json");
    return std::string(kind == FileKind::Text ? "text" : kind == FileKind::Csv ? "csv" : "parquet");
  };
  for (const std::string& path : paths) {
    require(name_of_kind(path) == name_of_kind(paths[0]),
            "[dataset] {}: both {} ({}) and {} ({}), expected one kind; use a glob such as '*{}'", place,
            name_of_kind(paths[0]), paths[0], name_of_kind(path), path,
            fs::path(paths[0]).extension().string());
  }
}

std::vector<std::string> data_files(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    if (file_kind(path) && !is_description(path)) files.push_back(path);
  }
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<std::string> absolute(const std::string& folder, std::vector<std::string> paths) {
  for (std::string& path : paths) path = join_path(folder, path);
  return paths;
}

// `octet prepare` writes tokens and a description of them, not text. Its output may be below its input folder.
bool is_prepared_folder(const std::string& folder) {
  Env& env = posix_env();
  return has_dataset_manifest(env, folder) || has_dataset_progress(env, folder);
}

// The dataset files of a folder and its subfolders, relative to it.
std::vector<std::string> list_folder(const std::string& folder) {
  std::vector<std::string> paths;
  std::error_code error;
  fs::recursive_directory_iterator entry(folder, fs::directory_options::follow_directory_symlink, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    const bool is_hidden = entry->path().filename().string().starts_with('.');
    if (entry->is_directory() && (is_hidden || is_prepared_folder(entry->path().string())))
      entry.disable_recursion_pending();
    if (!is_hidden && entry->is_regular_file()) {
      paths.push_back(entry->path().lexically_relative(folder).string());
    }
  }
  require(!error, "[dataset] {}: {}", folder, error.message());
  const std::vector<std::string> files = data_files(paths);
  require(!files.empty(), "[dataset] {}: {} files in this folder, none of them a dataset; expected {}",
          folder, paths.size(), kFileKinds);
  return files;
}

std::vector<std::string> files_of_folder(const std::string& folder, const std::string& split,
                                         const std::vector<std::string>& files) {
  const std::vector<std::string> chosen = paths_of_split(files, split);
  require(!chosen.empty(), "[dataset] {}: no file of split '{}' among {} files ({}, ...)", folder, split,
          files.size(), files[0]);
  check_one_kind(chosen, folder);
  check_all_parts(chosen, folder);
  return absolute(folder, chosen);
}

// The folders of a pattern before its first special character, with the final '/'.
std::string fixed_folder(const std::string& pattern) {
  const size_t slash = pattern.substr(0, pattern.find_first_of("~*?[{\\")).rfind('/');
  return slash == pattern.npos ? "" : pattern.substr(0, slash + 1);
}

std::vector<std::string> files_of_glob(const std::string& pattern, const std::string& split) {
  glob_t found{};
  const int result = glob(pattern.c_str(), GLOB_BRACE | GLOB_TILDE, nullptr, &found);
  const std::unique_ptr<glob_t, decltype(&globfree)> release(&found, globfree);
  require(result == 0 && found.gl_pathc > 0, "[dataset] {}: no file matches it", pattern);
  std::vector<std::string> files;
  for (size_t i = 0; i < found.gl_pathc; ++i) {
    const std::string path = found.gl_pathv[i];
    if (!fs::is_directory(path)) files.push_back(path);
  }
  std::sort(files.begin(), files.end());  // by bytes: glob sorts by the locale
  for (const std::string& path : files) {
    require(file_kind(path).has_value(), "[dataset] {}: not a known kind of dataset file, expected {}", path,
            kFileKinds);
  }
  // A glob already says which files it means; only an explicit split narrows it. Folders that all files share say
  // nothing about the split, whatever their names are.
  if (!split.empty()) {
    const std::string folder = fixed_folder(pattern);
    std::vector<std::string> below;
    for (const std::string& path : files) below.push_back(path.substr(folder.size()));
    files = paths_of_split(below, split);
    for (std::string& path : files) path.insert(0, folder);
  }
  require(!files.empty(), "[dataset] {}: no file{}", pattern,
          split.empty() ? "" : fmt::format(" of the split '{}'", split));
  check_one_kind(files, pattern);
  return files;
}

// Shows the progress of a long download in a few lines.
std::function<bool(const HubProgress&)> progress_lines(const std::string& id) {
  return [id, shown = 0](const HubProgress& progress) mutable {
    const int tenth =
        progress.total_bytes > 0 ? static_cast<int>(progress.done_bytes * 10 / progress.total_bytes) : 10;
    if (tenth > shown) {
      shown = tenth;
      log_info("hub: {}: {} %, {:.1f} of {:.1f} MB", id, tenth * 10,
               static_cast<double>(progress.done_bytes) / 1e6,
               static_cast<double>(progress.total_bytes) / 1e6);
    }
    return true;
  };
}

std::vector<std::string> files_of_hub(const std::string& id, const ExampleOptions& options,
                                      const std::vector<std::string>& globs, const std::string& split,
                                      std::string_view splits) {
  HubRequest request{.kind = HubKind::Dataset, .id = id, .files = globs};
  if (!options.revision.empty()) request.revision = options.revision;
  request.on_progress = progress_lines(id);
  request.choose = [&](const std::vector<std::string>& paths) {
    std::vector<std::string> files = data_files(paths);
    require(!files.empty(), "[dataset {}] none of its {} files is a dataset; expected {}", id, paths.size(),
            kFileKinds);
    if (!options.subset.empty()) {
      const std::vector<std::string> all = std::exchange(files, {});
      for (const std::string& path : all) {
        if (has_word(path, options.subset, "/")) files.push_back(path);
      }
      require(!files.empty(), "[dataset {}] no folder '{}' among its {} files ({}, ...)", id, options.subset,
              all.size(), all[0]);
    }
    const std::vector<std::string> chosen = paths_of_split(files, split);
    require(!chosen.empty(), "[dataset {}] no file of split '{}' among {} files ({}, ...){}", id, split,
            files.size(), files[0], splits.empty() ? "" : fmt::format("; its splits are {}", splits));
    check_one_kind(chosen, id);
    check_all_parts(chosen, id);
    return chosen;
  };
  const HubSnapshot snapshot = hub_fetch(request);
  return absolute(snapshot.folder, snapshot.files);
}

ResolvedDataset resolve_preset(const DatasetPreset& preset, const ExampleOptions& options) {
  ResolvedDataset resolved{{}, options};
  if (options.format == ExampleFormat::Auto && options.text_column.empty()) {
    resolved.options.format = preset.format;
    resolved.options.text_column = preset.text_column;
  }
  if (!options.data_dir.empty()) {
    // The folder may be a copy of the whole repository, or hold only the preset's files.
    std::vector<std::string> files = list_folder(options.data_dir);
    std::vector<std::string> of_preset;
    for (const std::string& path : files) {
      if (matches_any_glob(path, split_list(preset.files))) of_preset.push_back(path);
    }
    if (!of_preset.empty()) files = std::move(of_preset);
    std::string split = options.split;
    if (split.empty() && !paths_of_split(files, std::string(preset.split)).empty()) split = preset.split;
    resolved.files = files_of_folder(options.data_dir, split, files);
    return resolved;
  }
  if (resolved.options.revision.empty()) resolved.options.revision = preset.revision;
  const std::string split(options.split.empty() ? preset.split : options.split);
  resolved.files = files_of_hub(std::string(preset.hub_id), resolved.options, split_list(preset.files), split,
                                preset.splits);
  return resolved;
}

}  // namespace

std::vector<std::string> paths_of_split(const std::vector<std::string>& paths, const std::string& split) {
  // An underscore is first taken as part of a name ("train_1M"), then as a separator ("web_train_000").
  constexpr std::string_view kStrict = "/-. ", kLoose = "/-._ ";
  if (!split.empty()) {
    const std::vector<std::string> names = names_of_split(split);
    std::vector<std::string> found = paths_with_word(paths, names, kStrict);
    return found.empty() ? paths_with_word(paths, names, kLoose) : found;
  }
  const std::vector<std::string> held_out =
      paths_with_word(paths, {"validation", "valid", "val", "dev", "test"}, kLoose);
  if (held_out.empty() || held_out.size() == paths.size()) return paths;
  std::vector<std::string> rest;
  std::set_difference(paths.begin(), paths.end(), held_out.begin(), held_out.end(), std::back_inserter(rest));
  log_info("data: {} of {} files have a validation or test name and are skipped: {}{}", held_out.size(),
           paths.size(), held_out[0], held_out.size() > 1 ? ", ..." : "");
  return rest;
}

void check_all_parts(const std::vector<std::string>& paths, const std::string& place) {
  std::map<std::string, std::set<int64_t>> parts;  // by the name before the number and the number of parts
  for (const std::string& path : paths) {
    const size_t of = path.rfind("-of-");
    if (of == path.npos || of < 5 || path.size() < of + 9) continue;
    const auto part = parse_int(std::string_view(path).substr(of - 5, 5));
    const auto count = parse_int(std::string_view(path).substr(of + 4, 5));
    if (part && count) parts[fmt::format("{}|{}", path.substr(0, of - 5), *count)].insert(*part);
  }
  for (const auto& [key, found] : parts) {
    const size_t bar = key.rfind('|');
    const int64_t count = *parse_int(std::string_view(key).substr(bar + 1));
    for (int64_t i = 0; i < count; ++i) {
      require(found.contains(i),
              "[dataset {}] {}{:05}-of-{:05} is missing, {} of {} parts were found; to read only these, name "
              "them with a glob",
              place, key.substr(0, bar), i, count, found.size(), count);
    }
  }
}

bool is_on_hub(const ExampleOptions& options) {
  const std::string& dataset = options.dataset;
  std::error_code ignored;
  if (fs::exists(dataset, ignored)) return false;
  if (find_dataset_preset(dataset)) return options.data_dir.empty();
  // "data/train.jsonl" could also be a name on the hub.
  return is_hub_id(dataset) && dataset.find('/') != dataset.npos && !file_kind(dataset);
}

ResolvedDataset resolve_dataset(const ExampleOptions& options) {
  const std::string& dataset = options.dataset;
  require(!dataset.empty(),
          "[dataset] empty, expected a file, a folder, a glob, a preset or a hub id org/name");
  std::error_code ignored;
  if (fs::is_directory(dataset, ignored)) {
    return {files_of_folder(dataset, options.split, list_folder(dataset)), options};
  }
  if (fs::exists(dataset, ignored)) {
    require(file_kind(dataset).has_value(), "[dataset] {}: not a known kind of dataset file, expected {}",
            dataset, kFileKinds);
    return {{dataset}, options};
  }
  if (dataset.find_first_of("*?[{") != dataset.npos) return {files_of_glob(dataset, options.split), options};
  if (const DatasetPreset* preset = find_dataset_preset(dataset)) return resolve_preset(*preset, options);
  if (is_on_hub(options)) {
    const DatasetPreset* known = find_dataset_preset_of(dataset);
    std::string split = options.split;
    // Splits of a dataset may hold the same rows: OpenMathInstruct-2 has train and parts of it.
    if (known && split.empty() && options.subset.empty() && !known->split.empty()) {
      split = known->split;
      log_info("data: {} is read from its split {}; dataset_split names another", dataset, split);
    }
    return {files_of_hub(dataset, options, {}, split, known ? known->splits : ""), options};
  }
  std::string names;
  for (const DatasetPreset& preset : dataset_presets()) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", preset.name);
  }
  fail("[dataset] {}: no such file or folder; expected a path, a glob, a hub id org/name, or one of {}",
       printable(dataset), names);
}

}  // namespace octet
