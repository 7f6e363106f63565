#include "data/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/error.h"

namespace octet {

static_assert(sizeof(off_t) == 8, "token files may be larger than 2 GiB");

MappedFile::MappedFile(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) fail("[dataset] cannot open {}: {}", path, std::strerror(errno));
  struct stat info {};
  if (fstat(file, &info) != 0 || !S_ISREG(info.st_mode)) {
    close(file);
    fail("[dataset] {} is not a regular file", path);
  }
  size_ = static_cast<size_t>(info.st_size);
  void* address = size_ == 0 ? nullptr : mmap(nullptr, size_, PROT_READ, MAP_SHARED, file, 0);
  const int reason = errno;
  close(file);
  if (address == MAP_FAILED)
    fail("[dataset] cannot map {} ({} bytes): {}", path, size_, std::strerror(reason));
  data_ = static_cast<const std::byte*>(address);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace octet
