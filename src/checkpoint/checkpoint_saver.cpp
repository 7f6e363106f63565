#include "checkpoint/checkpoint_saver.h"

#include <cmath>
#include <limits>
#include <new>

#include "base/clock.h"
#include "base/log.h"
#include "base/start_thread.h"
#include "base/trace.h"
#include "checkpoint/rank_save.h"

namespace octet {

CheckpointSaver::CheckpointSaver(Env& env, std::string directory, const SaveOptions& options)
    : env_(env), store_(std::in_place, env, std::move(directory)), options_(options), best_(options.best) {
  if (options_.ranks && options_.ranks->sharding.ranks == 1) options_.ranks.reset();
  // Ranks copy their part in any case: to read it later, the threads that write would need collectives of their own. A
  // part is also much smaller than the state.
  if (options_.ranks) options_.in_place = false;
  if (options_.in_place) options_.in_background = false;
  if (options_.in_background) thread_ = start_thread("saving checkpoints", [this] { run(); });
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

void CheckpointSaver::save(Device& device, Transformer& model, TrainerState state, std::string train_config,
                           const CheckpointSummary& summary) {
  const TraceSpan span("training", "save: copy the state");
  const auto start = Clock::now();
  wait();
  summary_ = summary;
  is_best_ =
      std::isfinite(summary.loss) && summary.loss < best_.value_or(std::numeric_limits<double>::infinity());
  state.best_eval = is_best_ ? std::optional(summary.loss) : best_;
  pending_cost_ = {.step = state.step};
  snapshot_.take(device, model, std::move(state), std::move(train_config), options_.in_place, ranks());
  {
    const std::lock_guard lock(mutex_);
    pending_cost_.bytes = snapshot_.bytes();
    pending_cost_.wait_ms = 1e3 * seconds_since(start);
    busy_ = true;
  }
  if (options_.in_background) {
    changed_.notify_all();
  } else {
    write();
    pending_cost_.wait_ms = 1e3 * seconds_since(start);
    if (last_cost_) last_cost_->wait_ms = pending_cost_.wait_ms;
    if (cost_) cost_->wait_ms = pending_cost_.wait_ms;
    wait();
  }
}

bool CheckpointSaver::is_writing() {
  const std::lock_guard lock(mutex_);
  return busy_;
}

void CheckpointSaver::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !busy_; });
  if (const std::exception_ptr unexpected = std::exchange(unexpected_, nullptr))
    std::rethrow_exception(unexpected);
}

void CheckpointSaver::save_into(const std::string& directory, std::optional<double> best) {
  wait();
  const std::lock_guard lock(mutex_);
  store_.emplace(env_, directory);
  best_ = best;
}

std::optional<CheckpointCost> CheckpointSaver::take_cost() {
  const std::lock_guard lock(mutex_);
  return std::exchange(cost_, std::nullopt);
}

bool CheckpointSaver::has_published() {
  const std::lock_guard lock(mutex_);
  return last_cost_.has_value();
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
    lock.unlock();
    write();
    lock.lock();
  }
}

void CheckpointSaver::write_texts(CheckpointWriter& writer) const {
  for (const NamedText& file : options_.texts)
    writer.file(file.name, [&](Sink& sink) { sink.append(file.text); });
}

void CheckpointSaver::published() {
  if (options_.on_published)
    options_.on_published(join_path(store_->directory(), fmt::format("step_{}", snapshot_.step())));
  try {
    store_->prune(options_.total_limit);
  } catch (const Error& error) {  // the checkpoint itself is safe
    log_warning("older checkpoints could not be removed: {}", error.what());
  }
}

void CheckpointSaver::write() {
  const TraceSpan span("checkpoint writer", "write checkpoint");
  const auto start = Clock::now();
  std::optional<std::string> failure;
  std::exception_ptr unexpected;
  const auto write_files = [this](CheckpointWriter& writer) {
    snapshot_.write(writer);
    write_texts(writer);
  };
  try {
    if (options_.ranks) {
      const Publication publication{.summary = summary_,
                                    .best = is_best_,
                                    .add_files = [this](CheckpointWriter& writer) { write_texts(writer); },
                                    .published = [this] { published(); }};
      pending_cost_.bytes = save_together(env_, *store_, snapshot_, *options_.ranks->host, publication);
    } else {
      snapshot_.check();
      store_->save(snapshot_.step(), write_files, summary_, is_best_);
      published();
    }
  } catch (const RankError&) {  // the ranks are no longer in step
    unexpected = std::current_exception();
  } catch (const Error& error) {
    failure = error.what();
  } catch (const std::bad_alloc&) {
    failure = "there is not enough host memory";
  } catch (...) {
    unexpected = std::current_exception();
  }
  finish(std::move(failure), unexpected, seconds_since(start));
}

void CheckpointSaver::finish(std::optional<std::string> failure, std::exception_ptr unexpected,
                             double seconds) {
  {
    const std::lock_guard lock(mutex_);
    pending_cost_.write_seconds = seconds;
    failures_in_a_row_ = failure ? failures_in_a_row_ + 1 : 0;
    if (!failure && !unexpected) {
      cost_ = last_cost_ = pending_cost_;
      if (is_best_) best_ = summary_.loss;
    }
    unexpected_ = unexpected;
    busy_ = false;
    if (failure) {
      log_line(
          LogLevel::Error,
          fmt::format(
              "the checkpoint of step {} was not saved ({} in a row, the run stops after {}): {}; earlier "
              "checkpoints are unchanged",
              pending_cost_.step, failures_in_a_row_, kMaxFailuresInARow, *failure));
    }
  }
  changed_.notify_all();
}

}  // namespace octet
