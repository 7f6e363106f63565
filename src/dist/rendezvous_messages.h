#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace octet {

// Messages on the TCP connections between rank 0 and the other ranks. A frame is a header of 12 bytes and a body:
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
constexpr size_t kNonceBytes = 32, kProofBytes = 32;

using Nonce = std::array<char, kNonceBytes>;
using Proof = std::array<char, kProofBytes>;

struct ChallengeMessage {
  static constexpr MessageType kType = MessageType::Challenge;
  Nonce nonce{};
};

struct HelloMessage {
  static constexpr MessageType kType = MessageType::Hello;
  std::array<char, 32> job{};  // SHA-256 of the job's key
  Nonce nonce{};
  int32_t rank = 0, ranks = 0, local_ranks = 0;
  std::string host, gpu, config, version;
  Proof proof{};  // of this message with an empty proof
};

struct AcceptedMessage {
  static constexpr MessageType kType = MessageType::Accepted;
  Proof proof{};
};

enum class Refusal : uint8_t { OtherJob = 1, OtherSecret, Conflict };
struct RefusedMessage {
  static constexpr MessageType kType = MessageType::Refused;
  Refusal refusal = Refusal::Conflict;
  std::string reason;
};

struct StartMessage {
  static constexpr MessageType kType = MessageType::Start;
  std::string address;  // of this rank's node, if rank 0 knows it better than the rank itself
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
};

struct GatherMessage {
  static constexpr MessageType kType = MessageType::Gather;
  uint64_t call = 0;  // chosen by the caller, repeated in the answer
  int64_t limit_ms = 0;
  std::string tag;
  std::vector<int32_t> members;
  std::string text;
};
struct GatheredMessage {
  static constexpr MessageType kType = MessageType::Gathered;
  uint64_t call = 0;
  std::vector<std::string> texts;
};
struct GatherFailedMessage {
  static constexpr MessageType kType = MessageType::GatherFailed;
  uint64_t call = 0;
  std::string reason;
};

struct FaultMessage {
  static constexpr MessageType kType = MessageType::Fault;
  int32_t rank = 0;  // the one that failed, or that noticed it
  int32_t code = 1;  // exit code of all
  std::string reason;
};

struct GoodbyeMessage {
  static constexpr MessageType kType = MessageType::Goodbye;
};
struct FarewellMessage {
  static constexpr MessageType kType = MessageType::Farewell;
};

enum class MessageProblem { Magic, Version, Type, Length, Content };
class MessageError : public Error {
 public:
  MessageError(MessageProblem problem, const std::string& message) : Error(message), problem_(problem) {}
  MessageProblem problem() const { return problem_; }

 private:
  MessageProblem problem_;
};

template <class Message>
std::string to_frame(const Message& message);
// MessageError unless the body is exactly one message of this type.
template <class Message>
Message from_body(std::string_view body);

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
