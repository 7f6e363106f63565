#include "checkpoint/checkpoint.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/json.h"

namespace octet {
namespace {

using Json = nlohmann::ordered_json;

// Numbers that JSON cannot hold stand there as text.
Json number_json(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

double number_from(const nlohmann::json& value) {
  if (value.is_number()) return value.get<double>();
  const std::string text = value.get<std::string>();
  if (text == "nan") return std::nan("");
  if (text == "inf") return INFINITY;
  if (text == "-inf") return -INFINITY;
  fail("a number is '{}'", text);
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
  require(json.is_object() && json.value("format", "") == "octet trainer state",
          "[{}] is not the state of an octet trainer", place);
  try {
    require(json.at("version") == 1, "version {}, this program reads 1", json.at("version").dump());
    TrainerState state;
    state.step = json.at("step").get<int64_t>();
    state.tokens = json.at("tokens").get<int64_t>();
    state.skipped_steps = json.at("skipped_steps").get<int64_t>();
    state.skipped_in_a_row = json.at("skipped_in_a_row").get<int>();
    state.loader = parse_loader_state(json.at("loader"), place);
    state.first_loss = number_from(json.at("first_loss"));
    state.last_loss = number_from(json.at("last_loss"));
    if (json.contains("first_eval")) state.first_eval = number_from(json["first_eval"]);
    if (json.contains("best_eval")) state.best_eval = number_from(json["best_eval"]);
    for (const nlohmann::json& loss : json.at("loss_window")) state.loss_window.push_back(number_from(loss));
    state.spikes_in_a_row = json.at("spikes_in_a_row").get<int>();
    state.sequences_per_step = json.value("sequences_per_step", int64_t{0});
    if (json.contains("first_level")) state.first_level = number_from(json["first_level"]);
    return state;
  } catch (const nlohmann::json::exception& e) {
    fail("[{}] {}", place, plain_json_error(e.what()));
  } catch (const Error& e) {
    fail("[{}] {}", place, e.what());
  }
}

}  // namespace octet
