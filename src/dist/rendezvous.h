#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "dist/ranks.h"
#include "dist/rendezvous_messages.h"
#include "dist/socket.h"

namespace octet {

struct RendezvousOptions {
  RankPlace place;
  std::string job;  // key of the job
  std::string master_host = "127.0.0.1";
  int base_port = 0;                  // 0: follows from the job's key
  std::optional<std::string> secret;  // needed if there are several nodes
  // These must fit together. An empty GPU is not checked.
  std::string host, gpu, config, version;
  std::chrono::milliseconds limit{300'000};
  std::chrono::milliseconds handshake_limit{10'000};  // for one client to say who it is
  std::chrono::milliseconds first_word{5'000};        // after that long, rank 0 says whom it waits for
};

// A connection to another rank.
struct Peer {
  Socket socket;
  FrameReader reader;
  std::string host;
};

struct Meeting {
  std::vector<Peer> peers;  // rank 0: by rank, the first one without a socket. Other ranks: only rank 0
  std::string address;      // numeric, of this node's interface towards the other ranks
  int port = 0;             // where rank 0 listened
};

constexpr int kRendezvousPorts = 32;
int first_port(const RendezvousOptions& options);

// Brings all ranks of a job together. Rank 0 listens on the first free of kRendezvousPorts ports: within the node, for
// processes of the same user, if there is one node, else on all interfaces. The others look for it there. Returns when
// every rank is there; then nothing listens any more. RankError if ranks are missing at the limit or do not fit
// together; it names both sides.
Meeting meet(const RendezvousOptions& options);

}  // namespace octet
