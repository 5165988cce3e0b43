// Addresses of this host, and a socket that listens at one of them. IPv4. No torch.
#pragma once

#include <optional>
#include <string>

namespace tandem::mesh {

// A descriptor that is closed with this object.
class OwnedDescriptor {
 public:
  OwnedDescriptor() = default;
  explicit OwnedDescriptor(int descriptor) : descriptor_(descriptor) {}
  ~OwnedDescriptor() { close(); }
  OwnedDescriptor(OwnedDescriptor&& other) noexcept : descriptor_(other.release()) {}
  OwnedDescriptor& operator=(OwnedDescriptor&& other) noexcept;
  int get() const { return descriptor_; }
  int release();
  void close();

 private:
  int descriptor_ = -1;
};

// Returns the address of a host as digits ("10.0.0.7"), by its name. A machine that starts, or is started again, may
// get its name later than the processes that look for it: a name that nobody knows yet is asked for again for `wait_s`
// seconds, which a warning says at once. Throws EnvironmentError if it is still unknown then, and UserError if the host
// has no IPv4 address; `flag` names the flag that gives another host.
std::string address_of_host(const std::string& host, double wait_s, const std::string& flag = "MASTER_ADDR");
// These return addresses as digits, too: that of an interface of this host (--network-interface NAME), and the one from
// which this host reaches another, whose name is asked for as address_of_host() does. They throw UserError where there
// is none.
std::string address_of_interface(const std::string& name);
std::string address_that_reaches(const std::string& host, double wait_s);

// Returns this end's address of a connection over the network; "" of a local one.
std::string network_address_of(int descriptor);

// Returns whether the address is "127.x.x.x".
bool is_loopback(const std::string& address);

std::string host_name();

// The flags or variables that gave a place to listen at, for messages.
struct ListenFlags {
  std::string port = "MASTER_PORT, or --master-port of tandem launch";
  std::string address = "MASTER_ADDR, or --master-addr of tandem launch";
  std::string host = "";  // name from which the address was found; "": the address was given itself
};

// Listens at this address alone; with port 0 the kernel chooses one. Programs that this process starts do not inherit
// it. Throws EnvironmentError in a line if the port is in use, and where the address is not this host's but was found
// by a name, which may soon have another; UserError where such an address was given, or this user may not take the
// port.
OwnedDescriptor listen_at(const std::string& address, int port, const ListenFlags& flags = {});
// Listens at the host of rank 0, by its name or address. The name is asked for as address_of_host() does.
OwnedDescriptor listen_for_ranks(const std::string& host, int port, double wait_s);
int port_of(const OwnedDescriptor& listener);
// Timeout of making a connection, in seconds: a machine behind a firewall does not answer at all.
constexpr double kConnectsWithin = 1.0;
// Begins to connect without waiting, and returns a socket that does not block; nothing if nobody listens there.
std::optional<OwnedDescriptor> begin_to_connect(const std::string& address, int port);
// Returns whether the connection that begin_to_connect() began is made; nullopt while the other machine has not
// answered, until when the socket is not writable.
std::optional<bool> is_connected(const OwnedDescriptor& connection);
// Returns a socket that blocks; nothing if nobody listens there, or answers within kConnectsWithin.
std::optional<OwnedDescriptor> connect_to(const std::string& address, int port);
bool can_connect(const std::string& address, int port);
// Returns the next connection to a listener that does not block, if there is one, and the address from which it came.
std::optional<OwnedDescriptor> accept_from(const OwnedDescriptor& listener, std::string* address);
// Returns whether the descriptor is a socket that listens.
bool listens(int descriptor);

// Prepares a connection between machines: small messages go at once, and it ends when the other machine has been silent
// for about so long.
void watch_connection(const OwnedDescriptor& connection, double seconds);
// Ends every TCP connection that this process has now when its other host has been silent for about so long: switched
// off, or behind a cut link. A process that ends closes its connections itself.
void end_connections_to_silent_hosts(double seconds);

}  // namespace tandem::mesh
