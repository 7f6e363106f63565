#include "base/yaml.h"

#include <fmt/format.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace octet {
namespace {

constexpr int64_t kMaxValues = 50'000;  // aliases of aliases grow without end

// Builds the tree from the parser's events, so that a hostile file is refused before it is built in memory.
class TreeHandler : public YAML::EventHandler {
 public:
  TreeHandler(const std::string& text, std::string file_name, const YamlRules& rules)
      : file_name_(std::move(file_name)), rules_(rules) {
    std::istringstream stream(text);
    for (std::string line; std::getline(stream, line);) lines_.push_back(line);
  }

  YamlNode take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (documents_++ > 0) fail_config("{} starts a second YAML document; expected one", place(mark.line + 1));
  }
  void OnDocumentEnd() override {}
  void OnAnchor(const YAML::Mark& mark, const std::string& name) override {
    if (!rules_.has_anchors) refuse_reference(mark, name);
  }
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    add(node_at(mark, YamlNode::Kind::Null, written_null(mark)), anchor);
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    if (!rules_.has_anchors) refuse_reference(mark, "*");
    const auto found = anchors_.find(anchor);
    if (found == anchors_.end())
      fail_config("{} refers to an anchor that holds itself", place(mark.line + 1));
    YamlNode node = found->second;
    node.line = mark.line + 1;
    count(node);
    add(std::move(node), 0);
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    YamlNode node = node_at(mark, YamlNode::Kind::Scalar, value);
    node.is_quoted = tag == "!";
    add(std::move(node), anchor);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(YamlNode::Kind::List, mark, anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(YamlNode::Kind::Map, mark, anchor);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Open {
    YamlNode node;
    YAML::anchor_t anchor;
    bool has_key = false;
    std::string key = {};
    int key_line = 0;
  };

  static YamlNode node_at(const YAML::Mark& mark, YamlNode::Kind kind, std::string text = "") {
    return {.kind = kind, .text = std::move(text), .line = mark.line + 1, .children = {}};
  }
  std::string place(int line) const { return fmt::format("{}:{}", file_name_, line); }

  [[noreturn]] void refuse_reference(const YAML::Mark& mark, const std::string& name) const {
    fail_config("{} uses a YAML anchor or alias ('{}'), which is not supported; write the value out",
                place(mark.line + 1), printable(name));
  }

  // The parser also reports null for "key:" and for a last line "key", where the value was forgotten.
  std::string written_null(const YAML::Mark& mark) const {
    const auto line = static_cast<size_t>(mark.line), column = static_cast<size_t>(mark.column);
    if (line >= lines_.size() || column >= lines_[line].size()) return "";
    const std::string rest = lines_[line].substr(column);
    const std::string word = rest.substr(0, rest.find_first_of(" \t\r,}#"));
    return word == "~" || word == "null" || word == "Null" || word == "NULL" ? word : "";
  }

  void count(const YamlNode& node) {
    if (++values_ > kMaxValues) fail_config("{} has more than {} values", file_name_, kMaxValues);
    for (const auto& [name, child] : node.children) count(child);
  }

  void open(YamlNode::Kind kind, const YAML::Mark& mark, YAML::anchor_t anchor) {
    if (!open_.empty() && open_.back().node.kind == YamlNode::Kind::Map && !open_.back().has_key)
      fail_config("{} has a key that is not a word", place(mark.line + 1));
    if (std::cmp_greater_equal(open_.size(), rules_.max_depth))
      fail_config("{} is nested deeper than {} levels", place(mark.line + 1), rules_.max_depth);
    open_.push_back({node_at(mark, kind), anchor});
  }

  void close() {
    Open last = std::move(open_.back());
    open_.pop_back();
    add(std::move(last.node), last.anchor);
  }

  void add(YamlNode node, YAML::anchor_t anchor) {
    if (++values_ > kMaxValues) fail_config("{} has more than {} values", file_name_, kMaxValues);
    if (anchor != 0) anchors_[anchor] = node;
    if (open_.empty()) {
      root_ = std::move(node);
      return;
    }
    Open& parent = open_.back();
    if (parent.node.kind == YamlNode::Kind::List) {
      parent.node.children.push_back({"", std::move(node)});
    } else if (std::exchange(parent.has_key, !parent.has_key)) {
      node.line = parent.key_line;  // also if the value stands below it
      parent.node.children.push_back({parent.key, std::move(node)});
    } else {
      if (node.kind == YamlNode::Kind::Null)
        fail_config("{} has an empty key; expected 'key: value' lines", place(node.line));
      if (node.kind != YamlNode::Kind::Scalar)
        fail_config("{} has a key that is not a word", place(node.line));
      parent.key = node.text;
      parent.key_line = node.line;
    }
  }

  const std::string file_name_;
  const YamlRules rules_;
  std::vector<std::string> lines_;
  YamlNode root_;
  std::vector<Open> open_;
  std::map<YAML::anchor_t, YamlNode> anchors_;
  int64_t values_ = 0;
  int documents_ = 0;
};

}  // namespace

YamlNode parse_yaml(const std::string& text, const std::string& file_name, const YamlRules& rules) {
  // An end-of-document line of our own: without it yaml-cpp accepts a quote that is never closed.
  const std::string ended = text + (text.empty() || text.ends_with('\n') ? "...\n" : "\n...\n");
  const auto line_count = std::count(ended.begin(), ended.end(), '\n') - 1;
  TreeHandler handler(text, file_name, rules);
  try {
    std::istringstream stream(ended);
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(handler)) {
    }
  } catch (const YAML::Exception& e) {
    if (e.mark.line >= line_count)
      fail_config("{}: not valid {}: a quote or bracket is not closed", file_name, rules.format);
    fail_config("{}:{}: not valid {}: {}", file_name, e.mark.line + 1, rules.format, printable(e.msg));
  }
  return handler.take();
}

}  // namespace octet
