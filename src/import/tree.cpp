#include "import/tree.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <map>
#include <utility>

#include "base/config_text.h"
#include "base/error.h"
#include "base/text.h"
#include "base/yaml.h"

namespace octet {
namespace {

constexpr int kMaxDepth = 32;
constexpr int kMaxInterpolations = 16;

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return text;
}

bool is_null_word(const std::string& text) {
  return text.empty() || text == "~" || text == "None" || lower(text) == "null";
}

// Of a key that is given twice, one value would be lost.
void check_names(const YamlNode& node, const std::string& file_name) {
  std::map<std::string_view, int> lines;
  for (const auto& [name, child] : node.children) {
    check_names(child, file_name);
    if (node.kind != YamlNode::Kind::Map || name == "<<") continue;
    const auto [first, is_new] = lines.emplace(name, child.line);
    if (!is_new)
      fail_config("{} in {}:{} is given twice, first in line {}", printable(name), file_name, child.line,
                  first->second);
  }
}

// "<<": what the map itself has wins, then the first of several merged maps.
void merge_into(YamlNode& target, const YamlNode& source, const std::string& file_name) {
  if (source.kind == YamlNode::Kind::List) {
    for (const auto& [name, item] : source.children) merge_into(target, item, file_name);
    return;
  }
  if (source.kind != YamlNode::Kind::Map)
    fail_config("{}:{} merges ('<<') something that is not a map", file_name, source.line);
  for (const auto& [name, child] : source.children) {
    const auto same = std::ranges::find(target.children, name, &NamedYaml::name);
    if (same == target.children.end()) target.children.push_back({name, child});
  }
}

void expand_merges(YamlNode& node, const std::string& file_name) {
  for (auto& [name, child] : node.children) expand_merges(child, file_name);
  if (node.kind != YamlNode::Kind::Map) return;
  std::vector<YamlNode> merged;
  std::erase_if(node.children, [&](auto& child) {
    if (child.name != "<<") return false;
    merged.push_back(std::move(child.node));
    return true;
  });
  for (const YamlNode& source : merged) merge_into(node, source, file_name);
}

void flatten(const YamlNode& node, const std::string& name, SettingsTree& tree) {
  TreeLeaf leaf{.name = name, .place = fmt::format("{}:{}", tree.file, node.line)};
  const bool is_scalar = node.kind == YamlNode::Kind::Scalar;
  const bool has_containers = std::ranges::any_of(node.children, [](const auto& child) {
    return child.node.kind == YamlNode::Kind::Map || child.node.kind == YamlNode::Kind::List;
  });
  if (node.kind == YamlNode::Kind::Null || (is_scalar && !node.is_quoted && is_null_word(node.text))) {
    leaf.kind = TreeLeaf::Kind::Null;
  } else if (is_scalar) {
    leaf.text = node.text;
    leaf.is_quoted = node.is_quoted;
    // 500_000 is a number for the YAML readers of these programs.
    if (!leaf.is_quoted && !leaf.text.empty() &&
        leaf.text.find_first_not_of("0123456789_") == leaf.text.npos && leaf.text.front() != '_')
      std::erase(leaf.text, '_');
  } else if (node.kind == YamlNode::Kind::List && !has_containers) {
    leaf.kind = TreeLeaf::Kind::List;
    for (const auto& [unused, item] : node.children)
      leaf.items.push_back(item.kind == YamlNode::Kind::Null ? "" : item.text);
  } else if (node.children.empty()) {
    leaf.kind = TreeLeaf::Kind::EmptyMap;
  } else {
    for (size_t i = 0; i < node.children.size(); ++i) {
      const auto& [child_name, child] = node.children[i];
      const std::string last = node.kind == YamlNode::Kind::List ? std::to_string(i) : child_name;
      flatten(child, name.empty() ? last : name + "." + last, tree);
    }
    return;
  }
  tree.leaves.push_back(std::move(leaf));
}

// What stands between ${ and }: the name of another value, or oc.env:NAME[,DEFAULT].
std::optional<std::string> interpolated(const SettingsTree& tree, const std::string& inside) {
  if (inside.starts_with("oc.env:") || inside.starts_with("env:")) {
    const std::string rest = inside.substr(inside.find(':') + 1);
    const size_t comma = rest.find(',');
    if (const char* value = std::getenv(rest.substr(0, comma).c_str())) return value;
    if (comma != std::string::npos) return rest.substr(comma + 1);
    return std::nullopt;
  }
  const TreeLeaf* leaf = tree.find(inside);
  if (!leaf || leaf->kind != TreeLeaf::Kind::Scalar) return std::nullopt;
  return leaf->text;
}

void interpolate(const SettingsTree& tree, const TreeLeaf& leaf, std::string& text) {
  size_t from = 0;
  for (int count = 0;; ++count) {
    const size_t begin = text.find("${", from);
    if (begin == std::string::npos) return;
    const size_t end = text.find('}', begin);
    if (end == std::string::npos) return;
    if (count == kMaxInterpolations || text.size() > kMaxConfigSize)
      fail_config("{}: '{}' refers to itself", leaf.describe(), printable(text));
    const auto value = interpolated(tree, text.substr(begin + 2, end - begin - 2));
    if (value) {
      text.replace(begin, end + 1 - begin, *value);
    } else {
      from = end;  // kept as it is: the value may not matter
    }
  }
}

// Comments of JSON with comments become spaces, so that line numbers stay; YAML reads the rest. Tabs are spaces, too.
std::string yaml_of_json(std::string text) {
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i], next = i + 1 < text.size() ? text[i + 1] : '\0';
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '\t' || c == '\r') {
      text[i] = ' ';
    } else if (c == '#' || (c == '/' && next == '/')) {
      while (i < text.size() && text[i] != '\n') text[i++] = ' ';
    } else if (c == '/' && next == '*') {
      const size_t end = std::min(text.find("*/", i + 2), text.size() - 2) + 2;
      for (; i < end; ++i) {
        if (text[i] != '\n') text[i] = ' ';
      }
      --i;
    }
  }
  return text;
}

