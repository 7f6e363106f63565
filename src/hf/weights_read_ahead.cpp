#include "hf/weights_read_ahead.h"

#include <unistd.h>

namespace octet {

FolderReadAhead::FolderReadAhead(const std::string& folder) {
  try {
    auto files = std::make_unique<const SafetensorsFolder>(SafetensorsFolder::open(posix_env(), folder));
    std::vector<std::span<const std::byte>> parts;
    uint64_t bytes = 0;
    for (const SafetensorsFile& file : files->files()) {
      for (const SafeTensor& tensor : file.tensors()) {
        parts.push_back(tensor.bytes);
        bytes += tensor.bytes.size();
      }
    }
    const auto memory =
        static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
    if (bytes > memory / 2) return;
    files_ = std::move(files);
    ahead_ = std::make_unique<ReadAhead>(std::move(parts));
  } catch (const Error&) {
    // Whoever loads the weights reports it.
  }
}

std::vector<std::span<const std::byte>> bytes_of(const HfFiles& files, std::span<const ParameterSpec> table) {
  std::vector<std::span<const std::byte>> parts;
  for (const ParameterSpec& spec : table) {
    for (const HfPart& part : spec.hf) {
      if (const SafeTensor* tensor = files.find(part.name)) parts.push_back(tensor->bytes);
    }
  }
  return parts;
}

}  // namespace octet
