#include "checkpoint/tensor_files.h"

#include <algorithm>

namespace octet {
namespace {

constexpr std::string_view kEnding = ".safetensors";

bool are_digits(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

// "-00001-of-00004" of "model-00001-of-00004.safetensors"; empty for any other name.
std::string_view number_of(std::string_view name, std::string_view stem) {
  if (!name.starts_with(stem) || !name.ends_with(kEnding) || name.size() < stem.size() + kEnding.size())
    return {};
  const std::string_view number = name.substr(stem.size(), name.size() - stem.size() - kEnding.size());
  const bool fits = number.size() == 15 && number[0] == '-' && number.substr(6, 4) == "-of-" &&
                    are_digits(number.substr(1, 5)) && are_digits(number.substr(10));
  return fits ? number : std::string_view();
}

}  // namespace

std::string single_file(std::string_view stem) {
  return fmt::format("{}{}", stem, kEnding);
}

std::string numbered_file(std::string_view stem, int64_t file, int64_t files) {
  return fmt::format("{}-{:05}-of-{:05}{}", stem, file + 1, files, kEnding);
}

bool is_tensor_file(std::string_view name, std::string_view stem) {
  return name == single_file(stem) || !number_of(name, stem).empty();
}

std::vector<std::string> tensor_file_names(const Checkpoint& checkpoint, std::string_view stem) {
  if (checkpoint.has_file(single_file(stem))) return {single_file(stem)};
  int64_t files = 0;
  for (const CheckpointFile& file : checkpoint.files) {
    if (const std::string_view number = number_of(file.name, stem); !number.empty())
      files = std::max<int64_t>(files, std::stoll(std::string(number.substr(10))));
  }
  require(files > 0, "[{}] has no file {}", checkpoint.path, single_file(stem));
  std::vector<std::string> names;
  for (int64_t i = 0; i < files; ++i) {
    names.push_back(numbered_file(stem, i, files));
    require(checkpoint.has_file(names.back()), "[{}] has no file {}", checkpoint.path, names.back());
  }
  return names;
}

TensorFiles::TensorFiles(Env& env, const Checkpoint& checkpoint, std::string_view stem) {
  const std::vector<std::string> names = tensor_file_names(checkpoint, stem);
  for (const std::string& name : names)
    files_.push_back(SafetensorsFile::open(env, checkpoint.file_path(name)));
  place_ = names.size() == 1
               ? files_.front().place()
               : join_path(checkpoint.path, fmt::format("{}-*-of-{:05}{}", stem, names.size(), kEnding));
}

const SafeTensor* TensorFiles::find(std::string_view name) const {
  for (const SafetensorsFile& file : files_) {
    if (const SafeTensor* tensor = file.find(name)) return tensor;
  }
  return nullptr;
}

const SafeTensor& TensorFiles::at(std::string_view name) const {
  const SafeTensor* tensor = find(name);
  require(tensor != nullptr, "[{}] has no tensor {}", place_, name);
  return *tensor;
}

}  // namespace octet