bool starts_as_json(const std::string& text) {
  size_t i = text.starts_with("\xef\xbb\xbf") ? 3 : 0;
  while (i < text.size()) {
    i = text.find_first_not_of(" \t\r\n", i);
    if (i == std::string::npos) return false;
    if (text.compare(i, 2, "//") != 0 && text.compare(i, 2, "/*") != 0) break;
    if (text[i + 1] == '*') {
      i = text.find("*/", i);
      i = i == std::string::npos ? i : i + 2;
    } else {
      i = text.find('\n', i);
    }
    if (i == std::string::npos) return false;
  }
  return i < text.size() && text[i] == '{';
}

}  // namespace

bool TreeLeaf::is_off() const {
  switch (kind) {
    case Kind::Null:
    case Kind::EmptyMap:
      return true;
    case Kind::List:
      return items.empty();
    case Kind::Scalar:
      break;
  }
  const std::string word = lower(text);
  if (is_null_word(text) || word == "false" || word == "none" || word == "no" || word == "off") return true;
  const auto value = parse_double(text);
  return value && *value == 0;
}

bool TreeLeaf::is_auto() const {
  return kind == Kind::Scalar && lower(text) == "auto";
}

std::optional<bool> TreeLeaf::flag() const {
  return kind == Kind::Scalar ? parse_bool(text) : std::nullopt;
}

std::optional<double> TreeLeaf::number() const {
  if (kind != Kind::Scalar) return std::nullopt;
  // 1_000 is a number for YAML 1.1.
  std::string plain = text;
  if (!plain.starts_with('_')) std::erase(plain, '_');
  return parse_double(plain);
}

std::vector<std::string> TreeLeaf::list() const {
  if (kind == Kind::List) return items;
  return kind == Kind::Scalar ? split_list(text) : std::vector<std::string>{};
}

