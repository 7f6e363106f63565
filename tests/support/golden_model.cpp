#include "support/golden_model.h"
#include "support/places.h"

#include <algorithm>
#include <cstring>

namespace octet {

GoldenModel::GoldenModel(const std::string& name, const std::string& folder)
    : file(SafetensorsFile::open(posix_env(),
                                 test::source_path("/tests/golden/") + folder + "/" + name + ".safetensors")),
      config(model_config_from_hf(file.metadata().at("config"), name)),
      tokens(ints("tokens")),
      targets(ints("targets")) {
  rows = file.at("tokens").shape[0];
  length = file.at("tokens").shape[1];
  for (int64_t row = 0; row < rows; ++row) {
    starts.push_back(static_cast<int32_t>(row * length));
    for (int64_t t = 0; t < length; ++t) positions.push_back(static_cast<int32_t>(t));
  }
  starts.push_back(static_cast<int32_t>(rows * length));
}

std::vector<float> GoldenModel::floats(const std::string& tensor) const {
  const SafeTensor& t = file.at(tensor);
  std::vector<float> values(static_cast<size_t>(t.count()));
  std::memcpy(values.data(), t.bytes.data(), t.bytes.size());
  return values;
}

std::vector<int32_t> GoldenModel::ints(const std::string& tensor) const {
  const SafeTensor& t = file.at(tensor);
  std::vector<int32_t> values(static_cast<size_t>(t.count()));
  std::memcpy(values.data(), t.bytes.data(), t.bytes.size());
  return values;
}

int64_t GoldenModel::target_count() const {
  return std::count_if(targets.begin(), targets.end(), [](int32_t t) { return t >= 0; });
}

double relative_error(std::span<const float> a, std::span<const float> b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double d = static_cast<double>(a[i]) - static_cast<double>(b[i]);
    difference += d * d;
    norm += static_cast<double>(b[i]) * static_cast<double>(b[i]);
  }
  return a.size() == b.size() ? std::sqrt(difference / norm) : std::numeric_limits<double>::infinity();
}

}  // namespace octet
