// Descriptors that close themselves, and the lines between processes: pipes and socket pairs, over which descriptors
// may come along. EnvironmentError when the machine has no more of them.
#pragma once

#include <sys/types.h>

#include <string_view>
#include <utility>
#include <vector>

namespace tandem::worker {

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor() { close(); }
  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  void close();

 private:
  int fd_ = -1;
};

// All descriptors are closed on exec and clear of the numbers that a child's own descriptors take.
std::pair<Descriptor, Descriptor> make_pipe();  // to read from, to write to
std::pair<Descriptor, Descriptor> make_socket_pair();
Descriptor duplicate(const Descriptor& descriptor);
void set_nonblocking(const Descriptor& descriptor);
// Makes the kernel tell with each message from here on who has sent it (Received::sender).
void ask_for_senders(const Descriptor& socket);

// Works as send(2), without a signal; the descriptors arrive with the first byte.
ssize_t send(int socket, std::string_view bytes, const std::vector<int>& descriptors = {});

struct Received {
  ssize_t num_bytes = 0;  // as recv(2) returns it
  std::vector<Descriptor> descriptors;
  pid_t sender = -1;  // the process id as we see it; -1: not asked for
};
Received receive(int socket, char* buffer, size_t num_bytes);

// Waits until there is something to read, or the other end has closed. Returns false when the time has passed.
bool wait_to_read(const Descriptor& descriptor, double seconds);

}  // namespace tandem::worker
