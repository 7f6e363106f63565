#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/clock.h"
#include "base/cpu_threads.h"
#include "base/error.h"
#include "base/host_memory.h"
#include "checkpoint/resume.h"
#include "doctor/checks.h"
#include "io/env.h"
#include "io/temporary_file.h"
#include "report/text.h"

namespace octet {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kDiskTestBytes = int64_t{128} << 20;
constexpr double kSlowDisk = 150;  // MB/s: a single hard disk
constexpr double kLongSave = 120;  // seconds per checkpoint
constexpr double kLittleMemory = 2.0 * (1 << 30);

// The folder itself, or the nearest one above that exists.
fs::path existing_part(const fs::path& folder) {
  std::error_code ignored;
  fs::path at = fs::absolute(folder);
  while (!fs::exists(at, ignored) && at.has_relative_path()) at = at.parent_path();
  return at;
}

void check_disk(CheckResults& results, const std::string& name, const std::string& folder,
                int64_t checkpoint_bytes) {
  const fs::path at = existing_part(folder);
  std::error_code error;
  const fs::space_info space = fs::space(at, error);
  if (error) {
    results.failure(name, fmt::format("{}: {}", folder, error.message()), "choose a folder that can be read");
    return;
  }
  const auto free = static_cast<int64_t>(space.available);
  const std::string free_text = fmt::format("{} free", human_bytes(static_cast<double>(free)));
  try {
    const int64_t bytes = std::min(kDiskTestBytes, free / 4);
    if (bytes < (int64_t{1} << 20) || free < checkpoint_bytes) {
      results.failure(name, fmt::format("{}: only {}", folder, free_text),
                      checkpoint_bytes > 0
                          ? fmt::format("a checkpoint needs {}: free some space or choose another folder",
                                        human_bytes(static_cast<double>(checkpoint_bytes)))
                          : "free some space or choose another folder");
      return;
    }
    const DiskSpeed speed = measure_disk(at.string(), bytes);
    std::string text = fmt::format("{}: {}, writes {:.0f} MB/s, reads {:.0f} MB/s", folder, free_text,
                                   speed.write, speed.read);
    const double save_seconds = static_cast<double>(checkpoint_bytes) / (1e6 * speed.write);
    if (checkpoint_bytes > 0)
      text += fmt::format("; a checkpoint of {} takes {}", human_bytes(static_cast<double>(checkpoint_bytes)),
                          human_duration(save_seconds));
    CheckResult& result =
        (checkpoint_bytes > 0 ? save_seconds > kLongSave : speed.write < kSlowDisk)
            ? results.warning(name, text,
                              "checkpoints will be slow: use a local disk (checkpoint_dir), or save less "
                              "often (save_steps)")
            : results.ok(name, text);
    result.figures = {{"free_bytes", static_cast<double>(free)},
                      {"write_mb_per_second", speed.write},
                      {"read_mb_per_second", speed.read}};
  } catch (const Error& failure) {
    results.failure(name, failure.what(), "choose a folder that can be written");
  }
}

}  // namespace

DiskSpeed measure_disk(const std::string& folder, int64_t bytes) {
  Env& env = posix_env();
  const std::string path = join_path(folder, fmt::format(".octet-disk-test-{}", random_digits()));
  // The file is removed whatever happens.
  struct Remover {
    std::string path;
    ~Remover() {
      std::error_code ignored;
      fs::remove(path, ignored);
    }
  } const remover{path};
  std::vector<std::byte> block(size_t{4} << 20);
  // Bytes that a file system cannot compress away.
  uint64_t state = 88172645463325252ull;
  for (std::byte& byte : block) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    byte = static_cast<std::byte>(state >> 56);
  }
  DiskSpeed speed;
  auto start = Clock::now();
  {
    WritableFile file = create_anew(env, path);
    for (int64_t done = 0; done < bytes; done += static_cast<int64_t>(block.size()))
      file.append(std::span(block).first(
          static_cast<size_t>(std::min(bytes - done, static_cast<int64_t>(block.size())))));
    file.sync();
    file.close();
  }
  speed.write = 1e-6 * static_cast<double>(bytes) / seconds_since(start);
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw IoError("open", path, errno);
  ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);  // from the disk, not from memory
  start = Clock::now();
  while (::read(fd, block.data(), block.size()) > 0) {
  }
  speed.read = 1e-6 * static_cast<double>(bytes) / seconds_since(start);
  ::close(fd);
  return speed;
}

std::vector<CheckResult> check_host(const DoctorRun& run) {
  CheckResults results("machine");
  const CpuThreads threads = default_threads();
  const auto cores = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  const std::string threads_text =
      fmt::format("{} of {} ({})", threads.count, counted(cores, "core"), threads.reason);
  if (threads.count * 2 < std::min(cores, 16)) {
    results.warning(
        "CPU threads", threads_text,
        "data preparation and CPU runs are slower: raise OMP_NUM_THREADS or the limits of the container");
  } else {
    results.ok("CPU threads", threads_text);
  }
  const int64_t memory = available_host_memory();
  const int64_t total = ::sysconf(_SC_PHYS_PAGES) * ::sysconf(_SC_PAGE_SIZE);
  const int64_t checkpoint = run.is_given && run.is_planned ? run.resolved.plan.checkpoint_bytes : 0;
  const std::string memory_text = fmt::format(
      "{} available of {}{}", human_bytes(static_cast<double>(memory)),
      human_bytes(static_cast<double>(total)), memory < total / 2 ? " (used, or limited by a cgroup)" : "");
  if (static_cast<double>(memory) < kLittleMemory) {
    results.warning("host memory", memory_text,
                    "raise the memory limit of the container or the job, or end other programs");
  } else if (memory < checkpoint) {
    results.warning("host memory",
                    fmt::format("{}; a copy of the state takes {}", memory_text,
                                human_bytes(static_cast<double>(checkpoint))),
                    "training waits while checkpoints are written; raise the memory limit of the job");
  } else {
    results.ok("host memory", memory_text).figures = {{"available_bytes", static_cast<double>(memory)}};
  }
  const RunFolders folders = folders_of(run.resolved.keys);
  const bool has_own = !folders.checkpoint_dir.empty();
  check_disk(results, has_own ? "checkpoint_dir" : "output_dir",
             has_own ? folders.checkpoint_dir : folders.output_dir, checkpoint);
  return results.take();
}

}  // namespace octet
