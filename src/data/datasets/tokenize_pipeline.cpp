#include "data/datasets/tokenize_pipeline.h"

#include "base/cpu_threads.h"
#include "base/start_thread.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

namespace octet {
namespace {

// A batch ends at either limit: enough work for a thread, and small enough to keep dozens in memory.
constexpr size_t kBatchBytes = size_t{1} << 18;
constexpr size_t kBatchExamples = 1024;
constexpr int64_t kMostUnwanted = 1 << 14;
constexpr size_t kBatchesPerThread = 4;

size_t text_bytes(const Example& example) {
  size_t bytes = 0;
  for (const ExamplePiece& piece : example.pieces) bytes += piece.text.size();
  return bytes;
}

}  // namespace

struct TokenizePipeline::State {
  struct Batch {
    std::vector<Example> examples;
    std::vector<Item> items;
    int64_t examples_read = 0;
    double progress = 0;
    std::exception_ptr error;
    bool done = false;
  };

  State(ExampleReader& from, const Tokenizer& with, Options given)
      : reader(from), tokenizer(with), options(std::move(given)) {
    const auto count = static_cast<size_t>(options.threads > 0 ? options.threads : default_threads().count);
    most_batches = count * kBatchesPerThread;
    try {
      threads.push_back(start_thread("reading the dataset", [this] { read_all(); }));
      threads.push_back(start_thread("tokenizing", [this] { encode_all(); }));
    } catch (...) {
      end();
      throw;
    }
    try {
      for (size_t i = 1; i < count; ++i) threads.emplace_back([this] { encode_all(); });
    } catch (const std::system_error&) {
      // There may be no more threads; those that run do all the work.
    }
  }
  ~State() { end(); }

  void end() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    changed.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  void read_all() {
    for (bool more = true; more;) {
      auto batch = std::make_unique<Batch>();
      try {
        more = read_batch(*batch);
      } catch (...) {
        batch->error = std::current_exception();
        more = false;
      }
      std::unique_lock lock(mutex);
      changed.wait(lock, [this] { return stopping || batches.size() < most_batches; });
      if (stopping) return;
      waiting.push_back(batch.get());
      batches.push_back(std::move(batch));
      read_everything = !more;
      lock.unlock();
      changed.notify_all();
    }
  }

  bool read_batch(Batch& batch) {
    bool more = true;
    // Unwanted examples count towards a batch too: the caller shows progress and checks for a stop between batches.
    const int64_t last = examples_read + kMostUnwanted;
    for (size_t bytes = 0;
         bytes < kBatchBytes && batch.examples.size() < kBatchExamples && examples_read < last;) {
      if (stopping || (options.max_examples > 0 && examples_read == options.max_examples)) {
        more = false;
        break;
      }
      Example example;
      more = reader.next(example);
      if (!more) break;
      const int64_t number = examples_read++;
      if (options.wanted && !options.wanted(number)) continue;
      bytes += text_bytes(example);
      batch.items.push_back({number, {}});
      batch.examples.push_back(std::move(example));
    }
    batch.examples_read = examples_read;
    batch.progress = more ? reader.progress() : 1.0;
    return more;
  }

  void encode_all() {
    for (;;) {
      Batch* batch = nullptr;
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [this] { return stopping || !waiting.empty() || read_everything; });
        if (stopping || waiting.empty()) return;
        batch = waiting.front();
        waiting.pop_front();
      }
      if (!batch->error) encode(*batch);
      {
        const std::lock_guard lock(mutex);
        batch->done = true;
      }
      changed.notify_all();
    }
  }

  void encode(Batch& batch) const {
    try {
      for (size_t i = 0; i < batch.examples.size(); ++i) {
        batch.items[i].document = encode_example(batch.examples[i], tokenizer);
      }
      batch.examples.clear();
    } catch (...) {
      batch.error = std::current_exception();
    }
  }

  ExampleReader& reader;  // used only by the reading thread
  const Tokenizer& tokenizer;
  const Options options;
  size_t most_batches = 0;
  int64_t examples_read = 0;  // of the reading thread

  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::deque<std::unique_ptr<Batch>> batches;  // in order; the front is handed out next
  std::deque<Batch*> waiting;                  // for an encoding thread
  bool read_everything = false;
  std::atomic<bool> stopping = false;
  std::vector<std::thread> threads;

  int64_t examples_out = 0;  // of the caller, as is progress_out
  double progress_out = 0;
};

TokenizePipeline::TokenizePipeline(ExampleReader& reader, const Tokenizer& tokenizer, Options options)
    : state_(std::make_unique<State>(reader, tokenizer, std::move(options))) {}
TokenizePipeline::~TokenizePipeline() = default;

bool TokenizePipeline::next(std::vector<Item>& items) {
  State& state = *state_;
  std::unique_ptr<State::Batch> batch;
  {
    std::unique_lock lock(state.mutex);
    state.changed.wait(
        lock, [&] { return state.batches.empty() ? state.read_everything : state.batches.front()->done; });
    if (state.batches.empty()) return false;
    batch = std::move(state.batches.front());
    state.batches.pop_front();
  }
  state.changed.notify_all();
  if (batch->error) std::rethrow_exception(batch->error);
  items = std::move(batch->items);
  state.examples_out = batch->examples_read;
  state.progress_out = batch->progress;
  return true;
}

int64_t TokenizePipeline::examples() const {
  return state_->examples_out;
}
double TokenizePipeline::progress() const {
  return state_->progress_out;
}

}  // namespace octet
