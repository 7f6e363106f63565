#include "dist/rendezvous_messages.h"

#include <algorithm>
#include <cstring>

namespace octet {
namespace {

constexpr char kMagic[4] = {'O', 'C', 'T', 'R'};
constexpr size_t kMostName = 1024, kMostConfig = 32768, kMostReason = 16384, kMostMembers = 16384,
                 kMostLanes = 64;

template <class... Args>
[[noreturn]] void refuse(MessageProblem problem, fmt::format_string<Args...> format, Args&&... args) {
  throw MessageError(problem, fmt::format("[message] {}", fmt::format(format, std::forward<Args>(args)...)));
}

size_t most_bytes(MessageType type) {
  const bool gathers = type == MessageType::Gather || type == MessageType::Gathered;
  return gathers ? kMostGatherBytes : kMostHandshakeBytes;
}

bool is_handshake(MessageType type) {
  return type <= MessageType::Start;
}

// Both archives go through a message's fields in the same order (fields() below), so they cannot disagree.
class Writer {
 public:
  explicit Writer(std::string& out) : out_(out) {}
  void number(uint64_t value, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) out_ += static_cast<char>(value >> (8 * i));
  }
  template <class T>
  void integer(T& value) {
    number(static_cast<uint64_t>(value), sizeof(T));
  }
  template <size_t N>
  void fixed(std::array<char, N>& bytes) {
    out_.append(bytes.data(), N);
  }
  void text(std::string& value, size_t most) {
    if (value.size() > most)
      refuse(MessageProblem::Content, "a text has {} bytes, at most {}", value.size(), most);
    number(value.size(), 4);
    out_ += value;
  }
  template <class T, class Each>
  void list(std::vector<T>& items, size_t most, Each each) {
    if (items.size() > most)
      refuse(MessageProblem::Content, "a list has {} items, at most {}", items.size(), most);
    number(items.size(), 4);
    for (T& item : items) each(item);
  }

 private:
  std::string& out_;
};

class Reader {
 public:
  explicit Reader(std::string_view body) : rest_(body) {}
  std::string_view take(size_t bytes) {
    if (bytes > rest_.size())
      refuse(MessageProblem::Content, "{} bytes are left, expected {}", rest_.size(), bytes);
    const std::string_view taken = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return taken;
  }
  uint64_t number(size_t bytes) {
    uint64_t value = 0;
    const std::string_view taken = take(bytes);
    for (size_t i = 0; i < bytes; ++i) value |= uint64_t{static_cast<unsigned char>(taken[i])} << (8 * i);
    return value;
  }
  template <class T>
  void integer(T& value) {
    value = static_cast<T>(number(sizeof(T)));
  }
  template <size_t N>
  void fixed(std::array<char, N>& bytes) {
    std::memcpy(bytes.data(), take(N).data(), N);
  }
  void text(std::string& value, size_t most) {
    const size_t bytes = number(4);
    if (bytes > most) refuse(MessageProblem::Content, "a text has {} bytes, at most {}", bytes, most);
    value = take(bytes);
  }
  template <class T, class Each>
  void list(std::vector<T>& items, size_t most, Each each) {
    const size_t count = number(4);
    // Every item has at least 4 bytes: a short message cannot ask for much memory.
    if (count > most || count > rest_.size() / 4)
      refuse(MessageProblem::Content, "a list has {} items, at most {}", count,
             std::min(most, rest_.size() / 4));
    items.resize(count);
    for (T& item : items) each(item);
  }
  void end() const {
    if (!rest_.empty()) refuse(MessageProblem::Content, "{} bytes follow the message", rest_.size());
  }

 private:
  std::string_view rest_;
};

template <class Archive>
void fields(Archive& archive, ChallengeMessage& message) {
  archive.fixed(message.nonce);
}

template <class Archive>
void fields(Archive& archive, HelloMessage& message) {
  archive.fixed(message.job);
  archive.fixed(message.nonce);
  archive.integer(message.rank);
  archive.integer(message.ranks);
  archive.integer(message.local_ranks);
  archive.text(message.host, kMostName);
  archive.text(message.gpu, kMostName);
  archive.text(message.config, kMostConfig);
  archive.text(message.version, kMostName);
  archive.fixed(message.proof);
}

template <class Archive>
void fields(Archive& archive, AcceptedMessage& message) {
  archive.fixed(message.proof);
}

template <class Archive>
void fields(Archive& archive, RefusedMessage& message) {
  archive.integer(message.refusal);
  if (message.refusal < Refusal::OtherJob || message.refusal > Refusal::Conflict)
    refuse(MessageProblem::Content, "{} is no reason to refuse", static_cast<int>(message.refusal));
  archive.text(message.reason, kMostReason);
}

template <class Archive>
void fields(Archive& archive, StartMessage& message) {
  archive.text(message.address, kMostName);
}

template <class Archive>
void fields(Archive& archive, HeartbeatMessage& message) {
  archive.integer(message.step);
  archive.text(message.phase, kMostName);
  archive.list(message.lanes, kMostLanes, [&](LaneState& lane) {
    archive.integer(lane.queued);
    archive.integer(lane.finished);
    archive.text(lane.last_queued, kMostName);
    archive.text(lane.last_finished, kMostName);
  });
}

template <class Archive>
void fields(Archive& archive, GatherMessage& message) {
  archive.integer(message.call);
  archive.integer(message.limit_ms);
  archive.text(message.tag, kMostName);
  archive.list(message.members, kMostMembers, [&](int32_t& member) { archive.integer(member); });
  archive.text(message.text, kMostGatherBytes);
}

template <class Archive>
void fields(Archive& archive, GatheredMessage& message) {
  archive.integer(message.call);
  archive.list(message.texts, kMostMembers, [&](std::string& text) { archive.text(text, kMostGatherBytes); });
}

template <class Archive>
void fields(Archive& archive, GatherFailedMessage& message) {
  archive.integer(message.call);
  archive.text(message.reason, kMostReason);
}

template <class Archive>
void fields(Archive& archive, FaultMessage& message) {
  archive.integer(message.rank);
  archive.integer(message.code);
  archive.text(message.reason, kMostReason);
}

template <class Archive>
void fields(Archive&, GoodbyeMessage&) {}
template <class Archive>
void fields(Archive&, FarewellMessage&) {}

}  // namespace

