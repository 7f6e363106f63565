#include <nlohmann/json.hpp>

#include "base/error.h"
#include "data/loading/loader.h"

namespace octet {

nlohmann::ordered_json loader_state_json(const LoaderState& state) {
  return {{"seed", state.seed}, {"next_sample", state.next_sample}, {"data_hash", state.data_hash}};
}

LoaderState parse_loader_state(const nlohmann::json& json, const std::string& place) {
  require(json.is_object(), "[{}] the loader's state is not an object", place);
  const auto number = [&](const char* key) {
    const auto found = json.find(key);
    require(found != json.end() && found->is_number_integer(),
            "[{}] the loader's state has no integer \"{}\"", place, key);
    return found;
  };
  LoaderState state{.seed = number("seed")->get<uint64_t>(),
                    .next_sample = number("next_sample")->get<int64_t>(),
                    .data_hash = number("data_hash")->get<uint64_t>()};
  require(state.next_sample >= 0, "[{}] the loader's state has next_sample {}, expected at least 0", place,
          state.next_sample);
  return state;
}

}  // namespace octet
