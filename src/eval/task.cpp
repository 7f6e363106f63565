#include "eval/task.h"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <map>

#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"
#include "base/thread_pool.h"
#include "data/datasets/dataset_files.h"
#include "data/records/record_reader.h"
#include "eval/python_text.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kExampleSeed = 1234;  // as in other programs, so that the examples are the same
constexpr const char* kBetweenExamples = "\n\n";

bool is_there(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// A folder of this name may be anything: only one with a dataset file in it counts.
bool holds_dataset(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return file_kind(path).has_value() && is_there(path);
  fs::recursive_directory_iterator entry(path, error);
  for (; !error && entry != fs::recursive_directory_iterator(); entry.increment(error)) {
    if (entry->is_regular_file() && file_kind(entry->path().string())) return true;
  }
  return false;
}

// Files and folders that a user may have: hellaswag.jsonl, data/hellaswag_val.jsonl, data/hellaswag/, ...
std::string find_nearby(const TaskFormat& format) {
  for (const char* folder : {"", "data/"}) {
    for (const char* end : {".jsonl", "_val.jsonl", "_validation.jsonl", "_test.jsonl", ".parquet", ""}) {
      std::string path = fmt::format("{}{}{}", folder, format.name, end);
      if (holds_dataset(path)) return path;
    }
  }
  return "";
}

std::vector<std::string> files_of(const std::string& dataset, const TaskFormat* format, bool examples) {
  ExampleOptions options{.dataset = dataset};
  std::error_code ignored;
  if (format && !format->hub_id.empty()) {
    const std::string split(examples ? format->example_split : format->split);
    if (fs::is_directory(dataset, ignored)) {
      const std::string subset = (fs::path(dataset) / format->subset).string();
      if (!format->subset.empty() && fs::is_directory(subset, ignored)) options.dataset = subset;
      options.split = split;
    } else if (is_on_hub(options)) {
      options.split = split;
      options.subset = format->subset;
    }
  }
  return resolve_dataset(options).files;
}

// A dataset that is not there is wrong input.
std::vector<std::string> given_files(const std::string& dataset, const TaskFormat* format, bool examples) {
  try {
    return files_of(dataset, format, examples);
  } catch (const ConfigError&) {
    throw;
  } catch (const Error& error) {
    fail_config("{}", error.what());
  }
}

struct Found {
  std::string dataset;  // file, folder, glob or hub id
  std::vector<std::string> files;
};

Found find_files(const TaskSource& source) {
  std::string dataset = source.dataset;
  if (dataset.empty()) dataset = find_nearby(*source.format);
  if (!dataset.empty()) return {dataset, given_files(dataset, source.format, false)};
  const TaskFormat& format = *source.format;
  if (format.hub_id.empty())
    fail_config("task {0} has no questions of its own; write {0}=FILE, a JSONL file with {1}", format.name,
                format.columns);
  try {
    const std::string id(format.hub_id);
    return {id, files_of(id, source.format, false)};
  } catch (const Error& error) {
    fail_config(
        "task {0}: its questions ({1} of {2} on the hub) could not be read: {3}\nTo use a file that you have, "
        "write {0}=FILE (JSONL or Parquet with {4}).",
        format.name, format.split, format.hub_id, error.what(), format.columns);
  }
}

struct Questions {
  const TaskFormat* format = nullptr;
  std::vector<TaskQuestion> all;
};

Questions read_questions(const std::vector<std::string>& files, const TaskFormat* format, int64_t most) {
  Questions result{format, {}};
  const auto is_full = [&] { return most > 0 && std::ssize(result.all) >= most; };
  for (const std::string& file : files) {
    const std::unique_ptr<RecordReader> reader = open_records(file);
    Record record;
    try {
      while (!is_full() && reader->next(record)) {
        const std::string place = reader->place();
        if (!result.format) result.format = &guess_task_format(record.value, place);
        result.all.push_back(result.format->read(record.value, place));
      }
    } catch (const ConfigError&) {
      throw;
    } catch (const Error& error) {
      fail_config("{}", error.what());
    }
  }
  if (result.all.empty()) fail_config("[{}] there is no question in it", files.front());
  return result;
}

// A question with its answer, as an example for others.
std::string solved(const TaskQuestion& q) {
  const std::string& choice = q.choices[static_cast<size_t>(q.label)];
  if (!q.choices_first) return q.question + " " + choice + kBetweenExamples;
  return q.continuation.empty() ? choice : choice + " " + q.continuation + kBetweenExamples;
}

// Chooses the examples of a few-shot prompt. The order of the calls matters, because the random ones are drawn in turn.
class ExamplePool {
 public:
  // `with_questions`: the questions that are asked are in the pool, too.
  ExamplePool(std::vector<TaskQuestion> pool, ExampleChoice choice, bool with_questions, int64_t count,
              const std::string& source)
      : pool_(std::move(pool)),
        first_(choice == ExampleChoice::FirstOfSubject),
        not_self_(with_questions || choice == ExampleChoice::RandomNotSelf),
        count_(static_cast<size_t>(count)),
        source_(source),
        random_(kExampleSeed) {
    if (!first_ && pool_.size() < drawn())
      fail_config("num_fewshot is {}, but {} has only {} questions to draw examples from", count, source_,
                  pool_.size());
  }

  std::string examples_for(const TaskQuestion& question) {
    std::string text;
    for (const TaskQuestion* example : choose(question)) text += solved(*example);
    return text;
  }

 private:
  // One more than needed, if the question itself may be among them.
  size_t drawn() const { return not_self_ ? count_ + 1 : count_; }

  std::vector<const TaskQuestion*> choose(const TaskQuestion& question) {
    std::vector<const TaskQuestion*> chosen;
    const auto skips = [&](const TaskQuestion& q) { return not_self_ && q.record == question.record; };
    if (first_) {
      for (const TaskQuestion& q : pool_) {
        if (chosen.size() < count_ && q.group == question.group && !skips(q)) chosen.push_back(&q);
      }
      if (chosen.size() < count_)
        fail_config("[{}: num_fewshot is {}, but {} has only {} other questions of the subject '{}'",
                    question.place, count_, source_, chosen.size(), printable(question.group));
      return chosen;
    }
    for (const size_t i : random_.sample(pool_.size(), drawn())) {
      if (!skips(pool_[i]) && chosen.size() < count_) chosen.push_back(&pool_[i]);
    }
    if (chosen.size() == count_) return chosen;
    // The question occurs several times: draw again, without all of its copies.
    std::vector<const TaskQuestion*> others;
    for (const TaskQuestion& q : pool_) {
      if (!skips(q)) others.push_back(&q);
    }
    if (others.size() < count_)
      fail_config("num_fewshot is {}, but {} has only {} other questions", count_, source_, others.size());
    chosen.clear();
    for (const size_t i : random_.sample(others.size(), count_)) chosen.push_back(others[i]);
    return chosen;
  }

  std::vector<TaskQuestion> pool_;
  bool first_, not_self_;
  size_t count_;
  std::string source_;
  PythonRandom random_;
};

// The part of the dataset that is made for examples; none if it has no such part.
std::vector<std::string> example_files(const std::string& dataset, const TaskFormat& format) {
  if (format.hub_id.empty()) return {};
  if (is_on_hub({.dataset = dataset})) return given_files(dataset, &format, true);
  std::error_code ignored;
  if (!fs::is_directory(dataset, ignored)) return {};
  try {
    return files_of(dataset, &format, true);
  } catch (const Error&) {
    return {};  // a folder with the questions alone
  }
}

ExamplePool make_pool(const TaskFormat& format, const TaskOptions& options, const Found& found) {
  std::vector<std::string> from;
  std::string shown = found.dataset;
  if (!options.example_dataset.empty()) {
    shown = options.example_dataset;
    from = given_files(options.example_dataset, &format, true);
  } else {
    from = example_files(found.dataset, format);
  }
  // Examples that the user names are a set of their own, even if they are in the same file.
  const bool with_questions = options.example_dataset.empty() && (from.empty() || from == found.files);
  if (from.empty()) from = found.files;
  return {read_questions(from, &format, 0).all, format.example_choice, with_questions, options.examples,
          shown};
}

}  // namespace

