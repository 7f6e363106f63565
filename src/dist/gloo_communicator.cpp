#include "dist/engines.h"

#ifdef OCTET_WITH_GLOO

#include <gloo/allgather.h>
#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/types.h>

#include <cstring>
#include <deque>
#include <map>

#include "base/signals.h"
#include "dist/collective_checks.h"

namespace octet {
namespace {

// Time limit of one collective, and of the connections. Ranks that only wait for a slow one must not give up before it.
constexpr std::chrono::milliseconds kLimit = HostChannel::kLimit;

// Gloo begins its messages with the source file and line: "[/build/pair.cc:598] Connection closed by peer".
std::string what_gloo_said(const std::exception& error) {
  const std::string text = error.what();
  const size_t end = text.find("] ");
  return text.starts_with("[/") && end != std::string::npos ? text.substr(end + 2) : text;
}

// The addresses of all members, for Gloo's full mesh. Every member sets the same number of keys in the same order, and
// all before it asks for those of others. So setting a key is the moment to exchange it.
class HostStore final : public gloo::rendezvous::Store {
 public:
  explicit HostStore(const GroupRequest& request) : request_(request) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    const std::string tag = fmt::format("gloo {} {}", request_.name, rounds_++);
    const std::string mine = key + '\n' + std::string(data.begin(), data.end());
    for (const std::string& text : request_.host.all_gather(tag, mine, kLimit, request_.members)) {
      const size_t end = text.find('\n');
      require(end != std::string::npos, "[{}] a rank sent {} bytes without a key", tag, text.size());
      values_[text.substr(0, end)] = {text.begin() + static_cast<std::ptrdiff_t>(end) + 1, text.end()};
    }
  }
  std::vector<char> get(const std::string& key) override {
    const auto found = values_.find(key);
    require(found != values_.end(), "[gloo {}] no rank has set the key '{}'", request_.name, key);
    return found->second;
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) get(key);
  }

 private:
  const GroupRequest& request_;
  int rounds_ = 0;
  std::map<std::string, std::vector<char>> values_;
};

class GlooCommunicator final : public Communicator {
 public:
  GlooCommunicator(const GroupRequest& request, int index)
      : progress_(request.progress), lane_(request.lane), size_(static_cast<int>(request.members.size())) {
    const std::string what = fmt::format("group {}", request.name);
    guarded(what, [&] {
      gloo::transport::tcp::attr attributes(request.address.c_str());
      std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice(attributes);
      auto context = std::make_shared<gloo::rendezvous::Context>(index, size_);
      context->setTimeout(kLimit);
      HostStore store(request);
      context->connectFullMesh(store, device);
      context_ = std::move(context);
    });
  }

  int rank() const override { return context_->rank; }
  int size() const override { return size_; }
  std::string description() const override { return fmt::format("{} x Gloo", size_); }

  void all_gather(Queue&, std::span<const GatherItem> items, std::string_view what) override {
    const auto parts = part_bytes(items, size_, what);
    std::deque<gloo::AllgatherOptions> calls;  // out here: see guarded()
    run(what, [&] {
      for (size_t i = 0; i < items.size(); ++i) {
        if (parts[i] == 0) continue;
        gloo::AllgatherOptions& options = calls.emplace_back(context_);
        // Without an input Gloo takes this rank's part of the output.
        if (!is_in_place(items[i], parts[i], rank()))
          options.setInput(static_cast<uint8_t*>(items[i].mine.data), static_cast<size_t>(parts[i]));
        options.setOutput(static_cast<uint8_t*>(items[i].whole.data),
                          static_cast<size_t>(items[i].whole.bytes()));
        options.setTag(tag_++);
        gloo::allgather(options);
      }
    });
  }

  // gloo::alltoall wants the sent parts one behind the other; its messages, sent from here, do without a copy.
  void exchange(Queue&, std::span<const ExchangeItem> items, std::string_view what) override {
    const auto parts = part_bytes(items, size_, what);
    std::deque<Transfer> transfers;  // out here: see guarded()
    run(what, [&] {
      for (size_t i = 0; i < items.size(); ++i)
        if (parts[i] > 0) start(transfers.emplace_back(), items[i], parts[i]);
      for (const Transfer& transfer : transfers) {
        for (int peer = 1; peer < size_; ++peer) transfer.received->waitRecv(nullptr, kLimit);
        for (int peer = 1; peer < size_; ++peer) transfer.sent->waitSend(nullptr, kLimit);
      }
    });
  }

 private:
  struct Transfer {
    std::unique_ptr<gloo::transport::UnboundBuffer> sent, received;
  };

  void start(Transfer& transfer, const ExchangeItem& item, int64_t part) {
    const auto bytes = static_cast<size_t>(part);
    const auto slot = gloo::Slot::build(gloo::kAlltoallSlotPrefix, tag_++);
    transfer.sent = context_->createUnboundBuffer(const_cast<void*>(item.sent),
                                                  static_cast<size_t>(item.stride * (size_ - 1) + part));
    transfer.received =
        context_->createUnboundBuffer(item.received.data, static_cast<size_t>(item.received.bytes()));
    std::memcpy(part_at(item.received, part, rank()), sent_part(item, rank()), bytes);
    // Each rank begins with the next one, so that not all send to the same rank at once.
    for (int distance = 1; distance < size_; ++distance) {
      const int to = (rank() + distance) % size_, from = (rank() - distance + size_) % size_;
      transfer.received->recv(from, slot, bytes * static_cast<size_t>(from), bytes);
      transfer.sent->send(to, slot, static_cast<size_t>(item.stride * to), bytes);
    }
  }

  template <class Work>
  void run(std::string_view what, const Work& work) {
    progress_.queued(lane_, what);
    guarded(what, work);
    progress_.finished(lane_);
  }

  // A rank that only talks to healthy ones learns of a failure when they close their connections. And Gloo's thread no
  // longer touches the memory of the collective, which the caller may free next.
  void close_connections() {
    try {
      if (context_) context_->closeConnections();
    } catch (const std::exception&) {  // the failure that led here says more
    }
  }

  // Gloo's buffers must outlive `work`: its thread uses them until the connections are closed.
  template <class Work>
  void guarded(std::string_view what, const Work& work) {
    try {
      work();
    } catch (const Error&) {
      close_connections();
      throw;
    } catch (const std::exception& error) {
      close_connections();
      throw RankError(fmt::format("[{}] Gloo says: {}", what, what_gloo_said(error)));
    }
  }

  Progress& progress_;
  int lane_;
  int size_;
  std::shared_ptr<gloo::Context> context_;
  uint32_t tag_ = 0;  // of Gloo's messages; counts the items of all calls
};

}  // namespace

std::unique_ptr<Communicator> make_gloo_communicator(const GroupRequest& request) {
  const int index = check_members(request.members, request.host.rank(), request.host.size(), request.name);
  require(index >= 0, "[group {}] rank {} is no member", request.name, request.host.rank());
  survive_broken_pipes();  // Gloo writes to its sockets without MSG_NOSIGNAL
  return std::make_unique<GlooCommunicator>(request, index);
}

std::string gloo_description() {
  return "Gloo";
}

}  // namespace octet

#else

namespace octet {
namespace {
constexpr const char* kMissing = "built without Gloo (package libgloo-dev)";
}

std::unique_ptr<Communicator> make_gloo_communicator(const GroupRequest& request) {
  fail("[group {}] several CPU processes need Gloo, but this program was {}", request.name, kMissing);
}

std::string gloo_description() {
  return kMissing;
}

}  // namespace octet

#endif
