#include "dist/rendezvous_messages.h"

#include <algorithm>

namespace octet {

std::optional<Frame> FrameReader::next() {
  const std::string_view bytes = std::string_view(buffer_).substr(begin_);
  // Wrong bytes are refused as soon as they are seen, not when the header is complete.
  for (size_t i = 0; i < std::min(bytes.size(), sizeof kMessageMagic); ++i) {
    if (bytes[i] != kMessageMagic[i]) refuse_message(MessageProblem::Magic, "the bytes are not octet's");
  }
  if (bytes.size() < kMessageHeaderBytes) return std::nullopt;
  MessageReader reader(bytes.substr(sizeof kMessageMagic, kMessageHeaderBytes - sizeof kMessageMagic));
  const uint64_t version = reader.number(1);
  if (version != kMessageVersion) {
    refuse_message(MessageProblem::Version,
                   "version {} of the protocol, expected {}: another version of octet?", version,
                   kMessageVersion);
  }
  const auto type = static_cast<MessageType>(reader.number(1));
  const bool is_known = type >= MessageType::Challenge && type <= MessageType::Farewell;
  if (!is_known || (!trusted_ && type > MessageType::Start) || reader.number(2) != 0)
    refuse_message(MessageProblem::Type, "type {} is not expected here", static_cast<int>(type));
  const size_t length = reader.number(4);
  if (length > most_bytes(type)) {
    refuse_message(MessageProblem::Length, "a message of type {} has {} bytes, expected at most {}",
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
