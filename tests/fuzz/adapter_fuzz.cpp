// Whatever the bytes: as an adapter_config.json and, behind a NUL byte, the header of adapter_model.safetensors they
// give an Error; or an adapter whose tensors all have the shapes that the model asks for.

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "data/temporary_folder.h"
#include "fuzz_support.h"
#include "hf/peft_folder.h"

namespace {

using namespace octet;

// Small enough for an adapter of all its matrices to be a small input.
ModelConfig tiny_model() {
  ModelConfig config = model_preset("llama-tiny");
  config.layers = 1;
  config.width = 8;
  config.heads = 2;
  config.kv_heads = 1;
  config.head_dim = 4;
  config.ffn = 16;
  config.vocab = 32;
  config.validate();
  return config;
}

// Header and data; data that the input has not got are zeros, which is enough for any header that fits.
std::string weights_file(std::string_view header_and_data) {
  constexpr size_t kMostData = 1 << 14;
  const size_t cut = std::min(header_and_data.find('\0'), header_and_data.size());
  const std::string_view header = header_and_data.substr(0, cut);
  std::string_view data = header_and_data.substr(std::min(cut + 1, header_and_data.size()));
  // The end of the last tensor, as the header says: the largest number in it, unless that is nonsense.
  size_t end = 0, number = 0;
  for (const char c : header) {
    number = c >= '0' && c <= '9' ? std::min(number * 10 + static_cast<size_t>(c - '0'), kMostData + 1) : 0;
    if (number <= kMostData) end = std::max(end, number);
  }
  data = data.substr(0, end);
  std::string file(8, '\0');
  for (size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(uint64_t{header.size()} >> (8 * i));
  file += header;
  file += data;
  file.append(end - data.size(), '\0');
  return file;
}

void check(const PeftAdapter& adapter, const ModelConfig& model) {
  const std::vector<ParameterSpec> table = parameter_table(model);
  const std::vector<AdaptedPart> parts = adapted_parts(table, adapter.plan());
  expect(!parts.empty());
  for (const AdaptedPart& part : parts) {
    const int64_t rank = part.adapter->rank;
    const std::vector<float> a = adapter.rows(*part.adapter, 'A', 0, rank, part.in());
    const std::vector<float> b = adapter.rows(*part.adapter, 'B', part.out() / 2, part.out() / 2, rank);
    expect(std::ssize(a) == rank * part.in() && std::ssize(b) == part.out() / 2 * rank);
    for (const std::vector<float>& values : {a, b})
      expect(std::ranges::all_of(values, [](float value) { return std::isfinite(value); }));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const ModelConfig model = tiny_model();
  static const TemporaryFolder folder;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const size_t cut = std::min(bytes.find('\0'), bytes.size());
  folder.write("adapter_config.json", std::string(bytes.substr(0, cut)));
  folder.write("adapter_model.safetensors", weights_file(bytes.substr(std::min(cut + 1, bytes.size()))));
  try {
    check(PeftAdapter(posix_env(), folder.path(), model), model);
  } catch (const Error&) {
  }
  return 0;
}
