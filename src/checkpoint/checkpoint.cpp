#include "checkpoint/checkpoint.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/json.h"
#include "io/sealed_json.h"

namespace octet {
namespace {

using Json = nlohmann::ordered_json;

// Numbers that JSON cannot hold stand there as text.
Json number_json(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

double number_from(const nlohmann::json& value, const char* key, const std::string& place) {
  if (value.is_number()) return value.get<double>();
  if (value == "nan") return std::nan("");
  if (value == "inf") return INFINITY;
  if (value == "-inf") return -INFINITY;
  fail("[{}] \"{}\" is {}, expected a number, nan, inf or -inf", place, key, value.dump());
}

}  // namespace

SafeDType safe_dtype(DType dtype) {
  switch (dtype) {
    case DType::F32:
      return SafeDType::F32;
    case DType::BF16:
      return SafeDType::BF16;
    case DType::E4M3:
      return SafeDType::F8_E4M3;
    case DType::E5M2:
      return SafeDType::F8_E5M2;
    case DType::E8M0:
      return SafeDType::F8_E8M0;
    case DType::I32:
      return SafeDType::I32;
    case DType::U16:
      return SafeDType::U16;
    case DType::U8:
      return SafeDType::U8;
  }
  return SafeDType::U8;
}

std::vector<int64_t> dimensions(const Shape& shape) {
  std::vector<int64_t> dims;
  for (int i = 0; i < shape.rank(); ++i) dims.push_back(shape[i]);
  return dims;
}

std::string to_json(const TrainerState& state) {
  Json json = {{"format", "octet trainer state"},
               {"version", 1},
               {"step", state.step},
               {"tokens", state.tokens},
               {"skipped_steps", state.skipped_steps},
               {"skipped_in_a_row", state.skipped_in_a_row},
               {"loader", loader_state_json(state.loader)},
               {"first_loss", number_json(state.first_loss)},
               {"last_loss", number_json(state.last_loss)}};
  if (state.first_eval) json["first_eval"] = number_json(*state.first_eval);
  if (state.best_eval) json["best_eval"] = number_json(*state.best_eval);
  json["loss_window"] = Json::array();
  for (const double loss : state.loss_window) json["loss_window"].push_back(number_json(loss));
  json["spikes_in_a_row"] = state.spikes_in_a_row;
  if (state.sequences_per_step > 0) json["sequences_per_step"] = state.sequences_per_step;
  if (state.first_level) json["first_level"] = number_json(*state.first_level);
  return json.dump(1) + "\n";
}

TrainerState trainer_state_from_json(std::string_view text, const std::string& place) {
  const nlohmann::json json = parse_json(text, place, {.max_depth = 8, .refuse_duplicate_keys = true});
  require(text_in(json, "format") == "octet trainer state", "[{}] is not the state of an octet trainer",
          place);
  const auto integer = [&](const char* key) { return json_field<int64_t>(json, key, place); };
  const auto small = [&](const char* key) {
    const int64_t value = integer(key);
    require(std::in_range<int>(value), "[{}] \"{}\" is {}, which is too large", place, key, value);
    return static_cast<int>(value);
  };
  const auto number = [&](const char* key) {
    return number_from(json_field<nlohmann::json>(json, key, place), key, place);
  };
  const auto number_if_any = [&](const char* key) {
    return json.contains(key) ? std::optional(number(key)) : std::nullopt;
  };
  require(integer("version") == 1, "[{}] has version {}, this program reads 1", place, integer("version"));
  TrainerState state;
  state.step = integer("step");
  state.tokens = integer("tokens");
  state.skipped_steps = integer("skipped_steps");
  state.skipped_in_a_row = small("skipped_in_a_row");
  state.loader = parse_loader_state(json_field<nlohmann::json>(json, "loader", place), place);
  state.first_loss = number("first_loss");
  state.last_loss = number("last_loss");
  state.first_eval = number_if_any("first_eval");
  state.best_eval = number_if_any("best_eval");
  for (const nlohmann::json& loss : json_field<nlohmann::json::array_t>(json, "loss_window", place))
    state.loss_window.push_back(number_from(loss, "loss_window", place));
  state.spikes_in_a_row = small("spikes_in_a_row");
  if (json.contains("sequences_per_step")) state.sequences_per_step = integer("sequences_per_step");
  state.first_level = number_if_any("first_level");
  return state;
}

}  // namespace octet
