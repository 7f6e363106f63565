#include "io/read_ahead.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <chrono>

#include "io/env.h"
#include "temp_dir.h"

namespace octet {
namespace {

bool is_resident(std::span<const std::byte> bytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  std::vector<unsigned char> pages((bytes.size() + page - 1) / page);
  if (mincore(const_cast<std::byte*>(bytes.data()), bytes.size(), pages.data()) != 0) return false;
  for (const unsigned char p : pages)
    if ((p & 1) == 0) return false;
  return true;
}

TEST(ReadAhead, BringsFilesIntoMemory) {
  const TempDir dir;
  const std::string path = dir / "file";
  write_file(path, std::string((size_t{9} << 20) + 123, 'x'));
  const int fd = open(path.c_str(), O_RDONLY);
  ASSERT_EQ(fsync(fd), 0);
  posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
  close(fd);
  const MappedFile file = posix_env().map(path);
  // Parts need not begin at a page, and may be empty.
  const ReadAhead ahead({file.bytes().first(1000), file.bytes().subspan(1000), {}});
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!is_resident(file.bytes()) && std::chrono::steady_clock::now() < end) usleep(1000);
  EXPECT_TRUE(is_resident(file.bytes()));
}

TEST(ReadAhead, StopsWhenItIsNoLongerNeeded) {
  const TempDir dir;
  write_file(dir / "file", std::string(size_t{32} << 20, 'x'));
  const MappedFile file = posix_env().map(dir / "file");
  for (int i = 0; i < 20; ++i) const ReadAhead ahead({file.bytes()});
  const ReadAhead nothing({});
}

TEST(ReadAhead, AFileThatWasCutShortIsNoCrash) {
  const TempDir dir;
  write_file(dir / "file", std::string(size_t{8} << 20, 'x'));
  const MappedFile file = posix_env().map(dir / "file");
  ASSERT_EQ(truncate((dir / "file").c_str(), 4096), 0);
  const ReadAhead ahead({file.bytes()});
  usleep(50'000);
}

}  // namespace
}  // namespace octet