TaskSource parse_task_source(const std::string& text) {
  const size_t equals = text.find('=');
  if (equals != std::string::npos && !is_there(text)) {
    const TaskFormat& format = find_task_format(text.substr(0, equals));
    const std::string dataset = text.substr(equals + 1);
    if (dataset.empty()) fail_config("task '{}' names no file behind the '='", printable(text));
    return {&format, std::string(format.name), dataset};
  }
  const bool is_path = file_kind(text).has_value() || text.find('/') != std::string::npos;
  if (is_path) return {nullptr, fs::path(text).stem().string(), text};
  const TaskFormat& format = find_task_format(text);
  return {&format, std::string(format.name), ""};
}

Task load_task(const TaskSource& source, const TaskOptions& options) {
  const Found found = find_files(source);
  const std::vector<std::string>& files = found.files;
  Questions questions = read_questions(files, source.format, options.max_samples);
  Task task{.name = source.name,
            .format = questions.format,
            .dataset = files.size() == 1 ? files.front()
                                         : fmt::format("{} files of {}", files.size(), found.dataset),
            .questions = std::move(questions.all),
            .prompts = {},
            .examples = options.examples};
  std::optional<ExamplePool> pool;
  if (options.examples > 0) pool = make_pool(*task.format, options, found);
  for (const TaskQuestion& question : task.questions)
    task.prompts.push_back(question.description + (pool ? pool->examples_for(question) : ""));
  return task;
}

