#include "data/chat/format_columns.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "base/words.h"
#include "data/records/record_reader.h"

namespace octet {
namespace {

constexpr std::array<const char*, 7> kFormatNames = {
    "text", "prompt_completion", "question_answer", "problem_solution", "alpaca", "sharegpt", "messages"};

// Recognised columns, in the order in which they are tried: the most specific first. Alpaca's own files also have a column
// `text`. docs/datasets.md lists the same.
struct KnownColumns {
  ExampleFormat format;
  const char* first;  // messages, prompt or text
  const char* second = "";
};
constexpr KnownColumns kKnown[] = {
    {ExampleFormat::Messages, "messages"},
    {ExampleFormat::ShareGpt, "conversations"},
    {ExampleFormat::ShareGpt, "conversation"},
    {ExampleFormat::PromptCompletion, "prompt", "completion"},
    {ExampleFormat::PromptCompletion, "prompt", "response"},
    {ExampleFormat::PromptCompletion, "prompt", "answer"},
    {ExampleFormat::PromptCompletion, "prompt", "output"},
    {ExampleFormat::QuestionAnswer, "question", "answer"},
    {ExampleFormat::QuestionAnswer, "question", "response"},
    {ExampleFormat::PromptCompletion, "query", "response"},
    {ExampleFormat::PromptCompletion, "query", "answer"},
    {ExampleFormat::ProblemSolution, "problem", "generated_solution"},
    {ExampleFormat::ProblemSolution, "problem", "solution"},
    {ExampleFormat::Alpaca, "instruction", "output"},
    {ExampleFormat::Alpaca, "instruction", "response"},
    {ExampleFormat::PromptCompletion, "input", "output"},
    {ExampleFormat::PromptCompletion, "user", "assistant"},
    {ExampleFormat::Text, "text"},
};

bool has(const std::vector<std::string>& columns, std::string_view name) {
  return std::find(columns.begin(), columns.end(), name) != columns.end();
}

FormatColumns columns_for(const KnownColumns& known, const ExampleOptions& options,
                          const std::vector<std::string>& columns) {
  const auto named = [](const char* own, const std::string& given) {
    return given.empty() ? std::string(own) : given;
  };
  FormatColumns result{.format = known.format};
  switch (known.format) {
    case ExampleFormat::Text:
      result.text = named(known.first, options.text_column);
      result.refuses_media = options.text_column.empty();
      break;
    case ExampleFormat::ShareGpt:
    case ExampleFormat::Messages:
      result.messages = named(known.first, options.messages_column);
      break;
    default:
      result.prompt = named(known.first, options.prompt_column);
      result.completion = named(known.second, options.completion_column);
  }
  if (known.format == ExampleFormat::Alpaca) {
    // Dolly's files call it context.
    result.input = !has(columns, "input") && has(columns, "context") ? "context" : "input";
    result.history = "history";
  }
  return result;
}

std::vector<std::string> required_columns(const FormatColumns& columns) {
  std::vector<std::string> names;
  for (const std::string* name : {&columns.text, &columns.prompt, &columns.completion, &columns.messages}) {
    if (!name->empty()) names.push_back(*name);
  }
  return names;
}

bool fits(const FormatColumns& wanted, const std::vector<std::string>& columns) {
  return std::ranges::all_of(required_columns(wanted),
                             [&](const std::string& name) { return has(columns, name); });
}

ExampleFormat named_format(const ExampleOptions& options) {
  if (options.format != ExampleFormat::Auto) return options.format;
  if (!options.text_column.empty()) return ExampleFormat::Text;
  if (!options.messages_column.empty()) return ExampleFormat::Messages;
  if (!options.prompt_column.empty() && !options.completion_column.empty())
    return ExampleFormat::PromptCompletion;
  return ExampleFormat::Auto;
}

// "messages; conversations; prompt + completion | response | answer; ..."
std::string recognised() {
  std::string text;
  const KnownColumns* before = nullptr;
  for (const KnownColumns& known : kKnown) {
    const bool same_prompt = before && std::string_view(before->first) == known.first;
    if (same_prompt) {
      text += fmt::format(" | {}", known.second);
    } else {
      text += fmt::format("{}{}{}{}", text.empty() ? "" : "; ", known.first, *known.second ? " + " : "",
                          known.second);
    }
    before = &known;
  }
  return text;
}

}  // namespace

const char* name_of(ExampleFormat format) {
  return format == ExampleFormat::Auto ? "auto" : kFormatNames[static_cast<size_t>(format) - 1];
}

std::vector<std::string> example_format_names() {
  std::vector<std::string> names = {name_of(ExampleFormat::Auto)};
  names.insert(names.end(), kFormatNames.begin(), kFormatNames.end());
  return names;
}

ExampleFormat parse_example_format(const std::string& name) {
  if (name == "auto") return ExampleFormat::Auto;
  std::string list = "auto";
  for (size_t i = 0; i < kFormatNames.size(); ++i) {
    if (name == kFormatNames[i]) return static_cast<ExampleFormat>(i + 1);
    list += fmt::format(", {}", kFormatNames[i]);
  }
  fail_config("[dataset] format '{}', expected one of {}", printable(name), list);
}

std::vector<std::string> FormatColumns::all() const {
  std::vector<std::string> names = required_columns(*this);
  if (is_text()) return names;
  for (const std::string* name : {&input, &history}) {
    if (!name->empty()) names.push_back(*name);
  }
  names.insert(names.end(), std::begin(kSystemColumns), std::end(kSystemColumns));
  names.emplace_back(kToolsColumn);
  return names;
}

std::string FormatColumns::describe() const {
  const std::vector<std::string> names = required_columns(*this);
  return fmt::format("column{} {}", names.size() == 1 ? "" : "s", list_columns(names));
}

void check_columns(const FormatColumns& wanted, const std::vector<std::string>& columns,
                   const std::string& place) {
  require(fits(wanted, columns), "[{}: format {} needs the columns {}; the columns are: {}", place,
          name_of(wanted.format), list_columns(required_columns(wanted)), list_columns(columns));
}

bool is_media_name(std::string_view name) {
  constexpr std::string_view kMedia[] = {"image", "images", "img",   "picture", "pixel",  "pixels",
                                         "jpg",   "jpeg",   "png",   "audio",   "audios", "speech",
                                         "mp3",   "wav",    "video", "videos",  "mp4"};
  constexpr std::string_view kAbout[] = {"num", "count", "has", "n"};  // a number about them
  bool is_media = false, is_about = false;
  for (const std::string& word : lower_words(name)) {
    is_media |= std::ranges::find(kMedia, word) != std::end(kMedia);
    is_about |= std::ranges::find(kAbout, word) != std::end(kAbout);
  }
  return is_media && !is_about;
}

void refuse_media_columns(const FormatColumns& wanted, const std::vector<std::string>& columns,
                          const std::string& place) {
  if (!wanted.refuses_media) return;
  for (const std::string& media : columns) {
    require(
        !is_media_name(media),
        "[{}: column {} holds pictures or sound, and octet trains on text alone; remove the column to train on "
        "the text without it",
        place, media);
  }
}

FormatColumns choose_format(const ExampleOptions& options, const std::vector<std::string>& columns,
                            const std::string& place) {
  const ExampleFormat given = named_format(options);
  if (given == ExampleFormat::Auto && has(columns, "chosen") && has(columns, "rejected")) {
    fail_config(
        "[{}: the columns chosen and rejected are preference data (for DPO), which octet does not train on. To "
        "train on the chosen answers, set messages_column: chosen if they are lists of messages, or "
        "prompt_column: {} and completion_column: chosen",
        place, has(columns, "prompt") ? "prompt" : "question");
  }
  std::optional<FormatColumns> first;
  for (const KnownColumns& known : kKnown) {
    if (given != ExampleFormat::Auto && known.format != given) continue;
    FormatColumns result = columns_for(known, options, columns);
    if (fits(result, columns)) return result;
    if (!first) first = std::move(result);
  }
  if (given != ExampleFormat::Auto) check_columns(*first, columns, place);
  for (const auto& [key, name] : {std::pair{"prompt_column", &options.prompt_column},
                                  {"completion_column", &options.completion_column}}) {
    require(name->empty() || has(columns, *name), "[{}: {} is '{}'; the columns are: {}", place, key,
            printable(*name), list_columns(columns));
  }
  fail_config(
      "[{}: the columns match no format: {}. octet recognises: {}. Name other columns with prompt_column and "
      "completion_column, messages_column, or text_column",
      place, list_columns(columns), recognised());
}

}  // namespace octet
