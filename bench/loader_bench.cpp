// How many tokens a second the loaders hand out, on one thread, and how long a packing plan takes: a GPU must not wait
// for either. Usage: loader_bench [DOCUMENTS]
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "base/philox.h"
#include "data/loading/packed_loader.h"

using namespace octet;

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct StringSink : Sink {
  using Sink::append;
  void append(std::span<const std::byte> bytes) override {
    text.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  std::string text;
};

Shard parse(const std::string& text) {
  auto copy = std::make_shared<std::vector<uint64_t>>(text.size() / 8);
  std::memcpy(copy->data(), text.data(), text.size());
  const auto view = std::as_bytes(std::span(*copy));
  return Shard::parse(std::move(copy), view, "bench");
}

// Lengths as web text has them: log-normal around e^mean tokens.
Shard make_shard(int64_t documents, double mean, bool masked) {
  StringSink sink;
  ShardWriter writer(sink, {50257, 0});
  const Philox random(1);
  Document document;
  for (int64_t i = 0; i < documents; ++i) {
    const double draw = random.normal(static_cast<uint64_t>(i));
    const auto length = static_cast<size_t>(std::clamp(std::exp(mean + draw), 2.0, 20000.0));
    document.tokens.assign(length, static_cast<int32_t>(i % 50000));
    document.is_target.assign(length, 1);
    if (masked) std::fill_n(document.is_target.begin(), length / 2, uint8_t{0});
    writer.append(document);
  }
  writer.finish();
  return parse(sink.text);
}

void measure(const char* name, SampleLoader& loader) {
  Batch batch;
  for (int i = 0; i < 3; ++i) loader.next(batch);
  int64_t tokens = 0;
  const auto start = Clock::now();
  while (seconds_since(start) < 2) {
    for (int i = 0; i < 8; ++i) {
      loader.next(batch);
      tokens += batch.token_count;
    }
  }
  fmt::print("{:34} {:8.1f} M tokens/s\n", name, static_cast<double>(tokens) / seconds_since(start) / 1e6);
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t documents = argc > 1 ? std::atoll(argv[1]) : 200'000;
  constexpr int64_t kRows = 16, kLength = 2048;
  const Shard text = make_shard(documents, 6, false), chats = make_shard(documents, 5, true);
  for (const auto& [name, shard] : {std::pair("text", &text), std::pair("chats with a mask", &chats)}) {
    const DocumentSource source({*shard}, 50257);
    const auto start = Clock::now();
    PackedLoader packed(source, {.rows = kRows, .length = kLength, .packing = Packing::BestFit, .seed = 1});
    fmt::print("{}: {} documents, {} tokens; plan of {} rows in {:.3f} s, {:.2f} % of places used\n", name,
               shard->counts().documents, shard->counts().tokens, packed.plan().rows(), seconds_since(start),
               100 * packed.plan().utilisation());
    measure("  best_fit, shuffled", packed);
    PackedLoader padded(source, {.rows = kRows, .length = kLength, .packing = Packing::None, .seed = 1});
    measure("  padded, shuffled", padded);
    Loader stream(TokenSource::from_shard(*shard, 50257),
                  {.rows = kRows, .length = kLength, .order = SampleOrder::Shuffled, .seed = 1});
    measure("  stream, shuffled", stream);
  }
  // Lengths alone: a plan looks at nothing else.
  const Shard many = make_shard(documents * 10, 2, false);
  const auto start = Clock::now();
  const PackingPlan plan(DocumentSource({many}, 50257), kLength, Packing::BestFit);
  fmt::print("plan of {} short documents: {:.2f} s, {:.2f} % of places used\n", many.counts().documents,
             seconds_since(start), 100 * plan.utilisation());
  return 0;
}
