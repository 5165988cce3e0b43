// The address of a process that scores: a name, by which processes of the same user on the same machine find it, or
// HOST:PORT. One with HOST:PORT is found on its own machine without the network too. No torch.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/host_port.h"
#include "mesh/channel.h"
#include "mesh/channel_connector.h"

namespace tandem::scorer {

struct Address {
  std::string text;                     // as the user gave it
  std::optional<base::HostPort> place;  // nullopt: on this machine alone

  // Returns the name of the local socket.
  std::string local_name() const;
};

// Throws UserError, which names `flag`, if the text is neither HOST:PORT nor a name of 1 to 32 letters, digits and '-'
// that is not a number alone: whoever gives a number means a port.
Address address_of(const std::string& text, const std::string& flag);

// Returns the secret of TANDEM_SECRET_FILE, or "". Throws UserError if its file is not as mesh/secret.h wants it.
std::string own_secret();

// Throws UserError, which names `flag`, for a place on the network that neither a secret nor --trust-network guards.
void check_guarded(const Address& address, bool has_secret, bool trust_network, const std::string& flag);

// Connects to the process of this user that listens there on this machine; returns null if there is none.
std::unique_ptr<mesh::Channel> connect_here(const Address& address, double patience_s);
// Begins to connect to the process that listens there on the network; returns null if the address is of this machine
// alone. `secret` may be "".
std::unique_ptr<mesh::ChannelConnector> connect_there(const Address& address, const std::string& secret,
                                                      double patience_s);

}  // namespace tandem::scorer
