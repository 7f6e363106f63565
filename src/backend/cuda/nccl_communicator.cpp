#include <chrono>
#include <cstring>
#include <numeric>
#include <optional>
#include <thread>

#include "backend/cuda/cuda_device.h"
#include "backend/cuda/nccl_library.h"
#include "backend/cuda/nccl_watch.h"
#include "dist/collective_checks.h"
#include "dist/engines.h"

namespace octet {
namespace {

using Clock = std::chrono::steady_clock;
constexpr std::chrono::milliseconds kLimit =
    HostChannel::kLimit;  // to make a group, and to queue a collective
constexpr std::chrono::seconds kFinalizeLimit{30};

double total_of(const std::vector<int64_t>& parts) {
  return static_cast<double>(std::accumulate(parts.begin(), parts.end(), int64_t{0}));
}

// Every call of NCCL that may wait for other ranks returns at once (a communicator that is not blocking), and is asked
// for its state until it is done. So a rank that is missing is an error after a while, never a hang inside of NCCL.
class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(const CudaDevice& device, const GroupRequest& request, int index)
      : api_(Nccl::get()),
        progress_(request.progress),
        lane_(request.lane),
        index_(index),
        size_(static_cast<int>(request.members.size())) {
    const std::string what = fmt::format("group {}", request.name);
    const NcclUniqueId id = share_id(request);
    NcclConfig config;
    config.blocking = 0;
    try {
      check(api_.CommInitRankConfig(&handle_, size_, id, index_, &config), what);
      wait_until_done(what);
      watch_.emplace(api_, handle_, device.options().device, progress_, lane_);
    } catch (...) {
      if (handle_) api_.CommAbort(handle_);
      throw;
    }
  }

  ~NcclCommunicator() override {
    watch_->stop();
    const bool broken = failed_ || !watch_->failure().empty();
    if (!broken) {
      for (void* registration : registrations_) api_.CommDeregister(handle_, registration);
    }
    if (!broken && finalize()) {
      api_.CommDestroy(handle_);
    } else {
      api_.CommAbort(handle_);  // ends kernels that wait for ranks that are gone
    }
  }
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  int rank() const override { return index_; }
  int size() const override { return size_; }
  std::string description() const override { return fmt::format("{} x NCCL {}", size_, api_.version); }

  void all_gather(Queue& queue, std::span<const GatherItem> items, std::string_view what) override {
    const auto parts = part_bytes(items, size_, what);
    const OpScope scope(static_cast<CudaQueue&>(queue).profiler(), OpKind::Communication, "all_gather",
                        total_of(parts));
    run(queue, what, [&](cudaStream_t stream) {
      for (size_t i = 0; i < items.size(); ++i) {
        if (parts[i] == 0) continue;
        check(api_.AllGather(items[i].mine.data, items[i].whole.data, static_cast<size_t>(parts[i]),
                             kNcclUint8, handle_, stream),
              what);
      }
    });
  }

  void exchange(Queue& queue, std::span<const ExchangeItem> items, std::string_view what) override {
    const auto parts = part_bytes(items, size_, what);
    cudaStream_t stream = static_cast<CudaQueue&>(queue).stream();
    const OpScope scope(static_cast<CudaQueue&>(queue).profiler(), OpKind::Communication, "exchange",
                        total_of(parts));
    for (size_t i = 0; i < items.size(); ++i) {
      if (parts[i] == 0) continue;
      cuda_check(cudaMemcpyAsync(part_at(items[i].received, parts[i], index_), sent_part(items[i], index_),
                                 static_cast<size_t>(parts[i]), cudaMemcpyDeviceToDevice, stream),
                 "exchange");
    }
    run(queue, what, [&](cudaStream_t) {
      for (size_t i = 0; i < items.size(); ++i) {
        if (parts[i] == 0) continue;
        const auto bytes = static_cast<size_t>(parts[i]);
        for (int distance = 1; distance < size_; ++distance) {
          const int to = (index_ + distance) % size_, from = (index_ - distance + size_) % size_;
          check(api_.Send(sent_part(items[i], to), bytes, kNcclUint8, to, handle_, stream), what);
          check(
              api_.Recv(part_at(items[i].received, parts[i], from), bytes, kNcclUint8, from, handle_, stream),
              what);
        }
      }
    });
  }

