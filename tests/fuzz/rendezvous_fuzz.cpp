// Whatever the bytes on a connection between ranks: they give a MessageError or messages, those are the same after they
// were written and read again, and little is kept of what nobody has vouched for.

#include <algorithm>
#include <cstdlib>

#include "dist/rendezvous_messages.h"

namespace {

using namespace octet;

void expect(bool condition) {
  if (!condition) std::abort();
}

template <class Message>
void check(const Frame& frame) {
  const auto message = from_body<Message>(frame.body);
  expect(Message::kType == frame.type);
  expect(to_frame(message).substr(kMessageHeaderBytes) == frame.body);
}

void check(const Frame& frame) {
  switch (frame.type) {
    case MessageType::Challenge:
      return check<ChallengeMessage>(frame);
    case MessageType::Hello:
      return check<HelloMessage>(frame);
    case MessageType::Accepted:
      return check<AcceptedMessage>(frame);
    case MessageType::Refused:
      return check<RefusedMessage>(frame);
    case MessageType::Start:
      return check<StartMessage>(frame);
    case MessageType::Heartbeat:
      return check<HeartbeatMessage>(frame);
    case MessageType::Gather:
      return check<GatherMessage>(frame);
    case MessageType::Gathered:
      return check<GatheredMessage>(frame);
    case MessageType::GatherFailed:
      return check<GatherFailedMessage>(frame);
    case MessageType::Fault:
      return check<FaultMessage>(frame);
    case MessageType::Goodbye:
      return check<GoodbyeMessage>(frame);
    case MessageType::Farewell:
      return check<FarewellMessage>(frame);
  }
  std::abort();  // no other type leaves the reader
}

// In pieces of `step` bytes: where the stream is cut must not matter.
size_t read_stream(std::string_view bytes, bool trusted, size_t step) {
  FrameReader reader;
  if (trusted) reader.trust();
  size_t frames = 0;
  try {
    for (size_t begin = 0; begin < bytes.size(); begin += step) {
      reader.append(bytes.substr(begin, step));
      while (const std::optional<Frame> frame = reader.next()) {
        ++frames;
        expect(trusted || (frame->type <= MessageType::Start && frame->body.size() <= kMostHandshakeBytes));
        try {
          check(*frame);
        } catch (const MessageError& error) {
          expect(error.problem() == MessageProblem::Content);
        }
      }
    }
  } catch (const MessageError&) {  // what cannot be a frame
  }
  return frames;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  for (const bool trusted : {false, true}) {
    const size_t whole = read_stream(bytes, trusted, std::max<size_t>(size, 1));
    expect(whole == read_stream(bytes, trusted, 7));
  }
  return 0;
}
