#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/keys.h"
#include "data/records/example_reader.h"

namespace octet {

// One item of the key `dataset`: the data of a run is a list of them. What is empty, 0 or Auto comes from the key of the
// run with the same meaning (split: dataset_split).
struct DatasetPart {
  std::string path = {};  // what ExampleOptions::dataset takes, or demo, token files or a prepared folder
  double weight = 0;  // share of the sequences, relative to the weights of the other items; 0: none is given
  int64_t max_samples = 0;
  std::string split = {}, subset = {}, revision = {}, dataset_dir = {};
  ExampleFormat format = ExampleFormat::Auto;
  std::string text_column = {}, prompt_column = {}, completion_column = {}, messages_column = {};
  bool operator==(const DatasetPart&) const = default;
};

// The keys of an item.
const KeyTable<DatasetPart>& dataset_part_keys();

// Checks a list that the key `key` gives: either all items have weights or none.
void check_dataset_parts(std::span<const DatasetPart> parts, const std::string& key,
                         std::vector<std::string>& errors);

// A short name for each: "chats" for data/chats.jsonl.gz and for org/chats. Parts that would have the same name get their
// split, their whole path, or a number.
std::vector<std::string> part_names(std::span<const DatasetPart> parts);

// "a.jsonl", "a.jsonl and b.parquet", "a.jsonl and 3 more": for messages.
std::string names_text(std::span<const DatasetPart> parts);

}  // namespace octet
