#include <fmt/format.h>

#include "base/config_text.h"
#include "base/error.h"
#include "base/keys.h"
#include "base/text.h"
#include "base/yaml.h"

namespace octet {
namespace {

// Makes settings of a tree that should be a flat map of values, lists of values and lists of flat maps.
class SettingsReader {
 public:
  SettingsReader(const std::string& file_name, std::vector<std::string>& errors)
      : file_name_(file_name), errors_(errors) {}

  std::vector<KeySetting> read(const YamlNode& root) {
    std::vector<KeySetting> settings;
    for (const auto& [name, node] : root.children) {
      nested_ = "";
      KeySetting setting{.name = name, .values = {}, .place = place(node)};
      bool has_value = true;
      if (node.kind == YamlNode::Kind::List) {
        setting.is_list = true;
        for (const auto& [unused, item] : node.children) add_item(setting, item);
      } else {
        has_value = read_value(setting, node, "a nested map");
      }
      if (!nested_.empty()) {
        errors_.push_back(fmt::format("{} is {}; expected one value or a list of values, in a flat file",
                                      setting.describe(), nested_));
      } else if (has_value) {
        settings.push_back(std::move(setting));
      }
    }
    return settings;
  }

 private:
  std::string place(const YamlNode& node) const { return fmt::format("{}:{}", file_name_, node.line); }

  void refuse_nested(std::string_view what) {
    if (nested_.empty()) nested_ = what;
  }

  // False if the value was forgotten.
  bool read_value(KeySetting& setting, const YamlNode& node, std::string_view what_is_nested) {
    if (node.kind == YamlNode::Kind::Scalar) {
      setting.values = {node.text};
    } else if (node.kind == YamlNode::Kind::Null) {
      setting.is_null = true;
      if (node.text.empty())
        errors_.push_back(fmt::format("{} has no value; write null to keep the default", setting.describe()));
      return !node.text.empty();
    } else {
      refuse_nested(what_is_nested);
    }
    return true;
  }

  // A list gets items with its first map. Values that stood before it become items, too.
  void add_item(KeySetting& setting, const YamlNode& node) {
    const auto add_value = [&](const std::string& where, const std::string& value) {
      setting.items.push_back({where, {KeySetting{.name = "", .values = {value}, .place = ""}}});
    };
    if (node.kind == YamlNode::Kind::List) {
      refuse_nested("a list inside a list");
    } else if (node.kind == YamlNode::Kind::Map) {
      for (const std::string& value : std::exchange(setting.values, {})) add_value(setting.place, value);
      setting.items.push_back({place(node), {}});
      for (const auto& [name, child] : node.children) {
        KeySetting field{.name = name, .values = {}, .place = place(child)};
        read_value(field, child,
                   child.kind == YamlNode::Kind::List ? "a list inside a map inside a list"
                                                      : "a map inside a list inside a list or map");
        setting.items.back().fields.push_back(std::move(field));
      }
    } else {
      const std::string value = node.kind == YamlNode::Kind::Scalar ? node.text : "";
      if (setting.items.empty()) {
        setting.values.push_back(value);
      } else {
        add_value(place(node), value);
      }
    }
  }

  const std::string& file_name_;
  std::vector<std::string>& errors_;
  std::string nested_;  // why the setting at hand is refused
};

}  // namespace

std::vector<KeySetting> parse_settings(const std::string& text, const std::string& file_name,
                                       std::vector<std::string>& errors) {
  if (!is_clean_utf8(text)) fail_config("{} is not UTF-8 text; expected a YAML file", file_name);
  const YamlNode root = parse_yaml(text, file_name);
  if (root.kind == YamlNode::Kind::List)
    fail_config("{}:{} holds a list; expected 'key: value' lines", file_name, root.line);
  if (root.kind == YamlNode::Kind::Scalar)
    fail_config("{}:{} holds only '{}'; expected 'key: value' lines", file_name, root.line,
                printable(root.text));
  return SettingsReader(file_name, errors).read(root);
}

std::vector<KeySetting> read_settings_file(const std::string& path, std::vector<std::string>& errors) {
  return parse_settings(read_config_text(path, "YAML"), printable(path), errors);
}

}  // namespace octet
