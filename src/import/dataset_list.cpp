#include "import/dataset_list.h"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "base/keys.h"
#include "base/text.h"

namespace octet {
namespace {

using Field = std::pair<std::string_view, std::string>;

// The settings of an item, in the order of its keys; without those that are not given.
std::vector<Field> fields_of(const ImportedDataset& dataset) {
  std::vector<Field> fields = {{"path", dataset.path},
                               {"weight", dataset.weight},
                               {"max_samples", dataset.max_samples},
                               {"split", dataset.split},
                               {"subset", dataset.subset},
                               {"revision", dataset.revision},
                               {"format", dataset.format},
                               {"text_column", dataset.text_column},
                               {"prompt_column", dataset.prompt_column},
                               {"completion_column", dataset.completion_column},
                               {"messages_column", dataset.messages_column}};
  std::erase_if(fields, [](const Field& field) { return field.second.empty(); });
  return fields;
}

std::string block_of(std::span<const ImportedDataset> datasets) {
  std::string block;
  for (const ImportedDataset& dataset : datasets) {
    const char* lead = "  - ";
    for (const auto& [name, value] : fields_of(dataset)) {
      // Anything but a number is quoted, so that it stays one value, which is refused later.
      const bool is_number = (name == "weight" || name == "max_samples") && parse_double(value);
      block += fmt::format("{}{}: {}\n", lead, name, is_number ? value : value_yaml(value));
      lead = "    ";
    }
  }
  return block;
}

void set_list(Importer& importer, std::string_view key, std::span<const ImportedDataset> datasets) {
  std::vector<std::string> paths;
  bool has_details = false;
  for (const ImportedDataset& dataset : datasets) {
    paths.push_back(dataset.path);
    has_details = has_details || fields_of(dataset).size() > 1;
  }
  importer.set({.key = std::string(key),
                .values = paths,
                .is_list = true,
                .block = has_details ? block_of(datasets) : "",
                .comment = datasets.front().comment,
                .place = datasets.front().place});
}

// "5%" or "500"; nothing if it is neither.
std::optional<double> slice_bound(std::string_view text, bool& in_percent) {
  if (text.ends_with('%')) {
    in_percent = true;
    text.remove_suffix(1);
  }
  return parse_double(text);
}

}  // namespace

void set_datasets(Importer& importer, std::span<const ImportedDataset> datasets) {
  if (datasets.empty()) return;
  if (datasets.size() > 1) {
    set_list(importer, "dataset", datasets);
    return;
  }
  const ImportedDataset& only = datasets.front();
  for (const auto& [name, value] : fields_of(only)) {
    std::string key(name);
    if (name == "weight") continue;  // a share of one dataset
    if (name == "path") key = "dataset";
    if (name == "split" || name == "subset" || name == "revision" || name == "format")
      key = fmt::format("dataset_{}", name);
    importer.set(key, value, only.comment, only.place);
  }
}

void set_eval_datasets(Importer& importer, std::span<const ImportedDataset> datasets) {
  if (datasets.empty()) return;
  const ImportedDataset& first = datasets.front();
  const bool is_plain = datasets.size() == 1 && first.max_samples.empty() && first.subset.empty();
  if (!is_plain) {
    set_list(importer, "eval_dataset", datasets);
    return;
  }
  importer.set("eval_dataset", first.path, first.comment, first.place);
  if (!first.split.empty()) importer.set("eval_dataset_split", first.split, first.comment, first.place);
}

std::optional<SplitSlice> parse_split(std::string_view text) {
  SplitSlice slice;
  if (text.find('+') != text.npos) return std::nullopt;
  const size_t open = text.find('[');
  slice.name = text.substr(0, open);
  if (open == text.npos) return slice;
  if (!text.ends_with(']')) return std::nullopt;
  const std::string_view range = text.substr(open + 1, text.size() - open - 2);
  const size_t colon = range.find(':');
  if (colon == range.npos) return std::nullopt;
  const std::string_view first = range.substr(0, colon), last = range.substr(colon + 1);
  if (!first.empty() && !(slice.begin = slice_bound(first, slice.in_percent))) return std::nullopt;
  if (!last.empty() && !(slice.end = slice_bound(last, slice.in_percent))) return std::nullopt;
  return slice;
}

std::string apply_split(ImportedDataset& dataset, std::string_view split) {
  const auto slice = parse_split(split);
  if (!slice) {
    dataset.split = split.substr(0, split.find_first_of("[+"));
    return fmt::format("octet reads one whole split; '{}' is used", dataset.split);
  }
  dataset.split = slice->name;
  if (slice->is_whole() || (slice->in_percent && slice->begin.value_or(0) == 0 && slice->end == 100.0))
    return "";
  if (!slice->in_percent && slice->begin.value_or(0) == 0 && slice->end.value_or(0) >= 1) {
    dataset.max_samples = std::to_string(whole_number(*slice->end));
    return "";
  }
  return fmt::format("octet has no slices of a split; all of '{}' is read (set max_samples to read less)",
                     slice->name);
}

}  // namespace octet
