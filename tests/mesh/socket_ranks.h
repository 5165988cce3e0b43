// Connections between ranks that are forks of the test program, made before the forks.
#pragma once

#include <sys/socket.h>

#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/check.h"
#include "mesh/channel.h"

namespace tandem::mesh {

using TlsEnds = std::pair<std::unique_ptr<TlsSession>, std::unique_ptr<TlsSession>>;

// The two ends of a TLS session whose handshake is done.
inline TlsEnds tls_ends(const std::string& secret) {
  const TlsKey listens(secret, ChannelEnd::kListens), connects(secret, ChannelEnd::kConnects);
  auto a = std::make_unique<TlsSession>(listens), b = std::make_unique<TlsSession>(connects);
  for (bool is_done = false; !is_done;) {
    const bool is_b_done = b->shake_hands();
    a->add(b->take_words());
    is_done = a->shake_hands() && is_b_done;
    b->add(a->take_words());
  }
  return {std::move(a), std::move(b)};
}

class ForkedConnections {
 public:
  // `secret` is that of TLS on all connections; "": nothing is encrypted.
  explicit ForkedConnections(int size, const std::string& secret = "") : ends_(static_cast<size_t>(size)) {
    for (auto& row : ends_) row.resize(ends_.size());
    for (size_t a = 0; a < ends_.size(); ++a) {
      for (size_t b = a + 1; b < ends_.size(); ++b) {
        int pair[2];
        TANDEM_CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        ends_[a][b].socket = OwnedDescriptor(pair[0]);
        ends_[b][a].socket = OwnedDescriptor(pair[1]);
        if (!secret.empty()) std::tie(ends_[a][b].tls, ends_[b][a].tls) = tls_ends(secret);
      }
    }
  }
  // Takes the connections of one rank, once: the others' are closed in this process.
  std::vector<Connection> take(int rank) {
    std::vector<Connection> own = std::move(ends_[static_cast<size_t>(rank)]);
    close();
    return own;
  }
  // Call it in the process that forked: its ends would keep the connections of a rank open when that has died.
  void close() { ends_.clear(); }

 private:
  std::vector<std::vector<Connection>> ends_;
};

}  // namespace tandem::mesh
