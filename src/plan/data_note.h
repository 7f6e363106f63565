#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/chat/chat_template.h"
#include "data/shards/manifest.h"

namespace octet {

// What was made of a dataset of records, to be shown at the start of a run.
struct DatasetNote {
  std::string dataset;
  std::string format;             // "prompt_completion (columns prompt, response)"
  std::optional<ChatStyle> chat;  // of conversations
  std::string system;             // their default system message; "": none
  bool is_text = false;           // plain text, trained on as a whole
  std::string loss;               // where it is taken
  std::string skipped;            // "3 bad value"; "": none
  Document first;                 // the first document to train on; empty: not known
};

// From the manifest of the prepared dataset and its shards to train on.
DatasetNote note_of(const std::string& dataset, const DatasetManifest& manifest, std::span<const Shard> train,
                    const Tokenizer& tokenizer);

// "on the assistant's messages (train_on completion)"
std::string loss_text(const std::string& train_on, bool is_text);
// "bytes: ..." with advice, or the name and the number of tokens.
std::string tokenizer_text(const std::string& name, const Tokenizer& tokenizer);
// The lines of the overview: name and value.
std::vector<std::pair<std::string, std::string>> note_lines(const DatasetNote& note);
// The first example, with what is trained told apart, cut to a few lines.
std::string first_example_text(const DatasetNote& note, const Tokenizer& tokenizer, bool color);

}  // namespace octet
