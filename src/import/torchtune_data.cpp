// torchtune's datasets: a Python function with its arguments.

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "base/text.h"
#include "import/dataset_list.h"
#include "import/rules.h"
#include "import/torchtune.h"

namespace octet {
namespace {

struct Builder {
  std::string_view name, source, format;
  std::string_view first_column, second_column, subset;  // of the text or the prompt; of the answer
  bool trains_on_prompt = false;
};
constexpr Builder kBuilders[] = {
    {"alpaca_dataset", "tatsu-lab/alpaca", "alpaca", "", "", "", true},
    {"alpaca_cleaned_dataset", "yahma/alpaca-cleaned", "alpaca", "", "", "", true},
    {"instruct_dataset", "", "prompt_completion", "input", "output", ""},
    {"grammar_dataset", "liweili/c4_200m", "prompt_completion", "input", "output", ""},
    {"samsum_dataset", "Samsung/samsum", "prompt_completion", "dialogue", "summary", ""},
    {"chat_dataset", "", "messages", "", "", ""},
    {"slimorca_dataset", "Open-Orca/SlimOrca-Dedup", "messages", "conversations", "", ""},
    {"text_completion_dataset", "", "text", "", "", ""},
    {"wikitext_dataset", "EleutherAI/wikitext_document_level", "text", "page", "", "wikitext-103-v1"},
    {"cnn_dailymail_articles_dataset", "ccdv/cnn_dailymail", "text", "article", "", "3.0.0"},
};

class DatasetReader {
 public:
  explicit DatasetReader(Importer& importer) : importer_(importer) {}

  // The dataset whose keys begin with `prefix`; nothing if it was refused.
  std::optional<ImportedDataset> read(const std::string& prefix);
  bool trains_on_prompt() const { return trains_on_prompt_; }
  bool has_alpaca() const { return has_alpaca_; }

 private:
  const TreeLeaf* leaf(std::string_view name) const {
    const TreeLeaf* found = importer_.tree().find(fmt::format("{}.{}", prefix_, name));
    return found && found->is_null() ? nullptr : found;
  }
  std::string text(std::string_view name, std::string_view otherwise = "") const {
    const TreeLeaf* found = leaf(name);
    return found ? found->text : std::string(otherwise);
  }
  bool read_source(const Builder& builder, ImportedDataset& dataset);
  void read_columns(const Builder& builder, ImportedDataset& dataset);
  void read_split(ImportedDataset& dataset);

