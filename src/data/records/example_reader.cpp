#include "data/records/example_reader.h"

#include <filesystem>
#include <numeric>

#include "base/error.h"
#include "base/text.h"
#include "data/chat/chat_template.h"
#include "data/chat/conversation.h"
#include "data/datasets/dataset_files.h"
#include "data/records/record_reader.h"

namespace octet {
namespace {

constexpr std::array<const char*, kSkipReasons> kReasonNames = {
    "empty text", "broken record",         "invalid UTF-8",      "missing column",
    "bad value",  "nothing to learn from", "unsupported content"};

class Reader final : public DatasetReader {
 public:
  Reader(ResolvedDataset dataset, const Tokenizer& tokenizer, std::function<bool()> stop)
      : options_(std::move(dataset.options)),
        stop_(std::move(stop)),
        files_(std::move(dataset.files)),
        tokenizer_(&tokenizer),
        loss_(parse_loss_roles(options_.loss_on)),
        template_(options_.chat_template) {
    std::error_code error;
    for (const std::string& file : files_) {
      const uintmax_t size = std::filesystem::file_size(file, error);
      sizes_.push_back(error ? 0 : static_cast<int64_t>(size));
    }
    total_bytes_ = std::accumulate(sizes_.begin(), sizes_.end(), int64_t{0});
    if (template_ != ChatTemplate::Auto) make_renderer();
    if (options_.add_eos && tokenizer.eos()) eos_ = tokenizer.decode(std::vector<int32_t>{*tokenizer.eos()});
    if (options_.add_bos) bos_ = prefix_tokens(tokenizer);
    open_next_file();
  }

  bool next(Example& example) override {
    while (records_) {
      try {
        if (!records_->next(record_)) {
          done_bytes_ += sizes_[file_ - 1];
          open_next_file();
          continue;
        }
        if (make_example(example)) {
          ++examples_;
          return true;
        }
        ++skipped_.counts[static_cast<size_t>(SkipReason::EmptyText)];
      } catch (const RecordError& error) {
        if (options_.on_error == OnError::Stop) throw;
        ++skipped_.counts[static_cast<size_t>(error.reason())];
        if (skipped_.first_error.empty()) skipped_.first_error = error.what();
      }
    }
    require(examples_ > 0, "[dataset {}] no examples in {} file{} ({}{}); skipped: {}{}", options_.dataset,
            files_.size(), files_.size() == 1 ? "" : "s", files_[0], files_.size() > 1 ? ", ..." : "",
            skipped_.describe(),
            skipped_.first_error.empty() ? "" : fmt::format("; the first: {}", skipped_.first_error));
    return false;
  }

  double progress() const override {
    if (!records_) return 1;
    if (total_bytes_ == 0) return 0;
    return static_cast<double>(done_bytes_ + records_->bytes_read()) / static_cast<double>(total_bytes_);
  }

  const std::vector<std::string>& files() const override { return files_; }
  const SkipCounts& skipped() const override { return skipped_; }
  int64_t examples() const override { return examples_; }
  ExampleFormat format() const override { return columns_ ? columns_->format : options_.format; }
  ChatTemplate chat_template() const override { return template_; }
  std::string columns() const override { return columns_ ? columns_->describe() : std::string(); }

 private:
  void open_next_file() {
    records_.reset();
    if (file_ == files_.size()) return;
    const std::string& path = files_[file_++];
    try {
      const auto choose = [this, &path](const std::vector<std::string>& columns) {
        set_columns(columns, fmt::format("{}]", path));
        check_columns(*columns_, columns, fmt::format("{}]", path));  // later files may have other columns
        refuse_media_columns(*columns_, columns, fmt::format("{}]", path));
        return columns_->all();
      };
      records_ =
          open_records(path, choose, {.ends_at_bad = options_.on_error == OnError::Stop, .stop = stop_});
    } catch (const RecordError& error) {
      fail("{}", error.what());  // concerns the whole file, so no single record can be skipped
    }
  }

  // The first record decides for the whole dataset.
  void set_columns(const std::vector<std::string>& columns, const std::string& place) {
    if (!columns_) columns_ = choose_format(options_, columns, place);
    if (columns_->format == ExampleFormat::Text) {
      if (options_.loss_on != "completion" && options_.loss_on != "all") {
        fail_config(
            "[dataset {}] train_on '{}' names roles, but the dataset is text (column {}), which has no roles",
            options_.dataset, options_.loss_on, printable(columns_->text));
      }
      return;
    }
    if (template_ == ChatTemplate::Auto) template_ = choose_chat_template(*tokenizer_, columns_->format);
    if (!renderer_) make_renderer();
  }

