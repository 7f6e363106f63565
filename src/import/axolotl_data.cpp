// Axolotl's datasets, prompt formats and chat templates.

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "base/text.h"
#include "import/axolotl.h"
#include "import/axolotl_messages.h"
#include "import/dataset_list.h"
#include "import/rules.h"

namespace octet {
namespace {

void apply_template(Importer& importer, const TreeLeaf& leaf) {
  const TemplateChoice choice = template_named(leaf.text);
  if (!choice.refusal.empty()) {
    importer.refuse(leaf, choice.refusal);
    return;
  }
  importer.map(leaf, "chat_template", choice.name);
  if (choice.without_system) set_no_system(importer, leaf);
}

// The datasets of one key: datasets, test_datasets or pretraining_dataset.
class DatasetSection {
 public:
  DatasetSection(Importer& importer, std::string_view section) : importer_(importer), section_(section) {}

  std::vector<ImportedDataset> read() {
    std::vector<ImportedDataset> found;
    for (size_t i = 0;; ++i) {
      const std::string prefix = fmt::format("{}.{}", section_, i);
      if (!importer_.tree().has(prefix)) return found;
      if (auto dataset = read_item(prefix)) found.push_back(std::move(*dataset));
    }
  }
  const std::set<std::string>& templates() const { return templates_; }
  bool is_chat() const { return is_chat_; }

 private:
  const TreeLeaf* leaf(const std::string& prefix, std::string_view name) const {
    const TreeLeaf* found = importer_.tree().find(fmt::format("{}.{}", prefix, name));
    return found && found->is_off() ? nullptr : found;
  }
  std::string text(const std::string& prefix, std::string_view name) const {
    const TreeLeaf* found = leaf(prefix, name);
    return found ? found->text : "";
  }

  std::optional<ImportedDataset> read_item(const std::string& prefix);
  bool read_source(const std::string& prefix, ImportedDataset& dataset);
  bool read_type(const std::string& prefix, ImportedDataset& dataset);
  bool read_custom_type(const std::string& prefix, ImportedDataset& dataset);
  void read_messages(const std::string& prefix, ImportedDataset& dataset);
  void take(const std::string& prefix, std::string_view name, std::string_view octet_key) {
    if (const TreeLeaf* found = leaf(prefix, name))
      importer_.derive(*found, fmt::format("becomes {}", octet_key));
  }

