#include "mesh/local_store.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace tandem::mesh {

namespace {

constexpr std::chrono::milliseconds kFirstLook{2}, kLastLook{50};

void limit_waits(int socket, std::chrono::milliseconds timeout) {
  const timeval limit = {.tv_sec = timeout.count() / 1000, .tv_usec = timeout.count() % 1000 * 1000};
  for (const int option : {SO_RCVTIMEO, SO_SNDTIMEO}) setsockopt(socket, SOL_SOCKET, option, &limit, sizeof limit);
}

}  // namespace

LocalStore::LocalStore(OwnedDescriptor socket, std::string who, std::chrono::milliseconds timeout,
                       std::unique_ptr<LocalStoreServer> server)
    : socket_(std::move(socket)), who_(std::move(who)), server_(std::move(server)) {
  timeout_ = timeout;
  limit_waits(socket_.get(), timeout);
}

// A late answer would be taken for that of the next call, so there is no next call.
void LocalStore::throw_lost(int error) const {
  shutdown(socket_.get(), SHUT_RDWR);
  const bool is_silent = error == EAGAIN || error == EWOULDBLOCK;
  throw EnvironmentError(is_silent ? no_answer() : fmt::format("{}: rank 0 is gone; look at what it said", who_));
}

std::string LocalStore::no_answer() const {
  return fmt::format("{}: rank 0 did not answer within {:g} s (--distributed-timeout-minutes)", who_,
                     static_cast<double>(timeout_.count()) / 1000.0);
}

void LocalStore::send(std::string_view bytes) const {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) throw_lost(errno);
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
}

// A descriptor comes with the first byte.
void LocalStore::receive(char* into, size_t bytes, OwnedDescriptor* descriptor) const {
  while (bytes > 0) {
    iovec part = {into, bytes};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int))> control = {};
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    const ssize_t received = recvmsg(socket_.get(), &message, MSG_CMSG_CLOEXEC);
    if (received < 0 && errno == EINTR) continue;
    if (received <= 0) throw_lost(received < 0 ? errno : ECONNRESET);
    const cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    if (rights != nullptr && rights->cmsg_type == SCM_RIGHTS) {
      int given = -1;
      std::memcpy(&given, CMSG_DATA(rights), sizeof given);
      OwnedDescriptor owned(given);
      if (descriptor != nullptr) *descriptor = std::move(owned);
    }
    into += received;
    bytes -= static_cast<size_t>(received);
  }
}

LocalStore::Answer LocalStore::ask(StoreCall call, const std::string& key, std::string_view value) {
  const std::scoped_lock lock(mutex_);
  const StoreRequest request = {
      .call = call, .key_bytes = static_cast<uint32_t>(key.size()), .value_bytes = value.size()};
  std::string message(reinterpret_cast<const char*>(&request), sizeof request);
  message += key;
  message += value;
  send(message);
  Answer answer;
  StoreReply reply;
  receive(reinterpret_cast<char*>(&reply), sizeof reply, &answer.descriptor);
  answer.number = reply.number;
  answer.bytes.resize(reply.bytes);
  receive(answer.bytes.data(), answer.bytes.size());
  return answer;
}

OwnedDescriptor LocalStore::connect(const std::string& key) {
  Answer answer = ask(StoreCall::kConnect, key);
  TANDEM_ENV_CHECK(answer.descriptor.get() >= 0,
                   fmt::format("{}: cannot connect to the other ranks: no descriptor is left (ulimit -n)", who_));
  return std::move(answer.descriptor);
}

void LocalStore::set(const std::string& key, const std::vector<uint8_t>& value) {
  ask(StoreCall::kSet, key, {reinterpret_cast<const char*>(value.data()), value.size()});
}

std::vector<uint8_t> LocalStore::get(const std::string& key) {
  wait({key}, timeout_);
  const std::string value = ask(StoreCall::kGet, key).bytes;
  return {value.begin(), value.end()};
}

int64_t LocalStore::add(const std::string& /*key*/, int64_t /*value*/) {
  TANDEM_CHECK(false, "nobody counts in the store of ranks");
}

bool LocalStore::deleteKey(const std::string& key) { return ask(StoreCall::kErase, key).number == 1; }

bool LocalStore::check(const std::vector<std::string>& keys) {
  for (const std::string& key : keys) {
    if (ask(StoreCall::kGet, key).number == 0) return false;
  }
  return true;
}

int64_t LocalStore::getNumKeys() { return ask(StoreCall::kCount, "").number; }

void LocalStore::wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) {
  const base::Clock::time_point give_up = base::Clock::now() + timeout;
  std::chrono::milliseconds pause = kFirstLook;
  while (!check(keys)) {
    if (base::Clock::now() >= give_up) throw EnvironmentError(no_answer());  // of the server there is one
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, kLastLook);
  }
}

c10::intrusive_ptr<c10d::Store> LocalStore::clone() { TANDEM_CHECK(false, "a store of one machine is not copied"); }

}  // namespace tandem::mesh