  // Memory that NCCL cannot use directly stays unregistered; collectives work with it as well.
  void register_memory(void* memory, int64_t bytes) override {
    void* registration = nullptr;
    if (!api_.CommRegister || bytes == 0) return;
    if (api_.CommRegister(handle_, memory, static_cast<size_t>(bytes), &registration) == kNcclSuccess &&
        registration != nullptr)
      registrations_.push_back(registration);
  }

 private:
  // The id of the first member, which all others need to find it.
  NcclUniqueId share_id(const GroupRequest& request) {
    NcclUniqueId id{};
    std::string mine;
    if (index_ == 0) {
      check(api_.GetUniqueId(&id), "group " + request.name);
      mine.assign(id.bytes, sizeof(id.bytes));
    }
    const auto texts = request.host.all_gather("nccl " + request.name, mine, kLimit, request.members);
    require(texts[0].size() == sizeof(id.bytes),
            "[group {}] rank {} sent an NCCL id of {} bytes, expected {}", request.name, request.members[0],
            texts[0].size(), sizeof(id.bytes));
    std::memcpy(id.bytes, texts[0].data(), sizeof(id.bytes));
    return id;
  }

  template <class Calls>
  void run(Queue& queue, std::string_view what, const Calls& calls) {
    const std::string earlier = watch_->failure();
    if (!earlier.empty()) throw RankError(earlier);
    cudaStream_t stream = static_cast<CudaQueue&>(queue).stream();
    require(!is_capturing(stream), "[{}] a collective was queued while a graph is recorded", what);
    progress_.queued(lane_, what);
    check(api_.GroupStart(), what);
    try {
      calls(stream);
    } catch (...) {
      api_.GroupEnd();
      throw;
    }
    check(api_.GroupEnd(), what);
    wait_until_done(what);
    watch_->add(stream, what);
  }

  void check(int result, std::string_view what) {
    if (result == kNcclSuccess || result == kNcclInProgress) return;
    failed_ = true;
    throw RankError(fmt::format("[{}] NCCL says: {} ({})", what, api_.GetErrorString(result),
                                api_.GetLastError(handle_)));
  }

  // Until NCCL has done what was asked last: made the group, or queued the collective.
  void wait_until_done(std::string_view what) {
    const auto begin = Clock::now();
    if (poll(begin + kLimit, what)) return;
    failed_ = true;
    throw RankError(fmt::format("[{}] NCCL is not ready after {} s: not all of the {} ranks have come", what,
                                std::chrono::duration_cast<std::chrono::seconds>(kLimit).count(), size_));
  }

  // False if it is not done at the deadline.
  bool poll(Clock::time_point deadline, std::string_view what) {
    for (int looks = 0;; ++looks) {
      int state = kNcclSuccess;
      check(api_.CommGetAsyncError(handle_, &state), what);
      check(state, what);
      if (state == kNcclSuccess) return true;
      if (Clock::now() > deadline) return false;
      // Queueing takes tens of microseconds, making a group takes seconds.
      if (looks < 1000) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    }
  }

  bool finalize() {
    try {
      check(api_.CommFinalize(handle_), "end");
      return poll(Clock::now() + kFinalizeLimit, "end");
    } catch (const Error&) {
      return false;
    }
  }

  const Nccl& api_;
  Progress& progress_;
  int lane_;
  int index_, size_;
  NcclHandle handle_ = nullptr;
  bool failed_ = false;
  std::vector<void*> registrations_;
  std::optional<NcclWatch> watch_;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(Device& device, const GroupRequest& request) {
  auto* cuda = dynamic_cast<CudaDevice*>(&device);
  require(cuda != nullptr, "[group {}] NCCL moves memory of GPUs, but the device is {}", request.name,
          device.name());
  const int index = check_members(request.members, request.host.rank(), request.host.size(), request.name);
  require(index >= 0, "[group {}] rank {} is no member", request.name, request.host.rank());
  return std::make_unique<NcclCommunicator>(*cuda, request, index);
}

std::string nccl_description() {
  try {
    return "NCCL " + Nccl::get().version;
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace octet