std::string TreeLeaf::shown() const {
  switch (kind) {
    case Kind::Null:
      return "null";
    case Kind::EmptyMap:
      return "{}";
    case Kind::List: {
      std::string all;
      for (const std::string& item : items) all += (all.empty() ? "" : ", ") + item;
      return printable(fmt::format("[{}{}]", all.substr(0, 60), all.size() > 60 ? "..." : ""));
    }
    case Kind::Scalar:
      break;
  }
  return printable(text.size() > 60 ? fmt::format("{}...", text.substr(0, 57)) : text);
}

std::string TreeLeaf::describe() const {
  return place.empty() ? "--" + name : fmt::format("{} in {}", printable(name), place);
}

const TreeLeaf* SettingsTree::find(std::string_view name) const {
  const auto found = std::ranges::find(leaves, name, &TreeLeaf::name);
  return found == leaves.end() ? nullptr : &*found;
}

bool SettingsTree::has(std::string_view name) const {
  const std::string below = std::string(name) + ".";
  return std::ranges::any_of(
      leaves, [&](const TreeLeaf& leaf) { return leaf.name == name || leaf.name.starts_with(below); });
}

std::string SettingsTree::text(std::string_view name) const {
  const TreeLeaf* leaf = find(name);
  return leaf ? leaf->text : "";
}

std::optional<bool> SettingsTree::flag(std::string_view name) const {
  const TreeLeaf* leaf = find(name);
  return leaf ? leaf->flag() : std::nullopt;
}

std::optional<double> SettingsTree::number(std::string_view name) const {
  const TreeLeaf* leaf = find(name);
  return leaf ? leaf->number() : std::nullopt;
}

bool SettingsTree::is_on(std::string_view name) const {
  const TreeLeaf* leaf = find(name);
  return leaf ? !leaf->is_off() : has(name);
}

std::vector<std::string_view> parts_of(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    const size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == text.npos) return parts;
    text.remove_prefix(end + 1);
  }
}

int64_t whole_number(double number) {
  constexpr double kLimit = 0x1p63;
  if (number >= kLimit) return std::numeric_limits<int64_t>::max();
  if (number < -kLimit) return std::numeric_limits<int64_t>::min();
  return static_cast<int64_t>(number);
}

SettingsTree parse_tree(const std::string& text, const std::string& file_name) {
  if (!is_clean_utf8(text)) fail_config("{} is not UTF-8 text; expected YAML or JSON", file_name);
  const bool json = starts_as_json(text);
  YamlNode root = parse_yaml(json ? yaml_of_json(text) : text, file_name,
                             {.max_depth = kMaxDepth, .has_anchors = true, .format = json ? "JSON" : "YAML"});
  if (root.kind != YamlNode::Kind::Map && root.kind != YamlNode::Kind::Null)
    fail_config("{}:{} does not hold a map; expected 'key: value' lines", file_name, root.line);
  check_names(root, file_name);
  expand_merges(root, file_name);
  SettingsTree tree{.file = file_name, .leaves = {}};
  for (const auto& [name, child] : root.children) flatten(child, name, tree);
  for (TreeLeaf& leaf : tree.leaves) {
    std::string resolved = leaf.text;
    interpolate(tree, leaf, resolved);
    leaf.text = std::move(resolved);
    for (std::string& item : leaf.items) interpolate(tree, leaf, item);
  }
  return tree;
}

SettingsTree read_tree_file(const std::string& path) {
  if (path.ends_with(".toml")) {
    fail_config(
        "{} is TOML, as torchtitan has it; octet reads YAML and JSON. Write its values into a YAML file: float8 is "
        "mixed_precision: fp8, recipe_name tensorwise or rowwise is fp8_recipe: current, mx is fp8_recipe: mxfp8, "
        "filter_fqns is fp8_skip_layers; enable_fsdp_float8_all_gather is always on with sharding_mode: fsdp_full",
        printable(path));
  }
  return parse_tree(read_config_text(path, "YAML or JSON"), printable(path));
}

}  // namespace octet
