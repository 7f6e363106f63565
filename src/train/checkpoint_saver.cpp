#include "train/checkpoint_saver.h"

#include <chrono>

#include "base/log.h"
#include "train/guards.h"

namespace octet {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

CheckpointSaver::CheckpointSaver(Env& env, std::string directory, const SaveOptions& options)
    : store_(env, std::move(directory)), options_(options) {
  if (options_.in_background) thread_ = std::thread([this] { run(); });
}

CheckpointSaver::~CheckpointSaver() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void CheckpointSaver::save(Backend& backend, Transformer& model, TrainerState state, std::string train_config,
                           const CheckpointSummary& summary, bool best) {
  const auto start = Clock::now();
  wait();
  snapshot_.take(backend, model, std::move(state), std::move(train_config));
  {
    const std::lock_guard lock(mutex_);
    summary_ = summary;
    best_ = best;
    pending_cost_ = {
        .step = snapshot_.step(), .bytes = snapshot_.bytes(), .wait_ms = 1e3 * seconds_since(start)};
    busy_ = true;
  }
  if (options_.in_background) {
    changed_.notify_all();
  } else {
    write(summary, best);
    wait();
  }
}

void CheckpointSaver::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !busy_; });
  if (const std::exception_ptr unexpected = std::exchange(unexpected_, nullptr))
    std::rethrow_exception(unexpected);
}

std::optional<CheckpointCost> CheckpointSaver::take_cost() {
  const std::lock_guard lock(mutex_);
  return std::exchange(cost_, std::nullopt);
}

int CheckpointSaver::failures_in_a_row() {
  const std::lock_guard lock(mutex_);
  return failures_in_a_row_;
}

void CheckpointSaver::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return busy_ || stopping_; });
    if (!busy_) return;
    const CheckpointSummary summary = summary_;
    const bool best = best_;
    lock.unlock();
    write(summary, best);
    lock.lock();
  }
}

void CheckpointSaver::write(const CheckpointSummary& summary, bool best) {
  const auto start = Clock::now();
  std::optional<std::string> failure;
  std::exception_ptr unexpected;
  try {
    snapshot_.check();
    store_.save(
        snapshot_.step(), [this](CheckpointWriter& writer) { snapshot_.write(writer); }, summary, best);
    store_.prune(options_.total_limit);
  } catch (const Error& error) {
    failure = error.what();
  } catch (...) {
    unexpected = std::current_exception();
  }
  {
    const std::lock_guard lock(mutex_);
    pending_cost_.write_seconds = seconds_since(start);
    failures_in_a_row_ = failure ? failures_in_a_row_ + 1 : 0;
    if (!failure && !unexpected) cost_ = pending_cost_;
    unexpected_ = unexpected;
    busy_ = false;
    if (failure) {
      log_line(LogLevel::Error,
               fmt::format(
                   "the checkpoint of step {} was not saved ({} in a row, {} end the run); the ones before "
                   "it are untouched: {}",
                   snapshot_.step(), failures_in_a_row_, kMaxFailuresInARow, *failure));
    }
  }
  changed_.notify_all();
}

}  // namespace octet
