#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/records/example.h"
#include "data/tokenizer/tokenizer.h"

namespace octet {

// The meaning of a record's columns. docs/datasets.md lists the columns per format.
enum class ExampleFormat {
  Auto,              // decided by the columns of the first record
  Text,              // `text`, or the column named
  PromptCompletion,  // `prompt`, `completion`: texts, or lists of messages
  QuestionAnswer,    // `question`, `answer`
  ProblemSolution,   // `problem`, `generated_solution` (OpenMathInstruct-2)
  Alpaca,            // `instruction`, `output`, and optionally `input`
  ShareGpt,          // `conversations`: a list of {from, value}
  Messages,          // `messages`: a list of {role, content}
};

// How a conversation becomes text and special tokens.
enum class ChatTemplate {
  Auto,     // by the tokenizer's special tokens; without them Alpaca for that format and Plain for others
  Llama3,   // Llama 3
  Llama31,  // Llama 3.1 and 3.2: like Llama3, with a system message that always gives two dates
  Chatml,   // Qwen2.5
  Qwen3,    // like Chatml, with the reasoning in front of the last answer
  Llama2,
  Mistral,          // one of the three that follow, by the tokenizer
  MistralV1,        // Mistral 7B Instruct v0.1 and v0.2: [INST] is text
  MistralV3,        // v0.3: [INST] is a token
  MistralV3Tekken,  // Mistral Nemo: the same without spaces
  Alpaca,
  Plain,  // the contents one after another
};

enum class OnError { Stop, Skip };

// The names are those of the configuration: "auto", "text", "prompt_completion", "question_answer",
// "problem_solution", "alpaca", "sharegpt", "messages"; "auto", "llama3", "llama3.1", "chatml", "qwen3", "llama2",
// "mistral", "mistral_v1", "mistral_v3", "mistral_v3_tekken", "alpaca", "plain"; "stop", "skip". An unknown name is a
// ConfigError that lists them.
ExampleFormat parse_example_format(const std::string& name);
std::vector<std::string> example_format_names();  // in the order of the enum
ChatTemplate parse_chat_template(const std::string& name);
OnError parse_on_error(const std::string& name);
const char* name_of(ExampleFormat format);
const char* name_of(ChatTemplate chat_template);
std::vector<std::string> chat_template_names();  // in the order of the enum

struct ExampleOptions {
  // A file, a folder, a glob, a preset's name (data/dataset_presets.h) or a hub id "org/name". A path that exists
  // comes first.
  std::string dataset;
  // Files of this split only ("train", "test", "train_1M"), by their names. Empty: the preset's own split, or all
  // files except those with a validation or test name, unless all have one.
  std::string split = {};
  std::string subset = {};       // hub ids: the configuration, a folder of the repository ("main")
  std::string revision = {};     // hub ids: branch, tag or commit; empty: main
  std::string data_dir = {};     // presets: the folder with the files, instead of the cache and a download
  std::string text_column = {};  // the column with the text; implies the format text
  // Columns with other names than the format's own. Without a format they also decide which it is.
  std::string prompt_column = {}, completion_column = {}, messages_column = {};
  ExampleFormat format = ExampleFormat::Auto;
  ChatTemplate chat_template = ChatTemplate::Auto;
  // The key train_on. "completion": what the assistant says; "all": everything; or roles: "user,assistant". Plain
  // text has no roles: the loss is taken on all of it.
  std::string loss_on = "completion";
  // System message of conversations without one. "": none; not set: the template's own.
  std::optional<std::string> default_system = std::nullopt;
  // For text, Alpaca and Plain: whether to add what the tokenizer puts before a text (Llama 3: <|begin_of_text|>),
  // and its eos after the text or the answer.
  bool add_bos = true, add_eos = true;
  OnError on_error = OnError::Stop;  // Skip: bad records are counted and skipped
};

// Why a record was skipped. Empty texts are always skipped, whatever `on_error` says.
enum class SkipReason {
  EmptyText,
  BrokenRecord,
  InvalidUtf8,
  MissingColumn,
  BadValue,
  NoTarget,
  Unsupported
};
constexpr size_t kSkipReasons = 7;
const char* name_of(SkipReason reason);  // "empty text", ...

struct SkipCounts {
  std::array<int64_t, kSkipReasons> counts{};
  std::string first_error;  // the message of the first record skipped by OnError::Skip
  int64_t of(SkipReason reason) const { return counts[static_cast<size_t>(reason)]; }
  int64_t total() const;
  std::string describe() const;  // "3 empty text, 1 invalid UTF-8"; "none"
};

class DatasetReader : public ExampleReader {
 public:
  virtual const std::vector<std::string>& files() const = 0;  // in the order in which they are read
  virtual const SkipCounts& skipped() const = 0;
  virtual int64_t examples() const = 0;  // given so far
  // The format that Auto was resolved to: known once next() has given an example.
  virtual ExampleFormat format() const = 0;
  virtual ChatTemplate chat_template() const = 0;
  virtual std::string columns() const { return {}; }  // "columns prompt, response"
};

// Increases with every code change that gives other tokens or targets for the same files, so that a dataset prepared
// before the change is not reused. 2: bos in front of alpaca and plain conversations. 3: tool calls, flags of messages,
// more columns.
constexpr int kReaderVersion = 3;

// Resolves the dataset (downloads it if needed) and opens its first file. The tokenizer must outlive the reader; it
// decides the chat template, bos and eos. If the dataset has no example, the next() that reaches the end throws
// Error.
std::unique_ptr<DatasetReader> open_examples(const ExampleOptions& options, const Tokenizer& tokenizer);

// Neighbouring pieces of text with the same is_target are encoded as one text, so without a mask the ids are those of
// the whole text. Where the mask changes, the text is cut, as when a model answers a prompt. A special piece is one
// token; throws Error when the tokenizer has no token of that name. Thread-safe.
Document encode_example(const Example& example, const Tokenizer& tokenizer);

}  // namespace octet
