#include "backend/cuda/nccl_watch.h"

#include <chrono>

namespace octet {
namespace {

constexpr std::chrono::milliseconds kInterval{1};  // between questions, while a collective runs
constexpr int kLooksPerVerdict = 100;              // NCCL is asked less often than CUDA: 10 times per second

}  // namespace

NcclWatch::NcclWatch(const Nccl& api, NcclHandle handle, int device, Progress& progress, int lane)
    : api_(api), handle_(handle), device_(device), progress_(progress), lane_(lane), thread_([this] {
        run();
      }) {}

NcclWatch::~NcclWatch() {
  stop();
}

void NcclWatch::stop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void NcclWatch::add(cudaStream_t stream, std::string_view what) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<CudaEvent> event;
  if (spare_.empty()) {
    event = std::make_unique<CudaEvent>();
  } else {
    event = std::move(spare_.back());
    spare_.pop_back();
  }
  cuda_check(cudaEventRecord(event->get(), stream), "nccl");
  pending_.push_back({std::move(event), std::string(what)});
  changed_.notify_all();
}

std::string NcclWatch::failure() {
  const std::lock_guard lock(mutex_);
  return failure_;
}

bool NcclWatch::first_has_finished() {
  // A CUDA error is everybody's: who queues or waits next reports it.
  return cudaEventQuery(pending_.front().event->get()) == cudaSuccess;
}

void NcclWatch::look_for_failure() {
  int state = kNcclSuccess;
  const int asked = api_.CommGetAsyncError(handle_, &state);
  if (asked != kNcclSuccess) state = asked;
  if (state == kNcclSuccess || state == kNcclInProgress) return;
  failure_ = fmt::format("[{}] NCCL says: {} ({})", pending_.front().what, api_.GetErrorString(state),
                         api_.GetLastError(handle_));
}

void NcclWatch::run() {
  cudaSetDevice(device_);
  // Questions from this thread must not spoil a recording that another one makes.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);

  std::unique_lock lock(mutex_);
  for (int looks = 0; !stopping_;) {
    if (pending_.empty() || !failure_.empty()) {
      changed_.wait(lock);
      looks = 0;
    } else if (first_has_finished()) {
      spare_.push_back(std::move(pending_.front().event));
      pending_.pop_front();
      progress_.finished(lane_);
    } else {
      if (++looks % kLooksPerVerdict == 0) look_for_failure();
      if (!failure_.empty()) {
        const std::string reason = failure_;
        lock.unlock();  // whoever is told may ask back
        progress_.failed(lane_, reason);
        lock.lock();
        continue;
      }
      changed_.wait_for(lock, kInterval, [this] { return stopping_; });
    }
  }
}

}  // namespace octet
