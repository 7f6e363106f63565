#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/data_keys.h"

// What the items of `dataset` stand for.

namespace octet {

constexpr const char* kDemo = "demo";

enum class DataKind {
  Prepared,  // a folder of octet's shards
  Stream,    // the demo, token files or plain text, all of which data/dataset.h opens
  Examples,  // records, to be prepared
};
DataKind kind_of(const DataKeys& keys, const ExampleOptions& examples);
// Whether the keys need documents, which a stream of tokens does not have.
bool asks_for_documents(const DataKeys& keys, const ExampleOptions& examples);

// Whether the data hold text that must become tokens, or tasks do.
bool needs_tokenizer(const DataKeys& keys);

// The items of `dataset` or `eval_dataset` as they are read. A name in the dataset_info.json of dataset_dir stands for what the file says.
// A folder that 'octet prepare' wrote for a list stands for its parts. ConfigError for a name that is unknown, or whose
// data octet cannot train on.
std::vector<DatasetPart> expanded_dataset(const DataKeys& keys);
// Also a ConfigError: the same data twice.
std::vector<DatasetPart> expanded_eval_dataset(const DataKeys& keys);

// Joins items of the same data, however their paths are spelled: their weights add up. Returns how often the list had
// each. ConfigError if their max_samples differ.
std::vector<int64_t> join_same_data(std::vector<DatasetPart>& parts);

// Keys that choose files or records (split, subset, revision, dataset_dir, max_samples), and format and columns of an item
// that is prepared already, which have no effect on the dataset that is given; one message each, with the reason.
std::vector<std::string> idle_choices(const DataKeys& keys);

}  // namespace octet
