#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace octet {

// A folder of its own for a test, removed with what is in it.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "octet_test_XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp " + name);
    path_ = name;
  }
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string path() const { return path_.string(); }
  std::string file(const std::string& name) const { return (path_ / name).string(); }

  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(file(name), std::ios::binary) << bytes;
    return file(name);
  }

  template <class Id>
  std::string write_ids(const std::string& name, const std::vector<Id>& ids,
                        const std::string& before = "") const {
    return write(name,
                 before + std::string(reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(Id)));
  }

 private:
  std::filesystem::path path_;
};

// The header of an llm.c file.
inline std::string llmc_header(uint32_t magic, uint32_t version, uint32_t count) {
  std::vector<uint32_t> words(256, 0);
  words[0] = magic;
  words[1] = version;
  words[2] = count;
  return {reinterpret_cast<const char*>(words.data()), 1024};
}

}  // namespace octet
