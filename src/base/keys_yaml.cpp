#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <optional>
#include <sstream>

#include "base/config_text.h"
#include "base/error.h"
#include "base/keys.h"
#include "base/text.h"

namespace octet {
namespace {

constexpr int kMaxDepth = 16;

// Reads the settings from the parser's events, so that a hostile file is refused before it is built in memory.
class SettingsHandler : public YAML::EventHandler {
 public:
  SettingsHandler(std::string file_name, const std::string& text, std::vector<std::string>& errors)
      : file_name_(std::move(file_name)), errors_(errors) {
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines_.push_back(line);
  }

  std::vector<KeySetting> take() { return std::move(settings_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (documents_++ > 0) fail_config("{} starts a second YAML document; expected one", place(mark));
  }
  void OnDocumentEnd() override {}
  void OnAnchor(const YAML::Mark& mark, const std::string& name) override { refuse_reference(mark, name); }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override { refuse_reference(mark, "*"); }

  void OnNull(const YAML::Mark& mark, YAML::anchor_t) override {
    if (depth_ == 0) return;  // a document of comments alone
    if (depth_ == 1 && !has_key_) {
      fail_config("{} has an empty key; expected 'key: value' lines", place(mark));
    } else if (depth_ == 1) {
      setting_.is_null = true;
      if (!is_written_null(mark)) {
        errors_.push_back(
            fmt::format("{} has no value; write null to keep the default", setting_.describe()));
        refused_ = true;
      }
      finish_setting();
    } else if (depth_ == 2 && setting_.is_list) {
      add_item_value(mark, "");
    } else if (depth_ == 3 && field_) {
      field_->is_null = true;
      if (!is_written_null(mark)) {
        errors_.push_back(fmt::format("{} has no value; write null to keep the default", field_->describe()));
      }
      finish_field();
    }
  }

  void OnScalar(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                const std::string& value) override {
    if (depth_ == 0)
      fail_config("{} holds only '{}'; expected 'key: value' lines", place(mark), printable(value));
    if (depth_ == 1 && !has_key_) {
      setting_ = KeySetting{.name = value, .values = {}, .place = place(mark)};
      has_key_ = true;
    } else if (depth_ == 1) {
      setting_.values = {value};
      finish_setting();
    } else if (depth_ == 2 && setting_.is_list) {
      add_item_value(mark, value);
    } else if (depth_ == 3 && in_item_ && !field_) {
      field_ = KeySetting{.name = value, .values = {}, .place = place(mark)};
    } else if (depth_ == 3 && field_) {
      field_->values = {value};
      finish_field();
    }
  }

  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {
    enter(mark);
    if (depth_ == 1) fail_config("{} holds a list; expected 'key: value' lines", place(mark));
    if (depth_ == 2) setting_.is_list = true;
    if (depth_ == 3) refuse_nested("a list inside a list");
    if (depth_ == 4) refuse_nested("a list inside a map inside a list");
  }
  void OnSequenceEnd() override { leave(); }

  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t,
                  YAML::EmitterStyle::value) override {
    enter(mark);
    if (depth_ == 2) refuse_nested("a nested map");
    if (depth_ == 3 && setting_.is_list) begin_item(mark);
    if (depth_ == 4) refuse_nested("a map inside a list inside a list or map");
  }
  void OnMapEnd() override { leave(); }

 private:
  std::string place(const YAML::Mark& mark) const { return fmt::format("{}:{}", file_name_, mark.line + 1); }

  // The parser also reports null for "key:" and for a last line "key", where the value was forgotten.
  bool is_written_null(const YAML::Mark& mark) const {
    const auto line = static_cast<size_t>(mark.line), column = static_cast<size_t>(mark.column);
    if (line >= lines_.size() || column >= lines_[line].size()) return false;
    const std::string_view rest = std::string_view(lines_[line]).substr(column);
    const std::string_view word = rest.substr(0, rest.find_first_of(" \t\r,}#"));
    return word == "~" || word == "null" || word == "Null" || word == "NULL";
  }

  void enter(const YAML::Mark& mark) {
    if (depth_ == 1 && !has_key_) fail_config("{} has a key that is not a word", place(mark));
    if (++depth_ > kMaxDepth) fail_config("{} is nested deeper than {} levels", place(mark), kMaxDepth);
  }

  void leave() {
    --depth_;
    if (depth_ == 1) finish_setting();
    if (depth_ == 2) in_item_ = false;
    if (depth_ == 2 || depth_ == 3) field_.reset();  // its value was refused
  }

  // A list gets items with its first map. What stood before it are items, too.
  void begin_item(const YAML::Mark& mark) {
    for (std::string& value : std::exchange(setting_.values, {}))
      setting_.items.push_back({setting_.place, {KeySetting{.name = "", .values = {value}, .place = ""}}});
    setting_.items.push_back({place(mark), {}});
    in_item_ = true;
  }

  void add_item_value(const YAML::Mark& mark, const std::string& value) {
    if (setting_.items.empty()) {
      setting_.values.push_back(value);
    } else {
      setting_.items.push_back({place(mark), {KeySetting{.name = "", .values = {value}, .place = ""}}});
    }
  }

  void finish_field() {
    setting_.items.back().fields.push_back(std::move(*field_));
    field_.reset();
  }

  void refuse_nested(std::string_view what) {
    if (!std::exchange(refused_, true)) {
      errors_.push_back(fmt::format("{} is {}; expected one value or a list of values, in a flat file",
                                    setting_.describe(), what));
    }
  }

  void refuse_reference(const YAML::Mark& mark, const std::string& name) {
    fail_config("{} uses a YAML anchor or alias ('{}'), which is not supported; write the value out",
                place(mark), printable(name));
  }

  void finish_setting() {
    if (!std::exchange(refused_, false)) settings_.push_back(std::move(setting_));
    has_key_ = false;
  }

  std::string file_name_;
  std::vector<std::string> lines_;
  std::vector<std::string>& errors_;
  std::vector<KeySetting> settings_;
  KeySetting setting_;  // the one being read, once has_key_
  bool has_key_ = false;
  bool refused_ = false;             // setting_ is already in errors_
  bool in_item_ = false;             // in a map that is an item of the list
  std::optional<KeySetting> field_;  // of the item, once its name is read
  int depth_ = 0;
  int documents_ = 0;
};

}  // namespace

std::vector<KeySetting> parse_settings(const std::string& text, const std::string& file_name,
                                       std::vector<std::string>& errors) {
  if (!is_clean_utf8(text)) fail_config("{} is not UTF-8 text; expected a YAML file", file_name);
  // An end-of-document line of our own: without it yaml-cpp accepts a quote that is never closed.
  const std::string ended = text + (text.empty() || text.ends_with('\n') ? "...\n" : "\n...\n");
  const auto line_count = std::count(ended.begin(), ended.end(), '\n') - 1;
  SettingsHandler handler(file_name, text, errors);
  try {
    std::istringstream stream(ended);
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(handler)) {
    }
  } catch (const YAML::Exception& e) {
    if (e.mark.line >= line_count)
      fail_config("{}: not valid YAML: a quote or bracket is not closed", file_name);
    fail_config("{}:{}: not valid YAML: {}", file_name, e.mark.line + 1, e.msg);
  }
  return handler.take();
}

std::vector<KeySetting> read_settings_file(const std::string& path, std::vector<std::string>& errors) {
  return parse_settings(read_config_text(path, "YAML"), printable(path), errors);
}

}  // namespace octet
