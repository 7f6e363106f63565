#pragma once

#include <memory>
#include <string>

#include "hf/hf_folder.h"
#include "io/read_ahead.h"

namespace octet {

// Reads the weights of a Hugging Face folder into memory in the background, for as long as it lives. Whoever loads them
// then need not wait for the disk. It does nothing if the files cannot be opened or are larger than half of the memory.
class FolderReadAhead {
 public:
  explicit FolderReadAhead(const std::string& folder);

 private:
  std::unique_ptr<const SafetensorsFolder> files_;
  std::unique_ptr<ReadAhead> ahead_;  // after the files: it ends first
};

// The tensors of a table, in its order.
std::vector<std::span<const std::byte>> bytes_of(const HfFiles& files, std::span<const ParameterSpec> table);

}  // namespace octet