  Importer& importer_;
  std::string prefix_;
  bool trains_on_prompt_ = false, has_alpaca_ = false;
};

std::optional<ImportedDataset> DatasetReader::read(const std::string& prefix) {
  prefix_ = prefix;
  const TreeLeaf* component = leaf("_component_");
  if (!component) return std::nullopt;
  const std::string name = component_name(component->text);
  const auto builder = std::ranges::find(kBuilders, name, &Builder::name);
  if (builder == std::end(kBuilders)) {
    const bool is_multimodal = component->text.find("multimodal") != component->text.npos;
    const bool is_preference = name.find("preference") != name.npos || name.find("rlhf") != name.npos ||
                               name.find("paired") != name.npos;
    importer_.refuse(*component, is_multimodal ? "octet trains text models only"
                                 : is_preference
                                     ? "a dataset of preferences; octet trains on next tokens"
                                     : fmt::format("octet does not know '{}' and runs no Python; name the "
                                                   "data with dataset",
                                                   printable(component->text)));
    return std::nullopt;
  }
  ImportedDataset dataset;
  if (!read_source(*builder, dataset)) return std::nullopt;
  dataset.format = builder->format;
  read_columns(*builder, dataset);
  read_split(dataset);
  dataset.subset = text("subset", text("name", builder->subset));
  dataset.comment = component->name;
  dataset.place = component->place;
  importer_.map(*component, "dataset", dataset.path);
  const TreeLeaf* inputs = leaf("train_on_input");
  const std::string masking = text("masking_strategy");
  if (!masking.empty() ? masking == "train_on_all"
      : inputs         ? inputs->flag() == true
                       : builder->trains_on_prompt)
    trains_on_prompt_ = true;
  has_alpaca_ = has_alpaca_ || builder->format == "alpaca";
  return dataset;
}

// A hub id, or source: json with data_files.
bool DatasetReader::read_source(const Builder& builder, ImportedDataset& dataset) {
  dataset.path = text("source", builder.source);
  const TreeLeaf* files = leaf("data_files");
  constexpr std::string_view kLoaders[] = {"json", "csv", "parquet", "text"};
  const bool is_loader = std::ranges::find(kLoaders, dataset.path) != std::end(kLoaders);
  if (files && files->list().size() > 1) {
    importer_.refuse(*files, "give each file a dataset of its own");
    return false;
  }
  if (files && is_loader) {
    dataset.path = files->list().front();
  } else if (files) {
    importer_.warn(*files, "octet reads all files of a hub dataset, or those of a split and a subset");
  } else if (is_loader || dataset.path.empty()) {
    importer_.refuse(*leaf("_component_"), "it says neither source nor data_files");
    return false;
  }
  return true;
}

void DatasetReader::read_columns(const Builder& builder, ImportedDataset& dataset) {
  if (dataset.format == "text") {
    dataset.text_column = text("column", builder.first_column);
    if (dataset.text_column == "text") dataset.text_column.clear();
  } else if (dataset.format == "messages") {
    dataset.messages_column =
        text("conversation_column", text("column_map.conversations", builder.first_column));
    const TreeLeaf* style = leaf("conversation_style");
    if (style && style->text != "sharegpt" && style->text != "openai")
      importer_.refuse(*style, "octet reads the styles sharegpt and openai");
  } else if (dataset.format == "prompt_completion") {
    dataset.prompt_column = text("column_map.input", builder.first_column);
    dataset.completion_column = text("column_map.output", builder.second_column);
  } else if (importer_.tree().has(prefix_ + ".column_map")) {
    for (const char* name : {"instruction", "input", "output"}) {
      const TreeLeaf* column = leaf(fmt::format("column_map.{}", name));
      if (column && column->text != name)
        importer_.refuse(*column, "octet reads Alpaca's columns by their names; rename them in the data");
    }
  }
}

void DatasetReader::read_split(ImportedDataset& dataset) {
  const TreeLeaf* split = leaf("split");
  if (!split) {
    dataset.split = "train";
    return;
  }
  const auto slice = parse_split(split->text);
  // train[:95%], of which the rest is the data to evaluate on.
  if (slice && slice->in_percent && slice->begin.value_or(0) == 0 && slice->end.value_or(100) >= 50 &&
      slice->end.value_or(100) < 100) {
    dataset.split = slice->name;
    if (prefix_ == "dataset") {
      importer_.set("eval_split", fmt::format("{:g}", (100 - *slice->end) / 100), split->name, split->place);
      importer_.derive(*split, "becomes dataset_split, and the rest is held out by eval_split");
      return;
    }
  }
  const std::string missing = apply_split(dataset, split->text);
  if (missing.empty()) {
    importer_.derive(*split, "becomes dataset_split and max_samples");
  } else {
    importer_.warn(*split, missing);
  }
}

bool validates(const SettingsTree& tree) {
  return tree.is_on("run_val_every_n_steps");
}

void finish_validation(Importer& importer, const std::vector<ImportedDataset>& datasets) {
  const SettingsTree& tree = importer.tree();
  const TreeLeaf* component = tree.find("dataset_val._component_");
  const TreeLeaf* split = tree.find("dataset_val.split");
  if (component && !component->is_null()) {
    const auto slice = split && !split->is_null() ? parse_split(split->text) : std::nullopt;
    const bool is_rest = slice && slice->begin && !slice->end && importer.is_set("eval_split");
    if (is_rest) {
      importer.derive(*component, "eval_split holds this data out");
      importer.derive(*split, "eval_split holds this data out");
    } else if (!validates(tree)) {
      importer.ignore(*component, "run_val_every_n_steps is null: nothing is evaluated");
      if (split) importer.ignore(*split, "run_val_every_n_steps is null: nothing is evaluated");
    } else {
      DatasetReader reader(importer);
      if (auto held_out = reader.read("dataset_val")) {
        set_datasets(importer, datasets);  // reading set dataset
        importer.derive(*component, "becomes eval_dataset");
        set_eval_datasets(importer, std::span(&*held_out, 1));
      }
    }
  }
  if (!validates(tree)) importer.set("eval_steps", "0", "run_val_every_n_steps is null: only at the end");
  if (!importer.is_set("eval_split") && !importer.is_set("eval_dataset"))
    importer.set("eval_split", "0", "no dataset_val");
}

void packing_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.name.starts_with("dataset_val")) {
    importer.ignore(leaf, "evaluation packs like training");
  } else {
    importer.map(leaf, "packing", leaf.is_off() ? "none" : "best_fit");
  }
}

void system_rule(Importer& importer, const TreeLeaf& leaf) {
  if (leaf.is_off()) {
    importer.ignore(leaf, "off");
  } else {
    importer.map(leaf, "default_system", leaf.text, "for conversations without a system message");
  }
}

