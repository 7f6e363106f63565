#include "data/loading/prefetcher.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/start_thread.h"
#include "base/trace.h"

namespace octet {

struct Prefetcher::Queue {
  // A batch and the state of its source after it, or what the source threw instead.
  struct Item {
    Batch batch;
    LoaderState state;
    double epoch = 0;
    std::exception_ptr error;
  };

  Queue(std::unique_ptr<BatchSource> from, int most)
      : source(std::move(from)), depth(static_cast<size_t>(most)) {}
  ~Queue() { stop(); }

  void start() {
    stopping = false;
    state = source->state();
    epoch = source->epoch();
    worker = start_thread("reading batches ahead", [this] { work(); });
  }

  void stop() {
    if (!worker.joinable()) return;
    {
      std::lock_guard lock(mutex);
      stopping = true;
    }
    has_room.notify_all();
    worker.join();
  }

  void work() {
    for (bool failed = false; !failed;) {
      Item item;
      {
        std::unique_lock lock(mutex);
        has_room.wait(lock, [this] { return stopping || ready.size() < depth; });
        if (stopping) return;
        if (!spare.empty()) {
          item.batch = std::move(spare.back());
          spare.pop_back();
        }
      }
      try {
        const TraceSpan span("data loader", "load batch");
        source->next(item.batch);
        item.state = source->state();
        item.epoch = source->epoch();
      } catch (...) {
        item.error = std::current_exception();
        failed = true;
      }
      {
        std::lock_guard lock(mutex);
        ready.push_back(std::move(item));
      }
      has_item.notify_one();
    }
  }

  std::unique_ptr<BatchSource> source;  // used only by the worker while it runs
  const size_t depth;
  LoaderState state;  // of the last batch handed out; used only by the caller, as is epoch
  double epoch = 0;

  std::mutex mutex;  // guards what follows
  std::condition_variable has_item, has_room;
  std::deque<Item> ready;
  std::vector<Batch> spare;
  bool stopping = false;
  std::thread worker;
};

Prefetcher::Prefetcher(std::unique_ptr<BatchSource> source, int depth) {
  require(depth > 0, "[prefetcher] depth {}, expected at least 1", depth);
  queue_ = std::make_unique<Queue>(std::move(source), depth);
  queue_->start();
}

Prefetcher::~Prefetcher() = default;

void Prefetcher::next(Batch& batch) {
  Queue& queue = *queue_;
  {
    std::unique_lock lock(queue.mutex);
    queue.has_item.wait(lock, [&] { return !queue.ready.empty(); });
    Queue::Item& item = queue.ready.front();
    if (item.error) std::rethrow_exception(item.error);  // stays in front for later calls
    std::swap(batch, item.batch);
    queue.state = item.state;
    queue.epoch = item.epoch;
    if (queue.spare.size() < queue.depth) queue.spare.push_back(std::move(item.batch));
    queue.ready.pop_front();
  }
  queue.has_room.notify_one();
}

LoaderState Prefetcher::state() const {
  return queue_->state;
}
double Prefetcher::epoch() const {
  return queue_->epoch;
}

void Prefetcher::set_state(const LoaderState& state) {
  Queue& queue = *queue_;
  queue.stop();
  queue.ready.clear();
  try {
    queue.source->set_state(state);
  } catch (...) {  // refused: continue from what was handed out
    queue.source->set_state(queue.state);
    queue.start();
    throw;
  }
  queue.start();
}

}  // namespace octet