template <class Message>
std::string to_frame(const Message& message) {
  std::string frame(kMagic, sizeof kMagic);
  Writer writer(frame);
  writer.number(kMessageVersion, 1);
  writer.number(static_cast<uint64_t>(Message::kType), 1);
  writer.number(0, 2);
  writer.number(0, 4);
  Message copy = message;
  fields(writer, copy);
  const size_t bytes = frame.size() - kMessageHeaderBytes;
  if (bytes > most_bytes(Message::kType)) {
    refuse(MessageProblem::Length, "a message has {} bytes, at most {} are sent", bytes,
           most_bytes(Message::kType));
  }
  for (size_t i = 0; i < 4; ++i) frame[8 + i] = static_cast<char>(bytes >> (8 * i));
  return frame;
}

template <class Message>
Message from_body(std::string_view body) {
  Reader reader(body);
  Message message;
  fields(reader, message);
  reader.end();
  return message;
}

template std::string to_frame(const ChallengeMessage&);
template std::string to_frame(const HelloMessage&);
template std::string to_frame(const AcceptedMessage&);
template std::string to_frame(const RefusedMessage&);
template std::string to_frame(const StartMessage&);
template std::string to_frame(const HeartbeatMessage&);
template std::string to_frame(const GatherMessage&);
template std::string to_frame(const GatheredMessage&);
template std::string to_frame(const GatherFailedMessage&);
template std::string to_frame(const FaultMessage&);
template std::string to_frame(const GoodbyeMessage&);
template std::string to_frame(const FarewellMessage&);
template ChallengeMessage from_body(std::string_view);
template HelloMessage from_body(std::string_view);
template AcceptedMessage from_body(std::string_view);
template RefusedMessage from_body(std::string_view);
template StartMessage from_body(std::string_view);
template HeartbeatMessage from_body(std::string_view);
template GatherMessage from_body(std::string_view);
template GatheredMessage from_body(std::string_view);
template GatherFailedMessage from_body(std::string_view);
template FaultMessage from_body(std::string_view);
template GoodbyeMessage from_body(std::string_view);
template FarewellMessage from_body(std::string_view);

std::optional<Frame> FrameReader::next() {
  const std::string_view bytes = std::string_view(buffer_).substr(begin_);
  // Wrong bytes are refused as soon as they are seen, not when the header is complete.
  for (size_t i = 0; i < std::min(bytes.size(), sizeof kMagic); ++i) {
    if (bytes[i] != kMagic[i]) refuse(MessageProblem::Magic, "the bytes are not octet's");
  }
  if (bytes.size() < kMessageHeaderBytes) return std::nullopt;
  Reader reader(bytes.substr(sizeof kMagic, kMessageHeaderBytes - sizeof kMagic));
  const uint64_t version = reader.number(1);
  if (version != kMessageVersion) {
    refuse(MessageProblem::Version, "version {} of the protocol, expected {}: another version of octet?",
           version, kMessageVersion);
  }
  const auto type = static_cast<MessageType>(reader.number(1));
  const bool is_known = type >= MessageType::Challenge && type <= MessageType::Farewell;
  if (!is_known || (!trusted_ && !is_handshake(type)) || reader.number(2) != 0)
    refuse(MessageProblem::Type, "type {} is not expected here", static_cast<int>(type));
  const size_t length = reader.number(4);
  if (length > most_bytes(type)) {
    refuse(MessageProblem::Length, "a message of type {} has {} bytes, expected at most {}",
           static_cast<int>(type), length, most_bytes(type));
  }
  if (bytes.size() - kMessageHeaderBytes < length) return std::nullopt;
  Frame frame{type, std::string(bytes.substr(kMessageHeaderBytes, length))};
  begin_ += kMessageHeaderBytes + length;
  if (begin_ == buffer_.size()) {
    buffer_.clear();
    if (buffer_.capacity() > kMostHandshakeBytes) buffer_.shrink_to_fit();
    begin_ = 0;
  } else if (begin_ > kMostHandshakeBytes) {
    buffer_.erase(0, begin_);
    begin_ = 0;
  }
  return frame;
}

}  // namespace octet