  void make_renderer() {
    renderer_.emplace(ChatStyle{template_, options_.default_system}, *tokenizer_, loss_, options_.add_eos,
                      options_.add_bos);
    template_ = renderer_->chat_template();
  }

  // False for an empty text.
  bool make_example(Example& example) {
    const std::string place = records_->place();
    if (!columns_ || (columns_->format != ExampleFormat::Text && !renderer_)) {
      set_columns(octet::columns_of(record_.value), place);
    }
    example.pieces.clear();
    if (columns_->format == ExampleFormat::Text) return make_text(example, place);
    const Conversation conversation = conversation_of(record_.value, *columns_, place, record_.json_text);
    try {
      example = renderer_->render(conversation);
    } catch (const Error& error) {
      fail_record(SkipReason::Unsupported, "[{}: {}", place, error.what());
    }
    for (const ExamplePiece& piece : example.pieces) {
      if (piece.is_target) return true;
    }
    fail_record(SkipReason::NoTarget, "[{}: no message has a role that train_on names ({})", place,
                options_.loss_on);
  }

  bool make_text(Example& example, const std::string& place) {
    std::string text = text_of(record_.value, *columns_, place);
    if (text.empty() && record_.is_begin) return false;
    if (record_.is_begin) {
      for (const std::string& token : bos_) example.pieces.push_back({token, true, false});
    }
    if (!text.empty()) example.pieces.push_back({std::move(text), false, true});
    if (record_.is_end && !eos_.empty()) example.pieces.push_back({eos_, true, true});
    return true;
  }

  ExampleOptions options_;
  std::function<bool()> stop_;
  std::vector<std::string> files_;
  std::vector<int64_t> sizes_;
  const Tokenizer* tokenizer_;
  LossRoles loss_;
  ChatTemplate template_;
  std::vector<std::string> bos_;
  std::string eos_;
  std::optional<FormatColumns> columns_;
  std::optional<ChatRenderer> renderer_;
  std::unique_ptr<RecordReader> records_;
  Record record_;
  size_t file_ = 0;  // the next to open
  int64_t total_bytes_ = 0, done_bytes_ = 0, examples_ = 0;
  SkipCounts skipped_;
};

}  // namespace

const char* name_of(SkipReason reason) {
  return kReasonNames[static_cast<size_t>(reason)];
}

OnError parse_on_error(const std::string& name) {
  if (name == "stop") return OnError::Stop;
  if (name == "skip") return OnError::Skip;
  fail_config("[dataset] on_error '{}', expected stop or skip", printable(name));
}

int64_t SkipCounts::total() const {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

std::string SkipCounts::describe() const {
  std::string text;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (counts[i] > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", counts[i], kReasonNames[i]);
  }
  return text.empty() ? "none" : text;
}

std::unique_ptr<DatasetReader> open_examples(const ExampleOptions& options, const Tokenizer& tokenizer) {
  return open_examples(options, tokenizer, {});
}

std::unique_ptr<DatasetReader> open_examples(const ExampleOptions& options, const Tokenizer& tokenizer,
                                             std::function<bool()> stop) {
  return std::make_unique<Reader>(resolve_dataset(options), tokenizer, std::move(stop));
}

Document encode_example(const Example& example, const Tokenizer& tokenizer) {
  Document document;
  const auto append = [&](std::span<const int32_t> ids, bool is_target) {
    document.tokens.insert(document.tokens.end(), ids.begin(), ids.end());
    document.is_target.insert(document.is_target.end(), ids.size(), is_target ? 1 : 0);
  };
  const std::vector<ExamplePiece>& pieces = example.pieces;
  // The tokens that begin every text of the model are not part of the text.
  const std::vector<int32_t> around = tokenizer.add_special({});
  Before before = Before::Nothing;
  for (size_t i = 0; i < pieces.size();) {
    const bool is_target = pieces[i].is_target;
    if (pieces[i].is_special) {
      const std::optional<int32_t> id = tokenizer.find_token(pieces[i].text);
      require(id.has_value(), "[tokenizer] no token {}, which the example needs", printable(pieces[i].text));
      append(std::span(&*id, 1), is_target);
      const bool begins_text = i < around.size() && around[i] == *id && before == Before::Nothing;
      if (!begins_text) before = Before::Token;
      ++i;
      continue;
    }
    size_t end = i + 1;
    while (end < pieces.size() && !pieces[end].is_special && pieces[end].is_target == is_target) ++end;
    if (end == i + 1) {
      append(tokenizer.encode_after(before, pieces[i].text), is_target);
    } else {
      std::string text;
      for (size_t k = i; k < end; ++k) text += pieces[k].text;
      append(tokenizer.encode_after(before, text), is_target);
    }
    before = Before::Text;
    i = end;
  }
  return document;
}

}  // namespace octet
