#include "worker/lines.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>

#include "base/check.h"

namespace tandem::worker {
namespace {

constexpr int kFirstOwnFd = 10;  // ours stay clear of 0..3, which a child's are moved to
constexpr size_t kMaxDescriptors = 8;

Descriptor above_standard(int fd, const char* what) {
  Descriptor low(fd);
  TANDEM_ENV_CHECK(fd >= 0, "cannot start a worker process:", what, std::strerror(errno));
  if (fd >= kFirstOwnFd) return low;
  return duplicate(low);
}

std::pair<Descriptor, Descriptor> above_standard(const std::array<int, 2>& fds, const char* what) {
  Descriptor second(fds[1]);
  Descriptor first = above_standard(fds[0], what);
  return {std::move(first), duplicate(second)};
}

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

void Descriptor::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Descriptor duplicate(const Descriptor& descriptor) {
  const int high = ::fcntl(descriptor.get(), F_DUPFD_CLOEXEC, kFirstOwnFd);
  TANDEM_ENV_CHECK(high >= 0, "cannot start a worker process: fcntl:", std::strerror(errno));
  return Descriptor(high);
}

std::pair<Descriptor, Descriptor> make_pipe() {
  std::array<int, 2> fds = {-1, -1};
  TANDEM_ENV_CHECK(::pipe2(fds.data(), O_CLOEXEC) == 0, "cannot start a worker process: pipe:", std::strerror(errno));
  return above_standard(fds, "pipe:");
}

std::pair<Descriptor, Descriptor> make_socket_pair() {
  std::array<int, 2> fds = {-1, -1};
  TANDEM_ENV_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()) == 0,
                   "cannot start a worker process: socketpair:", std::strerror(errno));
  return above_standard(fds, "socketpair:");
}

void set_nonblocking(const Descriptor& descriptor) {
  const int flags = ::fcntl(descriptor.get(), F_GETFL);
  TANDEM_CHECK(flags >= 0 && ::fcntl(descriptor.get(), F_SETFL, flags | O_NONBLOCK) == 0, std::strerror(errno));
}

void ask_for_senders(const Descriptor& socket) {
  const int yes = 1;
  TANDEM_CHECK(::setsockopt(socket.get(), SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes) == 0, std::strerror(errno));
}

ssize_t send(int socket, std::string_view bytes, const std::vector<int>& descriptors) {
  iovec content = {const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message = {};
  message.msg_iov = &content;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int))> control = {};
  if (!descriptors.empty()) {
    TANDEM_CHECK(descriptors.size() <= kMaxDescriptors, descriptors.size());
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(descriptors.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), descriptors.data(), descriptors.size() * sizeof(int));
  }
  return ::sendmsg(socket, &message, MSG_NOSIGNAL);
}

Received receive(int socket, char* buffer, size_t num_bytes) {
  iovec content = {buffer, num_bytes};
  msghdr message = {};
  message.msg_iov = &content;
  message.msg_iovlen = 1;
  alignas(cmsghdr) std::array<char, CMSG_SPACE(kMaxDescriptors * sizeof(int)) + CMSG_SPACE(sizeof(ucred))> control = {};
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  Received received;
  received.num_bytes = ::recvmsg(socket, &message, MSG_CMSG_CLOEXEC);
  if (received.num_bytes < 0) return received;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET) continue;
    if (header->cmsg_type == SCM_RIGHTS) {
      std::array<int, kMaxDescriptors> fds = {};
      const size_t count = std::min((header->cmsg_len - CMSG_LEN(0)) / sizeof(int), fds.size());
      std::memcpy(fds.data(), CMSG_DATA(header), count * sizeof(int));
      for (size_t i = 0; i < count; ++i) received.descriptors.emplace_back(fds[i]);
    } else if (header->cmsg_type == SCM_CREDENTIALS) {
      ucred sender = {};
      std::memcpy(&sender, CMSG_DATA(header), sizeof sender);
      received.sender = sender.pid;
    }
  }
  return received;
}

bool wait_to_read(const Descriptor& descriptor, double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto give_up = Clock::now() + std::chrono::duration<double>(seconds);
  while (true) {
    pollfd polled = {descriptor.get(), POLLIN, 0};
    const double left_ms = std::chrono::duration<double, std::milli>(give_up - Clock::now()).count();
    const int ready = ::poll(&polled, 1, static_cast<int>(std::ceil(std::max(left_ms, 0.0))));
    if (ready > 0) return true;
    if (ready == 0 || left_ms <= 0) return false;
  }
}

}  // namespace tandem::worker
