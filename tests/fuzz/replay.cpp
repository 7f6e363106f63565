// Stands in for libFuzzer where there is none: a fuzz program that is linked with this file gives every file among its
// arguments (folders with all that is in them) to the fuzz function, whole and cut short at many places. So the seeds
// are an ordinary test with any compiler, and a crash that the fuzzer found is replayed without it.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

namespace fs = std::filesystem;

std::vector<fs::path> files_below(const fs::path& path) {
  if (!fs::is_directory(path)) return {path};
  std::vector<fs::path> files;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(path)) {
    if (entry.is_regular_file()) files.push_back(entry.path());
  }
  return files;
}

void try_input(const fs::path& path, const std::string& bytes) {
  // Said before it can crash.
  std::printf("%s: %zu bytes\n", path.c_str(), bytes.size());
  std::fflush(stdout);
  // Of the exact size, so that a read behind the end shows under a sanitizer.
  const std::vector<uint8_t> input(bytes.begin(), bytes.end());
  LLVMFuzzerTestOneInput(input.data(), input.size());
}

void replay(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    std::fprintf(stderr, "%s cannot be read\n", path.c_str());
    std::exit(1);
  }
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  constexpr size_t kMostCuts = 200;
  const size_t stride = bytes.size() / kMostCuts + 1;
  for (size_t cut = 0; cut < bytes.size(); cut += stride) try_input(path, bytes.substr(0, cut));
  try_input(path, bytes);
}

}  // namespace

int main(int argc, char** argv) {
  size_t count = 0;
  for (int i = 1; i < argc; ++i) {
    for (const fs::path& path : files_below(argv[i])) {
      replay(path);
      ++count;
    }
  }
  if (count == 0) {
    std::fprintf(stderr, "usage: %s FILE_OR_FOLDER...; no file was given\n", argv[0]);
    return 2;
  }
  std::printf("%zu files replayed\n", count);
  return 0;
}
