#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace octet {

struct NamedYaml;
struct YamlNode {
  enum class Kind { Null, Scalar, List, Map };
  Kind kind = Kind::Null;
  std::string text;        // Scalar and Null: as written, without quotes; "" for a null that is not written
  bool is_quoted = false;  // Scalar
  int line = 0;            // of the key, if it has one
  std::vector<NamedYaml>
      children;  // List: the names are empty. Map: in the order of the file, names may repeat
};
struct NamedYaml {
  std::string name;
  YamlNode node;
};

struct YamlRules {
  int max_depth = 16;
  bool has_anchors = false;          // aliases are expanded, otherwise an error
  std::string_view format = "YAML";  // in messages
};

// The document in UTF-8 text, as a tree; an empty one is Null. Anything broken is a ConfigError with file and line.
YamlNode parse_yaml(const std::string& text, const std::string& file_name, const YamlRules& rules = {});

}  // namespace octet
