#include "mesh/local_store_server.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

#include "base/check.h"

namespace tandem::mesh {

namespace {

constexpr uint64_t kMaxKeyBytes = 4096, kMaxValueBytes = 16 << 20;

}  // namespace

LocalStoreServer::LocalStoreServer(const std::string& name, const std::string& remedy)
    : listener_(name, remedy), stop_(eventfd(0, EFD_CLOEXEC)) {
  TANDEM_ENV_CHECK(stop_.get() >= 0, "cannot serve the ranks' store: no descriptor is left (ulimit -n)");
  thread_ = std::thread([this] { serve(); });
}

LocalStoreServer::~LocalStoreServer() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(stop_.get(), &one, sizeof one);
  thread_.join();
}

void LocalStoreServer::serve() {
  while (true) {
    std::vector<pollfd> polled = {{stop_.get(), POLLIN, 0}, {listener_.descriptor(), POLLIN, 0}};
    for (const Client& client : clients_) polled.push_back({client.socket.get(), POLLIN, 0});
    poll(polled.data(), polled.size(), -1);
    if (polled[0].revents != 0) return;
    auto ready = std::next(polled.begin(), 2);
    for (auto client = clients_.begin(); client != clients_.end(); ++ready) {
      client = ready->revents == 0 || hear(*client) ? std::next(client) : clients_.erase(client);
    }
    while (std::optional<OwnedDescriptor> socket = listener_.accept()) {
      fcntl(socket->get(), F_SETFL, O_NONBLOCK);
      clients_.push_back({.socket = std::move(*socket)});
    }
  }
}

bool LocalStoreServer::hear(Client& client) {
  std::array<char, 65536> buffer;
  const ssize_t received = recv(client.socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (received < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (received <= 0) return false;
  client.unread.append(buffer.data(), static_cast<size_t>(received));
  StoreRequest request;
  while (client.unread.size() >= sizeof request) {
    std::memcpy(&request, client.unread.data(), sizeof request);
    if (request.key_bytes > kMaxKeyBytes || request.value_bytes > kMaxValueBytes) return false;
    const size_t whole = sizeof request + request.key_bytes + request.value_bytes;
    if (client.unread.size() < whole) return true;
    const std::string key = client.unread.substr(sizeof request, request.key_bytes);
    const std::string value = client.unread.substr(sizeof request + request.key_bytes, request.value_bytes);
    client.unread.erase(0, whole);
    if (!answer(client, request.call, key, value)) return false;
  }
  return true;
}

bool LocalStoreServer::answer(const Client& client, StoreCall call, const std::string& key, std::string_view value) {
  const auto found = values_.find(key);
  const bool is_there = found != values_.end();
  switch (call) {
    case StoreCall::kSet: values_[key] = value; return send(client, is_there ? 1 : 0, "");
    case StoreCall::kGet: return send(client, is_there ? 1 : 0, is_there ? found->second : "");
    case StoreCall::kErase: values_.erase(key); return send(client, is_there ? 1 : 0, "");
    case StoreCall::kCount: return send(client, std::ssize(values_), "");
    case StoreCall::kConnect:
      if (const auto half = halves_.find(key); half != halves_.end()) {
        const OwnedDescriptor second = std::move(half->second);
        halves_.erase(half);
        return send(client, 1, "", second.get());
      }
      std::array<int, 2> ends = {-1, -1};
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) return false;
      const OwnedDescriptor first(ends[0]);
      halves_[key] = OwnedDescriptor(ends[1]);
      return send(client, 0, "", first.get());
  }
  return false;
}

// A process of ours has at most one answer to read, which the kernel takes at once unless it is very long.
bool LocalStoreServer::send(const Client& client, int64_t number, std::string_view bytes, int descriptor) {
  const StoreReply reply = {.number = number, .bytes = bytes.size()};
  std::string all(reinterpret_cast<const char*>(&reply), sizeof reply);
  all += bytes;
  for (size_t sent = 0; sent < all.size();) {
    iovec part = {all.data() + sent, all.size() - sent};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof descriptor)> control = {};
    if (descriptor >= 0 && sent == 0) {
      message.msg_control = control.data();
      message.msg_controllen = control.size();
      cmsghdr* const rights = CMSG_FIRSTHDR(&message);
      rights->cmsg_level = SOL_SOCKET;
      rights->cmsg_type = SCM_RIGHTS;
      rights->cmsg_len = CMSG_LEN(sizeof descriptor);
      std::memcpy(CMSG_DATA(rights), &descriptor, sizeof descriptor);
    }
    const ssize_t count = sendmsg(client.socket.get(), &message, MSG_NOSIGNAL);
    if (count >= 0) {
      sent += static_cast<size_t>(count);
    } else if (errno == EAGAIN) {
      constexpr int kPatienceMs = 5000;
      pollfd ready = {client.socket.get(), POLLOUT, 0};
      if (poll(&ready, 1, kPatienceMs) == 0) return false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

}  // namespace tandem::mesh
