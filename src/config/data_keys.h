#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "config/model_keys.h"
#include "data/datasets/dataset_part.h"

namespace octet {

enum class DataOrder { Shuffled, Random, Sequential };
enum class PackingKey { Auto, BestFit, None, Stream };

// What the run reads, and how it becomes tokens. The stage of the data follows that of the model and sees its keys, too.
struct DataKeys : ModelKeys {
  std::vector<DatasetPart> dataset;  // none is resolved to "demo", the built-in stories
  std::vector<DatasetPart> eval_dataset;
  std::string eval_dataset_split;
  std::string dataset_split, dataset_subset, dataset_revision, dataset_dir;
  ExampleFormat dataset_format = ExampleFormat::Auto;
  std::string text_column, prompt_column, completion_column, messages_column;
  ChatTemplate chat_template = ChatTemplate::Auto;
  std::string default_system = "auto";  // the template's own
  std::string train_on = "completion";
  OnError on_error = OnError::Stop;
  int64_t max_samples = 0;  // 0: all
  std::string tokenizer = "bytes";
  // 0 is resolved: 128 in the demo, else 1024; never more than the model's positions.
  int64_t max_seq_length = 0;
  PackingKey packing = PackingKey::Auto;
  DataOrder data_order = DataOrder::Shuffled;  // Random in the demo
  double eval_split = 0.05;
  std::vector<std::string> eval_tasks;  // as parse_task_source takes them
  int64_t shard_tokens = 100'000'000;
  std::string cache_dir;  // "": the usual cache folder
  bool verify = false;    // check prepared data again, although it was checked before

  // No dataset is given, but the demo is not meant: see load_plan_config.
  bool assumes_data = false;

  bool is_demo() const {
    return dataset.empty() ? !assumes_data : dataset.size() == 1 && dataset[0].path == "demo";
  }
};

// The value of a key of this struct as users write it.
std::string config_text(const DataKeys& keys, std::string_view key);
// Whether the user has set a key of this struct to something other than its default.
bool is_changed(const DataKeys& keys, std::string_view key);

}  // namespace octet