namespace {

// Encodes texts as they stand in front of a model that continues them.
class TextEncoder {
 public:
  explicit TextEncoder(const Tokenizer& tokenizer)
      : tokenizer_(tokenizer), prefix_(tokenizer.bos() ? tokenizer.bos() : tokenizer.eos()) {
    if (prefix_) prefix_text_ = tokenizer.decode(std::span(&*prefix_, 1));
  }

  std::vector<int32_t> encode(const std::string& text) const {
    std::vector<int32_t> ids = tokenizer_.encode(text);
    // A text that begins with the token itself gets no second one.
    const bool begun = !prefix_text_.empty() && text.starts_with(prefix_text_);
    return begun ? ids : tokenizer_.add_special(std::move(ids));
  }

  // The tokens of a continuation are those of the whole text behind those of the context, so a word is never cut where
  // the context ends. Spaces at the end of the context belong to the continuation.
  ScoredText encode(const std::string& context, const std::string& continuation,
                    const std::vector<int32_t>& context_ids) const {
    if (context.empty()) {
      if (!prefix_)
        fail_config("the tokenizer has neither bos nor eos to put in front of a text without context");
      ScoredText text{{*prefix_}, 0};
      const std::vector<int32_t> ids = tokenizer_.encode(continuation);
      const size_t skipped = !ids.empty() && ids[0] == *prefix_ ? 1 : 0;
      text.ids.insert(text.ids.end(), ids.begin() + static_cast<std::ptrdiff_t>(skipped), ids.end());
      text.scored = std::ssize(text.ids) - 1;
      return text;
    }
    ScoredText text{encode(context + continuation), 0};
    text.scored = std::max<int64_t>(0, std::ssize(text.ids) - std::ssize(context_ids));
    // Where the tokens of the whole text are other ones than those of the context.
    const size_t front = std::min(context_ids.size(), text.ids.size());
    std::copy_n(context_ids.begin(), front, text.ids.begin());
    return text;
  }

 private:
  const Tokenizer& tokenizer_;
  std::optional<int32_t> prefix_;
  std::string prefix_text_;
};

void encode_question(const Task& task, size_t index, const TextEncoder& encoder, int64_t max_length,
                     std::span<ScoredText> texts) {
  const TaskQuestion& q = task.questions[index];
  const std::string& prompt = task.prompts[index];
  std::vector<int32_t> context_ids;
  for (size_t i = 0; i < q.choices.size(); ++i) {
    const std::string whole_context = prompt + (q.choices_first ? q.choices[i] : q.question);
    const std::string context(strip_end(whole_context));
    const std::string continuation =
        whole_context.substr(context.size()) + " " + (q.choices_first ? q.continuation : q.choices[i]);
    // A context of nothing but spaces has no tokens of its own; its spaces belong to the continuation.
    if (!context.empty() && (i == 0 || q.choices_first)) context_ids = encoder.encode(context);
    ScoredText& text = texts[i];
    text = encoder.encode(context, continuation, context_ids);
    if (text.scored == 0 || std::ssize(text.ids) < 2)
      fail_config("[{}: choice {} has no token of its own", q.place, i + 1);
    if (text.scored > max_length)
      fail_config("[{}: choice {} has {} tokens, but the model reads at most {}; raise max_seq_length",
                  q.place, i + 1, text.scored, max_length);
    if (const int64_t excess = std::ssize(text.ids) - (max_length + 1); excess > 0)
      text.ids.erase(text.ids.begin(), text.ids.begin() + excess);
  }
}

}  // namespace

std::vector<ScoredText> encode_task(const Task& task, const Tokenizer& tokenizer, int64_t max_length,
                                    int threads) {
  std::vector<size_t> starts = {0};
  for (const TaskQuestion& q : task.questions) starts.push_back(starts.back() + q.choices.size());
  std::vector<ScoredText> texts(starts.back());
  const TextEncoder encoder(tokenizer);
  constexpr size_t kPerPiece = 32;
  const size_t pieces = (task.questions.size() + kPerPiece - 1) / kPerPiece;
  std::vector<std::exception_ptr> errors(pieces);
  ThreadPool pool(threads);
  pool.for_each(static_cast<int64_t>(pieces), [&](int64_t piece, int) {
    const size_t begin = static_cast<size_t>(piece) * kPerPiece;
    try {
      for (size_t i = begin; i < std::min(begin + kPerPiece, task.questions.size()); ++i)
        encode_question(task, i, encoder, max_length,
                        std::span(texts).subspan(starts[i], starts[i + 1] - starts[i]));
    } catch (...) {
      errors[static_cast<size_t>(piece)] = std::current_exception();
    }
  });
  // The first place in the file is named, whichever thread was faster.
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return texts;
}

}  // namespace octet
