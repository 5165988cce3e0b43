// Listens for the other processes of a run, which connect at a local socket on its machine and, if asked, at an address
// of a network. A process that comes over the network is not believed, waited for, or kept, before the first words
// (mesh/handshake.h) have shown that it belongs to the run. For one thread, which never waits. No torch.
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
  std::string address;                    // the only address to listen at; "": none
  int port = 0;                           // 0: the kernel chooses
  std::string secret;                     // "": every connection is trusted (--trust-network)
  double stranger_patience_s = 5.0;       // timeout for the few bytes of the first words
  size_t max_strangers = 64;              // most at a time; the oldest goes first
  std::string flag = "--rollout-listen";  // the flag that gives another port, for messages
};

class ChannelListener {
 public:
  // `local_name` is the name of the local socket. `patience_s` is the timeout of the channels, and of a machine that is
  // silent. Throws EnvironmentError if another process listens there; `remedy` is the end of its line, and `shown` its
  // beginning, as LocalListener has them.
  ChannelListener(const std::string& local_name, NetworkDoor door, double patience_s,
                  const std::string& remedy = "is the run running already?", const std::string& shown = "");

  // Returns the next process that has connected and is known.
  std::unique_ptr<Channel> accept();
  // Poll these: accept() has something to do when one of them can be read.
  std::vector<int> descriptors() const;

  // Returns the network's port; 0 if nothing listens there.
  int port() const { return network_ ? port_of(*network_) : 0; }

 private:
  // A process that has connected over the network, and is not known yet.
  struct Stranger {
    OwnedDescriptor socket;
    std::string address;
    Handshake handshake;
    base::Clock::time_point since;
  };
  void let_strangers_in();
  // Returns whether it is known now. Throws ChannelClosed if it does not belong to this run.
  static bool hear(Stranger& stranger);
  void say_turned_away(const Stranger& stranger, const std::string& why);

  NetworkDoor door_;  // address and port, without the secret
  const double patience_s_;
  const std::unique_ptr<TlsKey> key_;  // null: every connection is trusted
  const LocalListener local_;
  std::optional<OwnedDescriptor> network_;
  std::list<Stranger> strangers_;  // in the order in which they came
  bool has_said_turned_away_ = false;
};

}  // namespace tandem::mesh