  Importer& importer_;
  std::string section_;
  std::set<std::string> templates_;
  bool is_chat_ = false;
};

std::optional<ImportedDataset> DatasetSection::read_item(const std::string& prefix) {
  ImportedDataset dataset;
  if (!read_source(prefix, dataset) || !read_type(prefix, dataset)) return std::nullopt;
  if (const TreeLeaf* split = leaf(prefix, "split")) {
    const std::string missing = apply_split(dataset, split->text);
    if (missing.empty()) {
      importer_.derive(*split, "becomes dataset_split and max_samples");
    } else {
      importer_.warn(*split, missing);
    }
  }
  dataset.subset = text(prefix, "name");
  dataset.revision = text(prefix, "revision");
  take(prefix, "name", "dataset_subset");
  take(prefix, "revision", "dataset_revision");
  return dataset;
}

// path, or path: json with data_files.
bool DatasetSection::read_source(const std::string& prefix, ImportedDataset& dataset) {
  const TreeLeaf* path = leaf(prefix, "path");
  const TreeLeaf* files = leaf(prefix, "data_files");
  if (!path) return false;
  dataset.path = path->text;
  dataset.comment = path->name;
  dataset.place = path->place;
  constexpr std::string_view kLoaders[] = {"json", "csv", "parquet", "text"};
  const bool is_loader = std::ranges::find(kLoaders, path->text) != std::end(kLoaders);
  if (files && files->list().size() > 1) {
    importer_.refuse(*files, "give each file an entry of its own in datasets");
    return false;
  }
  if (files && is_loader) {
    dataset.path = files->list().front();
    importer_.derive(*files, "becomes dataset");
  } else if (files) {
    importer_.warn(*files, "octet reads all files of a hub dataset, or those of a split and a subset");
  } else if (is_loader) {
    importer_.refuse(*path, "names a kind of file, but there are no data_files");
    return false;
  }
  if (text(prefix, "ds_type") == "arrow") {
    importer_.refuse(*leaf(prefix, "ds_type"), "octet reads JSON, CSV, Parquet and text files, not Arrow");
    return false;
  }
  importer_.map(*path, section_ == "test_datasets" ? "eval_dataset" : "dataset", dataset.path);
  return true;
}

bool DatasetSection::read_type(const std::string& prefix, ImportedDataset& dataset) {
  const TreeLeaf* type = leaf(prefix, "type");
  if (!type && importer_.tree().has(prefix + ".type") && !importer_.tree().find(prefix + ".type"))
    return read_custom_type(prefix, dataset);
  if (!type && section_ == "pretraining_dataset") {
    dataset.format = "text";
  } else {
    const PromptType meaning = prompt_type(type ? type->text : "");
    if (!meaning.refusal.empty()) {
      importer_.refuse(type ? *type : *leaf(prefix, "path"), meaning.refusal);
      return false;
    }
    dataset.format = meaning.format;
    dataset.completion_column = meaning.completion_column;
    is_chat_ = is_chat_ || meaning.chat_template == "chat";
    if (!meaning.chat_template.empty()) templates_.insert(meaning.chat_template);
    if (type) importer_.derive(*type, fmt::format("becomes dataset_format {}", dataset.format));
  }
  if (dataset.format == "text") {
    for (const char* name : {"field", "text_column"}) {
      if (const std::string column = text(prefix, name); !column.empty()) dataset.text_column = column;
      take(prefix, name, "text_column");
    }
  } else if (dataset.format == "messages") {
    read_messages(prefix, dataset);
  }
  return true;
}

// type: {field_instruction: q, field_output: a, format: "{instruction}"}
bool DatasetSection::read_custom_type(const std::string& prefix, ImportedDataset& dataset) {
  const auto plain = [](std::string format) {
    std::erase(format, ' ');
    return format.empty() || format == "{instruction}" || format == "{instruction}{input}";
  };
  for (const char* name : {"format", "no_input_format"}) {
    const TreeLeaf* format = leaf(prefix, fmt::format("type.{}", name));
    if (!format || plain(format->text)) continue;
    importer_.refuse(
        *format,
        "octet has no prompts of your own; use chat_template (llama3, chatml), alpaca, or write the whole "
        "prompt into a column");
    return false;
  }
  if (const TreeLeaf* input = leaf(prefix, "type.field_input"); input && leaf(prefix, "type.format")) {
    importer_.refuse(*input, "octet's prompts have one column; write instruction and input into one");
    return false;
  }
  dataset.format = "prompt_completion";
  dataset.prompt_column = text(prefix, "type.field_instruction");
  dataset.completion_column = text(prefix, "type.field_output");
  if (dataset.prompt_column.empty()) dataset.prompt_column = "instruction";
  if (dataset.completion_column.empty()) dataset.completion_column = "output";
  templates_.insert("plain");
  if (const TreeLeaf* system = leaf(prefix, "type.system_prompt"))
    importer_.map(*system, "default_system", system->text);
  return true;
}

void DatasetSection::read_messages(const std::string& prefix, ImportedDataset& dataset) {
  const std::string type = plain_word(text(prefix, "type"));
  const bool is_sharegpt = type.starts_with("sharegpt");
  dataset.messages_column = text(prefix, "field_messages");
  if (is_sharegpt && dataset.messages_column.empty()) dataset.messages_column = "conversations";
  if (dataset.messages_column == "messages") dataset.messages_column.clear();
  take(prefix, "field_messages", "messages_column");
  struct Names {
    std::string_view name, other, what;
  };
  for (const auto& [name, other, what] : {Names{"role", "from", "role"}, {"content", "value", "text"}}) {
    for (const char* keys : {"message_property_mappings.", "message_field_"}) {
      const TreeLeaf* given = leaf(prefix, fmt::format("{}{}", keys, name));
      if (!given) continue;
      if (given->text == name || given->text == other) {
        importer_.derive(*given, fmt::format("octet reads {} or {}", name, other));
      } else {
        importer_.refuse(
            *given, fmt::format("octet reads the {} from '{}' or '{}'; rename the field", what, name, other));
      }
    }
  }
  for (const char* name : {"chat_template", "conversation"}) {
    if (const TreeLeaf* given = leaf(prefix, name)) apply_template(importer_, *given);
  }
}

void inputs_rule(Importer& importer, const TreeLeaf& leaf) {
  const bool has_roles = std::ranges::any_of(importer.tree().leaves, [](const TreeLeaf& other) {
    return other.name.ends_with("roles_to_train") && !other.is_off();
  });
  if (importer.skips_null(leaf)) return;
  if (has_roles) {
    importer.derive(leaf, "roles_to_train decides");
  } else {
    importer.map(leaf, "train_on", leaf.is_off() ? "completion" : "all");
  }
}

void template_rule(Importer& importer, const TreeLeaf& leaf) {
  if (!importer.skips_null(leaf)) apply_template(importer, leaf);
}

constexpr KeyRules kRules[] = {
    {"datasets.*.message_property_mappings.*", property_rule},
    {"datasets.*.roles.*", roles_rule},
    {"datasets.*.roles_to_train roles_to_train", trained_roles_rule},
    {"datasets.*.message_field_training", training_field_rule},
    {"datasets.*.field_tools", tools_field_rule},
    {"datasets.*.field_thinking", thinking_field_rule},
    {"chat_template", template_rule},
    {"train_on_inputs", inputs_rule},
};

}  // namespace

std::span<const KeyRules> axolotl_data_rules() {
  return kRules;
}

void finish_axolotl_data(Importer& importer) {
  const SettingsTree& tree = importer.tree();
  DatasetSection section(importer, "datasets");
  std::vector<ImportedDataset> datasets = section.read();
  DatasetSection pretraining(importer, "pretraining_dataset");
  for (ImportedDataset& dataset : pretraining.read()) datasets.push_back(std::move(dataset));
  if (const TreeLeaf* path = tree.find("pretraining_dataset"); path && !path->is_off()) {
    importer.map(*path, "dataset", path->text);
    datasets.push_back({.path = path->text, .format = "text", .comment = path->name, .place = path->place});
  }
  set_datasets(importer, datasets);
  refuse_different_roles(importer);

  // A dataset of the type alpaca has the Alpaca prompt, whatever chat_template says.
  std::set<std::string> templates = section.templates();
  if (templates.size() > 1) {
    const TreeLeaf* leaf = tree.find("datasets.0.type");
    if (leaf)
      importer.refuse(
          *leaf, "one run of octet has one prompt format, but the datasets have several; use the same type");
  } else if (!templates.empty() && *templates.begin() != "chat") {
    importer.set("chat_template", *templates.begin(), fmt::format("type {}", *templates.begin()));
    if (const TreeLeaf* given = tree.find("chat_template"); given && !given->is_off())
      importer.derive(*given, "not used by datasets of this type");
  }

  DatasetSection tests(importer, "test_datasets");
  const std::vector<ImportedDataset> held_out = tests.read();
  set_eval_datasets(importer, held_out);
  if (held_out.empty() && !importer.is_set("eval_split"))
    importer.set("eval_split", "0", fmt::format("default of {}", importer.tool().name));
  const bool is_pretraining = tree.has("pretraining_dataset") && !importer.is_set("packing");
  if (is_pretraining) importer.set("packing", "stream", "pretraining_dataset: texts are joined");
}

}  // namespace octet