void data_length_rule(Importer& importer, const TreeLeaf& leaf) {
  if (importer.tree().is_on("tokenizer.max_seq_len")) {
    importer.ignore(leaf, "tokenizer.max_seq_len decides");
  } else if (leaf.is_null()) {
    importer.ignore(leaf, "null: the default");
  } else if (leaf.name.starts_with("dataset_val")) {
    importer.ignore(leaf, "evaluation has the length of training");
  } else {
    importer.map(leaf, "max_seq_length", leaf.text);
  }
}

constexpr std::string_view kPart = "used with the dataset";
// The arguments of a dataset; the names follow "dataset.".
constexpr ToolKey kArguments[] = {
    {"_component_", Fate::Derived, "dataset", kPart},
    {"source", Fate::Derived, "dataset", kPart},
    {"data_files", Fate::Derived, "dataset", kPart},
    {"data_dir", Fate::Warned, "", "octet reads the whole repository, or a subset of it"},
    {"split", Fate::Derived, "dataset_split", kPart},
    {"subset", Fate::Derived, "dataset_subset", kPart},
    {"name", Fate::Derived, "dataset_subset", kPart},
    {"column", Fate::Derived, "text_column", kPart},
    {"column_map.*", Fate::Derived, "prompt_column", kPart},
    {"conversation_column", Fate::Derived, "messages_column", kPart},
    {"conversation_style", Fate::Derived, "", "octet sees the style by itself"},
    {"train_on_input", Fate::Derived, "train_on", kPart},
    {"masking_strategy", Fate::Derived, "train_on", kPart},
    {"new_system_prompt", Fate::Mapped, "default_system", "", system_rule},
    {"packed", Fate::Mapped, "packing", "", packing_rule},
    {"split_across_pack", Fate::Ignored, "", "octet keeps documents whole where it can"},
    {"add_eos", Fate::Ignored, "", "octet ends every document with eos"},
    {"max_seq_len", Fate::Mapped, "max_seq_length", "", data_length_rule},
    {"trust_remote_code", Fate::Ignored, "", "octet never runs code from a dataset"},
    {"streaming", Fate::Ignored, "", "octet streams files and keeps the tokens on disk"},
    {"filter_fn", Fate::Refused, "", "names a Python function; filter the data before training"},
    {"image_tag", Fate::Refused, "", "octet trains text models only"},
    {"image_dir", Fate::Refused, "", "octet trains text models only"},
};

// The rows of one dataset, of each of a list, and of the one to evaluate on.
struct DatasetRows {
  std::deque<std::string> names;  // the rows point to them
  std::vector<ToolKey> keys;

  DatasetRows() {
    for (const char* prefix : {"dataset", "dataset.*", "dataset_val"}) {
      for (ToolKey key : kArguments) {
        key.name = names.emplace_back(fmt::format("{}.{}", prefix, key.name));
        keys.push_back(key);
      }
    }
  }
};

}  // namespace

std::span<const ToolKey> torchtune_data_keys() {
  static const DatasetRows rows;
  return rows.keys;
}

void finish_torchtune_data(Importer& importer) {
  const SettingsTree& tree = importer.tree();
  DatasetReader reader(importer);
  std::vector<ImportedDataset> datasets;
  if (tree.find("dataset._component_")) {
    if (auto dataset = reader.read("dataset")) datasets.push_back(std::move(*dataset));
  } else {
    for (size_t i = 0; tree.has(fmt::format("dataset.{}", i)); ++i) {
      if (auto dataset = reader.read(fmt::format("dataset.{}", i))) datasets.push_back(std::move(*dataset));
    }
  }
  set_datasets(importer, datasets);
  finish_validation(importer, datasets);
  importer.set("train_on", reader.trains_on_prompt() ? "all" : "completion",
               reader.has_alpaca() ? "alpaca_dataset trains on the prompt unless train_on_input is false"
                                   : "train_on_input");
  const auto alpaca = std::ranges::find(datasets, "alpaca", &ImportedDataset::format);
  if (alpaca != datasets.end()) {
    importer.find(
        {.name = "torchtune-alpaca-text",
         .where = fmt::format("{} in {}", alpaca->comment, alpaca->place),
         .there =
             "the Alpaca text ('Below is an instruction...') is written into the prompt, and the markers "
             "of the model around it",
         .here = "writes the markers only; chat_template alpaca writes the text instead of them",
         .is_note = true});
  }
}

}  // namespace octet
