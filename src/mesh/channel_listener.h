// A process listens here for the others of its run, which connect to it: at a local socket on its machine and, where
// that is wanted, at an address of a network. Nobody who comes over the network is believed, waited for, or kept,
// before the first words (mesh/handshake.h) have shown that he is of this run. For one thread, which never waits. No
// torch.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "mesh/channel.h"
#include "mesh/handshake.h"
#include "mesh/local_socket.h"
#include "mesh/network.h"

namespace tandem::mesh {

struct NetworkDoor {
  std::string address;               // to listen at, and nowhere else; "": the network has no door
  int port = 0;                      // 0: of the kernel's choice
  std::string secret;                // "": whoever comes is trusted (--trust-network)
  double stranger_patience_s = 5.0;  // for the few bytes of the first words
  size_t max_strangers = 64;         // at a time; the longest there goes first
};

class ChannelListener {
 public:
  // `local_name`: of the local socket. `patience_s`: of the channels, and for a machine that is silent.
  // EnvironmentError: another process listens there.
  ChannelListener(const std::string& local_name, NetworkDoor door, double patience_s);

  // The next one that has come and is known.
  std::unique_ptr<Channel> accept();
  // To poll: accept() has something to do when one of them can be read.
  std::vector<int> descriptors() const;

  // Of the network; 0 where nothing listens there.
  int port() const { return network_ ? port_of(*network_) : 0; }

 private:
  // Who has connected over the network, and is not known yet.
  struct Stranger {
    OwnedDescriptor socket;
    std::string address;
    Handshake handshake;
    base::Clock::time_point since;
  };
  void let_strangers_in();
  // Whether it is known now. ChannelClosed: it is nobody of this run.
  static bool hear(Stranger& stranger);
  void say_turned_away(const Stranger& stranger, const std::string& why);

  NetworkDoor door_;  // without its secret
  const double patience_s_;
  const std::unique_ptr<TlsKey> key_;  // null: whoever comes is trusted
  const LocalListener local_;
  std::optional<OwnedDescriptor> network_;
  std::list<Stranger> strangers_;  // in the order in which they came
  bool has_said_turned_away_ = false;
};

// Connects to a ChannelListener of another machine; null where nobody listens there. ChannelClosed: it is not of this
// run, or it did not answer within `patience_s`: its process is frozen, since one that runs looks at its door many
// times a second whatever it is busy with.
std::unique_ptr<Channel> connect_channel(const std::string& address, int port, std::string secret, double patience_s);

}  // namespace tandem::mesh
