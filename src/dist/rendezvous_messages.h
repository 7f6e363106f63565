#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dist/message_archive.h"

namespace octet {

// Messages on the TCP connections between rank 0 and the other ranks. The fields of each are written and read in the order
// of its fields(). A frame is a header of 12 bytes and a body:
//   "OCTR" | version (1 byte) | type (1) | 0 (2) | bytes of the body (4)
// Numbers are little-endian. Texts and lists begin with their length in 4 bytes.
enum class MessageType : uint8_t {
  Challenge = 1,  // rank 0 -> client, at once
  Hello,          // client -> rank 0, with its proof
  Accepted,       // rank 0 -> client, with the proof of rank 0
  Refused,        // rank 0 -> client; then the connection is closed
  Start,          // rank 0 -> all: every rank is there
  Heartbeat,      // both ways from here on
  Gather,         // rank -> rank 0
  Gathered,       // rank 0 -> rank
  GatherFailed,   // rank 0 -> rank
  Fault,          // rank -> rank 0 -> all
  Goodbye,        // rank -> rank 0: this rank is done
  Farewell,       // rank 0 -> all: every rank is done
};

constexpr size_t kMessageHeaderBytes = 12;
constexpr uint8_t kMessageVersion = 1;
constexpr size_t kMostHandshakeBytes = size_t{64} << 10;  // bodies of all types but those of gathers
constexpr size_t kMostGatherBytes = size_t{64} << 20;     // a body with texts of a gather
constexpr size_t kMostName = 1024, kMostConfig = 32768, kMostReason = 16384, kMostMembers = 16384,
                 kMostLanes = 64;  // of the texts and lists of a message
constexpr size_t kNonceBytes = 32, kProofBytes = 32;

using Nonce = std::array<char, kNonceBytes>;
using Proof = std::array<char, kProofBytes>;

struct ChallengeMessage {
  static constexpr MessageType kType = MessageType::Challenge;
  Nonce nonce{};
  void fields(auto& archive) { archive.fixed(nonce); }
};

struct HelloMessage {
  static constexpr MessageType kType = MessageType::Hello;
  std::array<char, 32> job{};  // SHA-256 of the job's key
  Nonce nonce{};
  int32_t rank = 0, ranks = 0, local_ranks = 0;
  std::string host, gpu, config, version;
  Proof proof{};  // of this message with an empty proof
  void fields(auto& archive) {
    archive.fixed(job);
    archive.fixed(nonce);
    archive.integer(rank);
    archive.integer(ranks);
    archive.integer(local_ranks);
    archive.text(host, kMostName);
    archive.text(gpu, kMostName);
    archive.text(config, kMostConfig);
    archive.text(version, kMostName);
    archive.fixed(proof);
  }
};

struct AcceptedMessage {
  static constexpr MessageType kType = MessageType::Accepted;
  Proof proof{};
  void fields(auto& archive) { archive.fixed(proof); }
};

enum class Refusal : uint8_t { OtherJob = 1, OtherSecret, Conflict };
struct RefusedMessage {
  static constexpr MessageType kType = MessageType::Refused;
  Refusal refusal = Refusal::Conflict;
  std::string reason;
  void fields(auto& archive) {
    archive.choice(refusal, Refusal::OtherJob, Refusal::Conflict);
    archive.text(reason, kMostReason);
  }
};

struct StartMessage {
  static constexpr MessageType kType = MessageType::Start;
  std::string address;  // of this rank's node, if rank 0 knows it better than the rank itself
  void fields(auto& archive) { archive.text(address, kMostName); }
};

struct LaneState {
  uint64_t queued = 0, finished = 0;  // counts
  std::string last_queued, last_finished;
  bool operator==(const LaneState&) const = default;
};
struct HeartbeatMessage {
  static constexpr MessageType kType = MessageType::Heartbeat;
  int64_t step = -1;  // -1: none has begun
  std::string phase;
  std::vector<LaneState> lanes;
  void fields(auto& archive) {
    archive.integer(step);
    archive.text(phase, kMostName);
    archive.list(lanes, kMostLanes, [&](LaneState& lane) {
      archive.integer(lane.queued);
      archive.integer(lane.finished);
      archive.text(lane.last_queued, kMostName);
      archive.text(lane.last_finished, kMostName);
    });
  }
};

struct GatherMessage {
  static constexpr MessageType kType = MessageType::Gather;
  uint64_t call = 0;  // chosen by the caller, repeated in the answer
  int64_t limit_ms = 0;
  std::string tag;
  std::vector<int32_t> members;
  std::string text;
  void fields(auto& archive) {
    archive.integer(call);
    archive.integer(limit_ms);
    archive.text(tag, kMostName);
    archive.list(members, kMostMembers, [&](int32_t& member) { archive.integer(member); });
    archive.text(text, kMostGatherBytes);
  }
};
struct GatheredMessage {
  static constexpr MessageType kType = MessageType::Gathered;
  uint64_t call = 0;
  std::vector<std::string> texts;
  void fields(auto& archive) {
    archive.integer(call);
    archive.list(texts, kMostMembers, [&](std::string& text) { archive.text(text, kMostGatherBytes); });
  }
};
struct GatherFailedMessage {
  static constexpr MessageType kType = MessageType::GatherFailed;
  uint64_t call = 0;
  std::string reason;
  void fields(auto& archive) {
    archive.integer(call);
    archive.text(reason, kMostReason);
  }
};

struct FaultMessage {
  static constexpr MessageType kType = MessageType::Fault;
  int32_t rank = 0;  // the one that failed, or that noticed it
  int32_t code = 1;  // exit code of all
  std::string reason;
  void fields(auto& archive) {
    archive.integer(rank);
    archive.integer(code);
    archive.text(reason, kMostReason);
  }
};

struct GoodbyeMessage {
  static constexpr MessageType kType = MessageType::Goodbye;
  void fields(auto&) {}
};
struct FarewellMessage {
  static constexpr MessageType kType = MessageType::Farewell;
  void fields(auto&) {}
};

constexpr char kMessageMagic[4] = {'O', 'C', 'T', 'R'};
constexpr size_t most_bytes(MessageType type) {
  return type == MessageType::Gather || type == MessageType::Gathered ? kMostGatherBytes
                                                                      : kMostHandshakeBytes;
}

template <class Message>
std::string to_frame(Message message) {
  std::string frame(kMessageMagic, sizeof kMessageMagic);
  MessageWriter writer(frame);
  writer.number(kMessageVersion, 1);
  writer.number(static_cast<uint64_t>(Message::kType), 1);
  writer.number(0, 2);
  writer.number(0, 4);
  message.fields(writer);
  const size_t bytes = frame.size() - kMessageHeaderBytes, most = most_bytes(Message::kType);
  if (bytes > most)
    refuse_message(MessageProblem::Length, "a message has {} bytes, at most {} are sent", bytes, most);
  for (size_t i = 0; i < 4; ++i) frame[8 + i] = static_cast<char>(bytes >> (8 * i));
  return frame;
}

// MessageError unless the body is exactly one message of this type.
template <class Message>
Message from_body(std::string_view body) {
  MessageReader reader(body);
  Message message;
  message.fields(reader);
  reader.end();
  return message;
}

struct Frame {
  MessageType type{};
  std::string body;
};

// Cuts a stream of bytes into frames. Until trust() it only takes messages of the handshake, all of which are small.
class FrameReader {
 public:
  void trust() { trusted_ = true; }
  void append(std::string_view bytes) { buffer_.append(bytes); }
  std::optional<Frame> next();  // none: more bytes are needed; MessageError if it cannot be a frame
  bool is_empty() const { return begin_ == buffer_.size(); }

 private:
  bool trusted_ = false;
  std::string buffer_;
  size_t begin_ = 0;  // what was read lies before it
};

// HMAC-SHA256 and what else the handshake needs from OpenSSL.
Proof hmac_sha256(std::string_view key, std::string_view text);
bool is_same_proof(const Proof& a, const Proof& b);  // in constant time
void fill_random(char* bytes, size_t count);
Nonce random_nonce();
std::string random_hex(size_t bytes);

// The key for all proofs of a job: from the job's key and, if there is one, the secret.
std::string proof_key(std::string_view job, const std::optional<std::string>& secret);
std::array<char, 32> job_hash(std::string_view job);
Proof client_proof(std::string_view key, const Nonce& challenge, HelloMessage hello);
Proof server_proof(std::string_view key, const Nonce& challenge, const HelloMessage& hello);

}  // namespace octet
