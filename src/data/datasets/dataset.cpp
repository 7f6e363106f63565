#include "data/datasets/dataset.h"

#include <glob.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <tuple>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "data/datasets/demo_stories.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

constexpr const char* kDemo = "demo";

bool is_token_file(const std::string& path) {
  return fs::path(path).extension() == ".bin";
}
bool is_text_file(const std::string& path) {
  return fs::path(path).extension() == ".txt";
}

// "val.bin", "fineweb_val_000000.bin", "my-validation.txt": one word of the name says validation.
bool is_named_as_validation(const std::string& path) {
  constexpr std::array<std::string_view, 3> kWords = {"val", "valid", "validation"};
  const std::string name = fs::path(path).stem().string();
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find_first_of("_-. ", begin), name.size());
    const std::string_view word(name.data() + begin, end - begin);
    if (std::find(kWords.begin(), kWords.end(), word) != kWords.end()) return true;
    begin = end + 1;
  }
  return false;
}

std::vector<std::string> files_of_folder(const std::string& folder) {
  std::vector<std::string> files;
  std::string token_file, text_file;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string path = entry.path().string();
    if (!entry.is_regular_file() || !(is_token_file(path) || is_text_file(path))) continue;
    (is_token_file(path) ? token_file : text_file) = path;
    files.push_back(path);
  }
  require(token_file.empty() || text_file.empty(),
          "[dataset] {}: both token files ({}) and text files ({}), expected one kind; use a glob such as "
          "{}/*.bin",
          folder, token_file, text_file, folder);
  require(!files.empty(), "[dataset] {}: no *.bin or *.txt in this folder", folder);
  std::sort(files.begin(), files.end());
  return files;
}

std::vector<std::string> files_of_glob(const std::string& pattern) {
  glob_t found{};
  const int result = glob(pattern.c_str(), 0, nullptr, &found);
  const std::unique_ptr<glob_t, decltype(&globfree)> release(&found, globfree);
  require(result == 0 && found.gl_pathc > 0, "[dataset] {}: no such file or folder, and no file matches it",
          pattern);
  std::vector<std::string> files(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  std::sort(files.begin(), files.end());  // by bytes: glob sorts by the locale
  return files;
}

TokenSource open_files(const std::vector<std::string>& files, int64_t vocab_size, const Tokenizer* tokenizer,
                       FileChecks& checks, bool skip_bad_text) {
  for (const std::string& file : files) {
    require(is_token_file(file) || is_text_file(file),
            "[dataset] {}: expected *.bin (tokens) or *.txt (text)", file);
    require(is_token_file(file) == is_token_file(files[0]),
            "[dataset] {} is {}, but {} is {}; expected one kind", files[0],
            is_token_file(files[0]) ? "a token file" : "text", file,
            is_token_file(file) ? "a token file" : "text");
  }
  TokenSource source;
  if (is_token_file(files[0])) {
    source = TokenSource::from_token_files(files, vocab_size, checks);
  } else {
    require(tokenizer != nullptr, "[dataset] {} is text, which needs a tokenizer", files[0]);
    source = TokenSource::from_text_files(files, *tokenizer, vocab_size, skip_bad_text);
  }
  require(!source.empty(), "[dataset] {}: no tokens in {} file{}", files[0], files.size(),
          files.size() == 1 ? "" : "s");
  return source;
}

TokenSource demo_tokens(const DatasetOptions& options, DemoSplit split, int64_t vocab_size,
                        const Tokenizer* tokenizer) {
  require(tokenizer != nullptr, "[dataset] '{}' is text, which needs a tokenizer", kDemo);
  require(options.demo_stories > 0, "[dataset] {} demo stories, expected at least 1", options.demo_stories);
  const int64_t count = split == DemoSplit::Train ? options.demo_stories : (options.demo_stories + 9) / 10;
  const std::string text = demo_text(options.seed, count, split);
  std::vector<std::string_view> stories;
  // Without an eos, the newline ends a story.
  const size_t keep = tokenizer->eos() ? 0 : 1;
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end + 1) {
    end = text.find('\n', begin);
    stories.push_back(std::string_view(text).substr(begin, end - begin + keep));
  }
  return TokenSource::from_documents(stories, kDemo, *tokenizer, vocab_size);
}

}  // namespace

std::vector<std::string> stream_files(const std::string& path) {
  require(!path.empty(), "[dataset] empty path, expected a file, a folder, a glob or '{}'", kDemo);
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) return files_of_folder(path);
  if (fs::exists(path, ignored)) return {path};
  return files_of_glob(path);
}

TokenSource open_tokens(const std::string& path, int64_t vocab_size, const Tokenizer* tokenizer,
                        FileChecks& checks, bool skip_bad_text) {
  return open_files(stream_files(path), vocab_size, tokenizer, checks, skip_bad_text);
}

Dataset open_dataset(const DatasetOptions& options, int64_t vocab_size, const Tokenizer* tokenizer,
                     FileChecks& checks) {
  require(options.eval_split >= 0 && options.eval_split < 1,
          "[dataset] eval_split {}, expected 0 <= eval_split < 1", options.eval_split);
  const bool names_eval = !options.eval_dataset.empty();
  Dataset dataset;
  if (options.eval_dataset == kDemo || (options.dataset == kDemo && !names_eval)) {
    dataset.eval = demo_tokens(options, DemoSplit::HeldOut, vocab_size, tokenizer);
  } else if (names_eval) {
    dataset.eval = open_tokens(options.eval_dataset, vocab_size, tokenizer, checks, options.skip_bad_text);
  }
  if (options.dataset == kDemo) {
    dataset.train = demo_tokens(options, DemoSplit::Train, vocab_size, tokenizer);
    return dataset;
  }

  std::vector<std::string> files = stream_files(options.dataset);
  std::error_code ignored;
  if (fs::is_directory(options.dataset, ignored)) {
    const auto validation = std::stable_partition(
        files.begin(), files.end(), [](const auto& file) { return !is_named_as_validation(file); });
    const std::vector<std::string> held_out(validation, files.end());
    if (!held_out.empty() && held_out.size() < files.size()) {
      files.erase(validation, files.end());
      log_info("data: {} of {} files have a validation name and are not used for training: {}{}",
               held_out.size(), held_out.size() + files.size(), held_out[0],
               held_out.size() > 1 ? ", ..." : "");
      if (!names_eval)
        dataset.eval = open_files(held_out, vocab_size, tokenizer, checks, options.skip_bad_text);
    }
  }
  dataset.train = open_files(files, vocab_size, tokenizer, checks, options.skip_bad_text);
  if (dataset.eval.empty())
    std::tie(dataset.train, dataset.eval) = dataset.train.split_tail(options.eval_split);
  return dataset;
}

}  // namespace octet
