// Messages between ranks: what is written is read back, and everything else is refused with the right problem.

#include "dist/rendezvous_messages.h"

#include <gtest/gtest.h>

#include <functional>

namespace octet::test {
namespace {

template <class Message>
Message again(const Message& message) {
  FrameReader reader;
  reader.trust();
  reader.append(to_frame(message));
  const std::optional<Frame> frame = reader.next();
  EXPECT_TRUE(frame && frame->type == Message::kType && reader.is_empty());
  return from_body<Message>(frame->body);
}

MessageProblem problem_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const MessageError& error) {
    return error.problem();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

MessageProblem problem_of_stream(const std::string& bytes, bool trusted = false) {
  return problem_of([&] {
    FrameReader reader;
    if (trusted) reader.trust();
    reader.append(bytes);
    reader.next();
  });
}

HelloMessage some_hello() {
  return {.job = job_hash("job"),
          .nonce = random_nonce(),
          .rank = 3,
          .ranks = 8,
          .local_ranks = 4,
          .host = "node1",
          .gpu = "GPU-1",
          .config = "c0ffee",
          .version = "0.1.0"};
}

TEST(RendezvousMessages, AreReadBack) {
  const HelloMessage hello = again(some_hello());
  EXPECT_EQ(hello.rank, 3);
  EXPECT_EQ(hello.ranks, 8);
  EXPECT_EQ(hello.local_ranks, 4);
  EXPECT_EQ(hello.host + hello.gpu + hello.config + hello.version, "node1GPU-1c0ffee0.1.0");
  const FaultMessage fault = again(FaultMessage{.rank = -1, .code = 75, .reason = "gone"});
  EXPECT_EQ(fault.rank, -1);
  EXPECT_EQ(fault.code, 75);
  const HeartbeatMessage beat = again(HeartbeatMessage{7, "saving", {{42, 41, "gather 3", "gather 2"}, {}}});
  EXPECT_EQ(beat.step, 7);
  ASSERT_EQ(beat.lanes.size(), 2u);
  EXPECT_EQ(beat.lanes[0], (LaneState{42, 41, "gather 3", "gather 2"}));
  const GatherMessage gather = again(GatherMessage{9, 1000, "tag", {2, 0}, std::string(1 << 20, 'x')});
  EXPECT_EQ(gather.members, (std::vector<int32_t>{2, 0}));
  EXPECT_EQ(gather.text.size(), size_t{1} << 20);
  EXPECT_EQ(again(GatheredMessage{9, {"a", "", "c"}}).texts, (std::vector<std::string>{"a", "", "c"}));
}

TEST(RendezvousMessages, ComeInPieces) {
  const std::string frames = to_frame(some_hello()) + to_frame(ChallengeMessage{});
  FrameReader reader;
  size_t count = 0;
  for (const char c : frames) {
    reader.append({&c, 1});
    count += reader.next().has_value();
  }
  EXPECT_EQ(count, 2u);
  EXPECT_TRUE(reader.is_empty());
}

TEST(RendezvousMessages, HeadersAreStrict) {
  const std::string frame = to_frame(ChallengeMessage{});
  const auto changed = [&](size_t place, char value) {
    std::string bytes = frame;
    bytes[place] = value;
    return bytes;
  };
  EXPECT_EQ(problem_of_stream("GET / HTTP/1.1\r\n"), MessageProblem::Magic);
  EXPECT_EQ(problem_of_stream("X"), MessageProblem::Magic);  // at the first byte
  EXPECT_EQ(problem_of_stream(changed(4, 2)), MessageProblem::Version);
  EXPECT_EQ(problem_of_stream(changed(5, 0)), MessageProblem::Type);
  EXPECT_EQ(problem_of_stream(changed(5, 13)), MessageProblem::Type);
  EXPECT_EQ(problem_of_stream(changed(6, 1)), MessageProblem::Type);
  EXPECT_EQ(problem_of_stream(changed(11, 1)), MessageProblem::Length);  // 16 MiB
  // One byte too long, before any of the body has come.
  std::string longest = frame.substr(0, kMessageHeaderBytes);
  longest[8] = 1;
  longest[10] = 1;
  EXPECT_EQ(problem_of_stream(longest), MessageProblem::Length);
  EXPECT_EQ(problem_of_stream(longest, true), MessageProblem::Length);
}

TEST(RendezvousMessages, OnlyTheHandshakeIsReadFromStrangers) {
  for (const std::string& frame : {to_frame(GatherMessage{}), to_frame(FaultMessage{}),
                                   to_frame(HeartbeatMessage{}), to_frame(GoodbyeMessage{})}) {
    EXPECT_EQ(problem_of_stream(frame), MessageProblem::Type);
  }
}

TEST(RendezvousMessages, BodiesAreStrict) {
  const std::string body = to_frame(some_hello()).substr(kMessageHeaderBytes);
  EXPECT_EQ(from_body<HelloMessage>(body).rank, 3);
  EXPECT_EQ(problem_of([&] { from_body<HelloMessage>(body + "x"); }), MessageProblem::Content);
  for (size_t cut = 0; cut < body.size(); ++cut) {
    EXPECT_EQ(problem_of([&] { from_body<HelloMessage>(body.substr(0, cut)); }), MessageProblem::Content)
        << cut;
  }
  // A list that is longer than its message.
  const std::string gathered = std::string(8, '\0') + "\xff\xff\xff\x7f";
  EXPECT_EQ(problem_of([&] { from_body<GatheredMessage>(gathered); }), MessageProblem::Content);
  EXPECT_EQ(problem_of([&] { from_body<RefusedMessage>(std::string(5, '\0')); }), MessageProblem::Content);
  EXPECT_EQ(problem_of([&] { to_frame(StartMessage{std::string(2000, 'a')}); }), MessageProblem::Content);
}

// RFC 4231, test case 2.
TEST(HandshakeProof, IsHmacSha256) {
  const Proof proof = hmac_sha256("Jefe", "what do ya want for nothing?");
  std::string hex;
  for (const char c : proof) hex += fmt::format("{:02x}", static_cast<unsigned char>(c));
  EXPECT_EQ(hex, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(HandshakeProof, DependsOnEverything) {
  const std::string key = proof_key("job", "secret");
  const Nonce nonce = random_nonce();
  const HelloMessage hello = some_hello();
  const Proof proof = client_proof(key, nonce, hello);
  EXPECT_TRUE(is_same_proof(proof, client_proof(key, nonce, hello)));
  EXPECT_FALSE(is_same_proof(proof, client_proof(proof_key("job", "other"), nonce, hello)));
  EXPECT_FALSE(is_same_proof(proof, client_proof(proof_key("job", std::nullopt), nonce, hello)));
  EXPECT_FALSE(is_same_proof(proof, client_proof(proof_key("other", "secret"), nonce, hello)));
  EXPECT_FALSE(is_same_proof(proof, client_proof(key, random_nonce(), hello)));
  EXPECT_FALSE(is_same_proof(proof, server_proof(key, nonce, hello)));
  HelloMessage changed = hello;
  changed.rank = 4;
  EXPECT_FALSE(is_same_proof(proof, client_proof(key, nonce, changed)));
}

}  // namespace
}  // namespace octet::test
