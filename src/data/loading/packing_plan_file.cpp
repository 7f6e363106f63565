#include <fcntl.h>
#include <sys/stat.h>

#include <array>
#include <bit>
#include <chrono>
#include <cstring>

#include "base/checked.h"
#include "base/crc32c.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "data/loading/packing_plan.h"
#include "io/cache_folder.h"
#include "io/checked_files.h"
#include "io/read_ahead.h"
#include "io/temporary_file.h"

namespace octet {
namespace {

static_assert(std::endian::native == std::endian::little, "plans are read in place and are little-endian");

constexpr std::array<char, 8> kMagic = {'O', 'C', 'T', 'E', 'T', 'P', 'K', 'P'};
constexpr uint32_t kVersion = 1;  // of the file
constexpr int kAlgorithm = 1;     // increase it if the same documents get another plan
constexpr int64_t kMostCount = int64_t{1} << 40;
constexpr const char* kExtension = ".plan";
constexpr int64_t kDayNs = int64_t{24} * 3600 * 1'000'000'000, kKeptNs = 30 * kDayNs;

struct Header {
  std::array<char, 8> magic = kMagic;
  uint32_t version = kVersion;
  uint32_t data_crc = 0;  // of everything after the header
  uint64_t identity = 0;
  int64_t length = 0;
  int64_t fragments = 0;
  int64_t rows = 0;
  PackingPlan::Totals totals;
  std::array<uint8_t, 44> zero{};
  uint32_t crc = 0;  // of the bytes before it
};
static_assert(sizeof(Header) == 128);

// Where the arrays begin; each begins at a multiple of 8.
struct Layout {
  int64_t fragments, length_starts, places, row_starts, end;
  Layout(const Header& header, const std::string& path) {
    require(header.length > 0 && header.length < kMostCount && header.fragments >= 0 &&
                header.fragments < kMostCount && header.rows >= 0 && header.rows < kMostCount,
            "[{}] has a length of {}, {} fragments and {} rows", path, header.length, header.fragments,
            header.rows);
    fragments = sizeof(Header);
    length_starts = checked_add(fragments, checked_mul(header.fragments, sizeof(Fragment)));
    places = checked_add(length_starts, checked_mul(header.length + 1, 8));
    row_starts = checked_add(places, round_up(checked_mul(header.fragments, 4), 8));
    end = checked_add(row_starts, checked_mul(header.rows + 1, 8));
  }
};

template <class T>
std::span<const T> array_at(std::span<const std::byte> bytes, int64_t offset, int64_t count) {
  return {reinterpret_cast<const T*>(bytes.data() + offset), static_cast<size_t>(count)};
}

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void remove_old_plans(Env& env, const std::string& folder) {
  for (const std::string& name : env.list(folder)) {
    if (!name.ends_with(kExtension) && name.find(fmt::format("{}.tmp-", kExtension)) == name.npos) continue;
    const std::string path = join_path(folder, name);
    try {
      if (now_ns() - file_stamp(path).modified_ns > kKeptNs) env.remove_file(path);
    } catch (const IoError&) {
      // Another process was faster.
    }
  }
}

}  // namespace

void PackingPlan::save(Env& env, const std::string& path, uint64_t identity) const {
  constexpr std::array<std::byte, 8> kZeros{};
  const std::array<std::span<const std::byte>, 5> parts = {
      std::as_bytes(arrays_.fragments), std::as_bytes(arrays_.length_starts), std::as_bytes(arrays_.places),
      std::span(kZeros).first(arrays_.places.size() % 2 * 4), std::as_bytes(arrays_.row_starts)};
  Header header;
  header.identity = identity;
  header.length = length_;
  header.fragments = fragments();
  header.rows = rows();
  header.totals = totals_;
  for (const auto part : parts) header.data_crc = crc32c(part.data(), part.size(), header.data_crc);
  header.crc = crc32c(&header, offsetof(Header, crc));
  WritableFile file = create_temporary(env, path);
  try {
    file.append(std::as_bytes(std::span(&header, 1)));
    for (const auto part : parts) file.append(part);
    file.close();
    env.rename(file.path(), path);
  } catch (const IoError&) {
    env.sys_unlink(file.path());
    throw;
  }
}

std::optional<PackingPlan> PackingPlan::load(Env& env, const std::string& path, uint64_t identity) {
  auto file = std::make_shared<const MappedFile>(env.map(path));
  const std::span<const std::byte> bytes = file->bytes();
  Header header;
  require(bytes.size() >= sizeof header, "[{}] has {} bytes, too few for a packing plan", path, bytes.size());
  std::memcpy(&header, bytes.data(), sizeof header);
  require(header.magic == kMagic && header.crc == crc32c(&header, offsetof(Header, crc)),
          "[{}] has a damaged header", path);
  if (header.version != kVersion || header.identity != identity) return std::nullopt;
  const Layout layout(header, path);
  require(std::cmp_equal(layout.end, bytes.size()), "[{}] has {} bytes, expected {}", path, bytes.size(),
          layout.end);
  const std::span<const std::byte> data = bytes.subspan(sizeof header);
  const ReadAhead ahead({data});
  require(crc32c(data.data(), data.size()) == header.data_crc, "[{}] does not match its checksum", path);
  PackingPlan plan;
  plan.length_ = header.length;
  plan.totals_ = header.totals;
  plan.arrays_ = {array_at<Fragment>(bytes, layout.fragments, header.fragments),
                  array_at<int64_t>(bytes, layout.length_starts, header.length + 1),
                  array_at<uint32_t>(bytes, layout.places, header.fragments),
                  array_at<int64_t>(bytes, layout.row_starts, header.rows + 1)};
  plan.owner_ = std::move(file);
  return plan;
}

uint64_t packing_identity(const DocumentSource& source, int64_t length, Packing packing) {
  Hash64 hash;
  hash.add(kAlgorithm).add(length).add(static_cast<int>(packing));
  for (const Shard& shard : source.shards()) hash.add(shard.counts().documents).add(shard.checksum());
  return hash.value();
}

std::shared_ptr<const PackingPlan> stored_packing_plan(Env& env, const std::string& folder,
                                                       const DocumentSource& source, int64_t length,
                                                       Packing packing, int64_t large) {
  const auto make = [&] { return std::make_shared<const PackingPlan>(source, length, packing); };
  if (folder.empty() || source.counts().tokens < large) return make();
  const uint64_t identity = packing_identity(source, length, packing);
  const std::string path = join_path(folder, fmt::format("{:016x}{}", identity, kExtension));
  try {
    if (env.exists(path)) {
      if (std::optional<PackingPlan> plan = PackingPlan::load(env, path, identity)) {
        // The time says when it was last used.
        if (now_ns() - file_stamp(path).modified_ns > kDayNs) ::utimensat(AT_FDCWD, path.c_str(), nullptr, 0);
        return std::make_shared<const PackingPlan>(*std::move(plan));
      }
    }
  } catch (const Error& error) {
    log_info("data: {}; the plan is made again", error.what());
  }
  std::shared_ptr<const PackingPlan> plan = make();
  if (plan->fragments() < large) return plan;
  try {
    env.make_directories(folder);
    remove_old_plans(env, folder);
    plan->save(env, path, identity);
  } catch (const IoError& error) {
    log_info("data: the packing plan is not kept for the next start: {}{}", error.what(), cache_note(folder));
  }
  return plan;
}

}  // namespace octet
