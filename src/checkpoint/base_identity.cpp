#include "checkpoint/base_identity.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/crc32c.h"
#include "base/error.h"
#include "base/json.h"
#include "base/parallel_for.h"
#include "base/sha.h"
#include "base/text.h"
#include "hf/hf_folder.h"
#include "model/family.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFormat = "octet base";
constexpr size_t kPieceBytes = size_t{16} << 20;

std::string sha256(std::string_view text) {
  Sha256 hash;
  hash.update(text);
  return hash.hex();
}

// The computation that config.json describes, independent of how it is written. The bindings name every field, so that a
// new field of ModelConfig does not compile until somebody decides whether it belongs here.
std::string architecture_text(const ModelConfig& config) {
  const auto& [name, family, vocab, layers, width, heads, kv_heads, head_dim, ffn, max_positions, norm,
               norm_epsilon, activation, learned_positions, rope_theta, rope_scaling, window, qk_norm,
               qkv_bias, out_bias, tied_head, scaled_residual_init, init_std, bos_id, eos_ids, pad_id] = config;
  std::string text = fmt::format("octet architecture 1\nfamily {}\n", family->name);
  const auto add = [&](std::string_view field, auto value) { text += fmt::format("{} {}\n", field, value); };
  add("vocab", vocab);
  add("layers", layers);
  add("width", width);
  add("heads", heads);
  add("kv_heads", kv_heads);
  add("head_dim", head_dim);
  add("ffn", ffn);
  add("max_positions", max_positions);
  add("norm", norm == NormKind::RmsNorm ? "rms_norm" : "layer_norm");
  add("norm_epsilon", norm_epsilon);
  add("activation", activation == Activation::SwiGlu ? "swiglu" : "gelu");
  add("learned_positions", learned_positions);
  if (!learned_positions) {
    add("rope_theta", rope_theta);
    if (rope_scaling) {
      const auto& [factor, low, high, original] = *rope_scaling;
      text += fmt::format("rope_scaling {} {} {} {}\n", factor, low, high, original);
    }
  }
  add("window", window);
  add("qk_norm", qk_norm);
  add("qkv_bias", qkv_bias);
  add("out_bias", out_bias);
  add("tied_head", tied_head);
  return text;
}

// A tensor of the base, and the checksums of its pieces. Pieces give all threads work when one tensor, the embedding,
// is a large part of the model.
struct BaseTensor {
  std::string name;
  const SafeTensor* stored = nullptr;
  std::vector<uint32_t> checksums;
};

struct Piece {
  BaseTensor* tensor;
  size_t index;
};

void compute_checksums(std::span<BaseTensor> tensors) {
  std::vector<Piece> pieces;
  for (BaseTensor& tensor : tensors) {
    const size_t count = (tensor.stored->bytes.size() + kPieceBytes - 1) / kPieceBytes;
    tensor.checksums.resize(count);
    for (size_t i = 0; i < count; ++i) pieces.push_back({&tensor, i});
  }
  parallel_for(std::ssize(pieces), 1, [&](int64_t i, int64_t) {
    const auto [tensor, index] = pieces[static_cast<size_t>(i)];
    const std::span<const std::byte> bytes = tensor->stored->bytes.subspan(index * kPieceBytes);
    tensor->checksums[index] = crc32c(bytes.data(), std::min(bytes.size(), kPieceBytes));
  });
}

bool is_sha256(std::string_view text) {
  return text.size() == 64 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::string named(const BaseIdentity& base, std::string_view what, std::string_view hash) {
  return fmt::format("{} ({} {})", base.path.empty() ? "random weights" : base.path, what,
                     hash.substr(0, 12));
}

}  // namespace

