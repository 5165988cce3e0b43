// The store through which ranks that are forks of one process find each other.
#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/check.h"

namespace tandem::device {

// A socket that is given to rank 0's store, so that nobody races for a port. It is made before the forks.
struct Listener {
  Listener() : socket(::socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
    socklen_t length = sizeof address;
    TANDEM_CHECK_EQ(bind(socket, reinterpret_cast<sockaddr*>(&address), length), 0);
    TANDEM_CHECK_EQ(listen(socket, 64), 0);
    TANDEM_CHECK_EQ(getsockname(socket, reinterpret_cast<sockaddr*>(&address), &length), 0);
    port = ntohs(address.sin_port);
  }
  ~Listener() { close(socket); }

  int socket;
  uint16_t port;
};

inline c10::intrusive_ptr<c10d::Store> open_store(const Listener& listener, int rank) {
  c10d::TCPStoreOptions options;
  options.port = listener.port;
  options.isServer = rank == 0;
  options.waitWorkers = false;
  if (options.isServer) {
    options.masterListenFd = listener.socket;
  } else {
    close(listener.socket);
  }
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

}  // namespace tandem::device
