#include "io/sealed_json.h"

#include <nlohmann/json.hpp>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/json.h"

namespace octet {
namespace {

std::string seal(std::string_view body, std::string_view key) {
  return fmt::format(",\n  \"{}\": \"{:08x}\"\n}}\n", key, crc32c(body));
}

}  // namespace

std::string seal_json(const nlohmann::ordered_json& object, std::string_view key) {
  std::string text = object.dump(2);
  text.resize(text.size() - 2);  // "\n}": the object continues with the checksum
  return text + seal(text, key);
}

nlohmann::json parse_sealed_json(std::string_view text, const std::string& place, std::string_view key) {
  const size_t seal_size = seal("", key).size();
  require(text.size() > seal_size, "[{}] has {} bytes, which is too few", place, text.size());
  const std::string_view body = text.substr(0, text.size() - seal_size);
  require(text.substr(body.size()) == seal(body, key), "[{}] does not match its own checksum", place);
  return parse_json(text, place, {.max_depth = 12, .refuse_duplicate_keys = true});
}

std::string crc_text(uint32_t crc) {
  return fmt::format("{:08x}", crc);
}

uint32_t parse_crc(const std::string& text, const std::string& place) {
  require(text.size() == 8 && text.find_first_not_of("0123456789abcdef") == text.npos,
          "[{}] checksum \"{}\" is not eight hexadecimal digits", place, text);
  return static_cast<uint32_t>(std::stoul(text, nullptr, 16));
}

}  // namespace octet