BaseIdentity identity_of_folder(const std::string& folder, const std::string& path,
                                std::span<const ParameterSpec> table) {
  const HfFiles files(folder);
  files.weights().check(table);
  std::vector<BaseTensor> tensors;
  for (const ParameterSpec& spec : table) {
    for (const HfPart& part : spec.hf) tensors.push_back({part.name, files.find(part.name), {}});
  }
  compute_checksums(tensors);
  std::ranges::sort(tensors, {}, &BaseTensor::name);
  std::string text = "octet weights 1\n";
  for (const BaseTensor& tensor : tensors) {
    text += fmt::format("{} {} {} {:08x}\n", tensor.name, safe_dtype_name(tensor.stored->dtype),
                        fmt::join(tensor.stored->shape, "x"), fmt::join(tensor.checksums, ","));
  }
  std::error_code error;
  const bool is_folder = fs::is_directory(path, error);
  return {.path = is_folder ? fs::absolute(path).lexically_normal().string() : path,
          .config_sha256 = sha256(architecture_text(read_hf_config(folder))),
          .weights_sha256 = sha256(text)};
}

BaseIdentity identity_of_random(const ModelConfig& config, uint64_t seed) {
  const std::string architecture = architecture_text(config);
  return {.path = "",
          .config_sha256 = sha256(architecture),
          .weights_sha256 =
              sha256(fmt::format("octet random weights 1\nseed {}\ninit_std {}\nscaled_residual_init {}\n{}",
                                 seed, config.init_std, config.scaled_residual_init, architecture))};
}

std::string differences(const BaseIdentity& saved, const BaseIdentity& now) {
  if (saved.config_sha256 == now.config_sha256 && saved.weights_sha256 == now.weights_sha256) return "";
  const bool architecture = saved.config_sha256 != now.config_sha256;
  const std::string_view what = architecture ? "architecture" : "weights";
  const std::string& was = architecture ? saved.config_sha256 : saved.weights_sha256;
  const std::string& is = architecture ? now.config_sha256 : now.weights_sha256;
  std::string text = fmt::format("the run was trained on the base {}, but ", named(saved, what, was));
  if (now.path.empty()) {
    text += fmt::format("the base is now {}", named(now, what, is));
    if (saved.path.empty()) text += "; expected the seed and the sizes of the run";
  } else if (now.path == saved.path) {
    text += fmt::format("that folder has changed ({} {})", what, is.substr(0, 12));
  } else {
    text += fmt::format("the base is now {}", named(now, what, is));
  }
  return text;
}

std::string to_json(const BaseIdentity& base) {
  const nlohmann::ordered_json json = {{"format", kFormat},
                                       {"version", 1},
                                       {"path", base.path},
                                       {"config_sha256", base.config_sha256},
                                       {"weights_sha256", base.weights_sha256}};
  // A folder may have any bytes in its name; JSON may not.
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

BaseIdentity base_identity_from_json(std::string_view text, const std::string& place) {
  const nlohmann::json json = parse_json(text, place, {.max_depth = 4, .refuse_duplicate_keys = true});
  require(json.is_object() && json.contains("format") && json["format"] == kFormat,
          "[{}] does not describe the base of a LoRA run", place);
  require(json.contains("version") && json["version"] == 1, "[{}] \"version\" is {}, expected 1", place,
          json.contains("version") ? json["version"].dump() : "missing");
  BaseIdentity base;
  const std::array<std::pair<const char*, std::string*>, 3> fields = {
      {{"path", &base.path},
       {"config_sha256", &base.config_sha256},
       {"weights_sha256", &base.weights_sha256}}};
  for (const auto& [key, value] : fields) {
    require(json.contains(key) && json[key].is_string(), "[{}] \"{}\" is {}, expected text", place, key,
            json.contains(key) ? printable(json[key].dump()) : "missing");
    *value = json[key].get<std::string>();
  }
  for (const auto& [key, value] : fields) {
    require(value == &base.path || is_sha256(*value),
            "[{}] \"{}\" is '{}', expected 64 lower-case hexadecimal digits", place, key, printable(*value));
  }
  for (const auto& item : json.items()) {
    const std::string& key = item.key();
    const bool known = key == "format" || key == "version" ||
                       std::ranges::any_of(fields, [&](const auto& field) { return key == field.first; });
    require(known, "[{}] has the unknown key \"{}\"", place, printable(key));
  }
  return base;
}

}  // namespace octet
