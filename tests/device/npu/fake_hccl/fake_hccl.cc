#include "tests/device/npu/fake_hccl/fake_hccl.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device/npu/hccl_calls.h"
#include "tests/device/npu/fake_cann/fake_cann.h"
#include "tests/pretend_device/device_address.h"

namespace npu = tandem::device::npu;

namespace {

// Returns where this process sees memory of a device: that of a pretended one (tests/pretend_device) has a bit in its
// addresses.
std::byte* seen(const void* address) {
  return reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(address) & ~tandem::pretend_device::kDeviceBit);
}

using Clock = std::chrono::steady_clock;

struct Options {
  double connect_s = 10;
  uint64_t shuffle_seed = 0;
  bool is_deaf = false;
  int async_error = 0;
  std::string failing_call;
  int failure = 0;
};

std::mutex options_mutex;
Options options;

Options options_now() {
  const std::lock_guard lock(options_mutex);
  return options;
}

// A call begins with this. Returns the code that it must return at once, or 0.
int begin(const std::string& call) {
  const std::lock_guard lock(options_mutex);
  if (options.failing_call != call) return 0;
  options.failing_call.clear();
  return options.failure;
}

// A rank's end of a group: a connection to each other rank.
struct Group {
  uint32_t rank = 0;
  std::vector<int> connections;  // by rank; -1 for its own
  int error = 0;                 // what HcclGetCommAsyncError reports
  std::mt19937_64 random;
};

// Rank r of a group listens at the group's name and r. The name is abstract, so that nothing stays on a disk.
sockaddr_un address_of(const std::string& group, uint32_t rank, socklen_t& length) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  const std::string name = group + "." + std::to_string(rank);
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

int listen_at(const std::string& group, uint32_t rank) {
  const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  socklen_t length = 0;
  const sockaddr_un address = address_of(group, rank, length);
  if (::bind(listener, reinterpret_cast<const sockaddr*>(&address), length) == 0 && ::listen(listener, 64) == 0) {
    return listener;
  }
  ::close(listener);
  return -1;
}

// Calls `attempt` until it returns a socket, or the time is over: then -1.
template <typename Attempt>
int keep_trying(Clock::time_point deadline, const Attempt& attempt) {
  for (;;) {
    if (const int connection = attempt(); connection >= 0) return connection;
    if (Clock::now() >= deadline) return -1;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

int connect_to(const std::string& group, uint32_t rank, uint32_t own_rank) {
  const int connection = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  socklen_t length = 0;
  const sockaddr_un address = address_of(group, rank, length);
  if (::connect(connection, reinterpret_cast<const sockaddr*>(&address), length) == 0 &&
      ::send(connection, &own_rank, sizeof own_rank, MSG_NOSIGNAL) == sizeof own_rank) {
    return connection;
  }
  ::close(connection);
  return -1;
}

// Waits for one rank that connects and says who it is. Returns false when the time is over.
bool accept_one(int listener, Clock::time_point deadline, std::vector<int>& connections) {
  const int connection = keep_trying(deadline, [&] { return ::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC); });
  uint32_t rank = 0;
  if (connection < 0 || ::recv(connection, &rank, sizeof rank, MSG_WAITALL) != sizeof rank) return false;
  connections.at(rank) = connection;
  return true;
}

// One tensor on its way to or from another rank: first how many bytes it has, then these.
struct Transfer {
  bool is_sent = false;
  char* data = nullptr;
  uint64_t bytes = 0, stated_bytes = 0, done = 0;  // `done` counts the statement's bytes too
  int connection = -1;

  bool is_over() const { return done == sizeof stated_bytes + bytes; }
  // Moves what can be moved now. Returns an error of HCCL's, or 0.
  int move() {
    while (!is_over()) {
      const bool states = done < sizeof stated_bytes;
      char* const at = states ? reinterpret_cast<char*>(&stated_bytes) + done : data + (done - sizeof stated_bytes);
      const size_t left = states ? sizeof stated_bytes - done : sizeof stated_bytes + bytes - done;
      const ssize_t moved = is_sent ? ::send(connection, seen(at), left, MSG_NOSIGNAL | MSG_DONTWAIT)
                                    : ::recv(connection, seen(at), left, MSG_DONTWAIT);
      if (moved < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
      if (moved <= 0) return npu::kHcclRemoteError;
      done += static_cast<uint64_t>(moved);
      if (!is_sent && done == sizeof stated_bytes && stated_bytes != bytes) return npu::kHcclInvalidParameter;
    }
    return 0;
  }
};

// Makes progress with all transfers of one call. Returns what work of fake_cann's streams returns.
int move_all(Group& group, std::vector<Transfer>& transfers) {
  const Options now = options_now();
  if (group.error != 0 || now.async_error != 0) return fake_cann::kNotReady;
  if (now.shuffle_seed != 0) {  // one of them alone moves, and the others wait
    if (Transfer& one = transfers[group.random() % transfers.size()]; !one.is_over()) group.error = one.move();
  } else {
    for (Transfer& transfer : transfers) {
      if (const int error = transfer.move(); error != 0) group.error = error;
    }
  }
  if (now.is_deaf && group.error == npu::kHcclRemoteError) group.error = 0;
  for (const Transfer& transfer : transfers) {
    if (!transfer.is_over()) return fake_cann::kNotReady;
  }
  return 0;
}

}  // namespace

extern "C" {

void fake_hccl_set(const char* option, const char* value) {
  const std::lock_guard lock(options_mutex);
  const std::string name = option, text = value;
  if (name == "connect_s") options.connect_s = std::atof(value);
  if (name == "shuffle") options.shuffle_seed = std::strtoull(value, nullptr, 10);
  if (name == "deaf") options.is_deaf = text == "1";
  if (name == "async_error") options.async_error = std::atoi(value);
  if (name == "fail") {
    options.failing_call = text.substr(0, text.find(':'));
    options.failure = std::atoi(text.substr(text.find(':') + 1).c_str());
  }
}

int HcclGetRootInfo(npu::HcclRootInfo* root) {
  if (const int failure = begin("HcclGetRootInfo")) return failure;
  if (fake_cann::begin_with_context("HcclGetRootInfo") != 0) return npu::kHcclNullPointer;
  const std::string name = "fake_hccl." + std::to_string(::getpid()) + "." + std::to_string(std::random_device()());
  *root = {};
  std::memcpy(root->bytes.data(), name.data(), name.size());
  return 0;
}

int HcclCommInitRootInfo(uint32_t size, const npu::HcclRootInfo* root, uint32_t rank, void** result) {
  if (const int failure = begin("HcclCommInitRootInfo")) return failure;
  if (fake_cann::begin_with_context("HcclCommInitRootInfo") != 0) return npu::kHcclNullPointer;
  if (rank >= size) return npu::kHcclInvalidParameter;
  const Options now = options_now();
  const Clock::time_point deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(now.connect_s));
  const std::string name = root->bytes.data();
  auto group = std::make_unique<Group>();
  group->rank = rank;
  group->random.seed(now.shuffle_seed + rank);
  group->connections.assign(size, -1);
  const int listener = listen_at(name, rank);
  if (listener < 0) return npu::kHcclInvalidParameter;  // the rank is there twice
  bool are_all = true;
  for (uint32_t other = 0; other < rank && are_all; ++other) {
    group->connections[other] = keep_trying(deadline, [&] { return connect_to(name, other, rank); });
    are_all = group->connections[other] >= 0;
  }
  for (uint32_t later = rank + 1; later < size && are_all; ++later) {
    are_all = accept_one(listener, deadline, group->connections);
  }
  ::close(listener);
  if (!are_all) return npu::kHcclTimeout;
  *result = group.release();
  return 0;
}

int HcclBatchSendRecv(npu::HcclSendRecvItem* items, uint32_t count, void* comm, void* stream) {
  if (const int failure = begin("HcclBatchSendRecv")) return failure;
  auto* const group = static_cast<Group*>(comm);
  if (group == nullptr || items == nullptr) return npu::kHcclNullPointer;
  if (count == 0) return npu::kHcclInvalidParameter;
  auto transfers = std::make_shared<std::vector<Transfer>>();
  std::map<std::pair<int32_t, uint32_t>, int> seen;
  for (uint32_t i = 0; i < count; ++i) {
    const npu::HcclSendRecvItem& item = items[i];
    const bool is_right = (item.type == npu::kHcclSend || item.type == npu::kHcclReceive) && item.data != nullptr &&
                          item.count > 0 && item.data_type == npu::kHcclBytes &&
                          item.remote_rank < group->connections.size() && item.remote_rank != group->rank;
    if (!is_right || ++seen[{item.type, item.remote_rank}] > 1) return npu::kHcclInvalidParameter;
    transfers->push_back({.is_sent = item.type == npu::kHcclSend,
                          .data = static_cast<char*>(item.data),
                          .bytes = item.count,
                          .stated_bytes = item.type == npu::kHcclSend ? item.count : 0,
                          .connection = group->connections[item.remote_rank]});
  }
  const int queued = fake_cann::enqueue(stream, [group, transfers] { return move_all(*group, *transfers); });
  return queued == 0 ? npu::kHcclSuccess : npu::kHcclInvalidParameter;
}

int HcclGetCommAsyncError(void* comm, int* error) {
  if (const int failure = begin("HcclGetCommAsyncError")) return failure;
  const int planned = options_now().async_error;
  *error = planned != 0 ? planned : static_cast<Group*>(comm)->error;
  return 0;
}

const char* HcclGetErrorString(int result) {
  switch (result) {
    case npu::kHcclInvalidParameter: return "parameter error";
    case npu::kHcclTimeout: return "timeout";
    case npu::kHcclRemoteError: return "remote error";
    default: return "unknown error";
  }
}

int HcclCommDestroy(void* comm) {
  if (const int failure = begin("HcclCommDestroy")) return failure;
  auto* const group = static_cast<Group*>(comm);
  for (const int connection : group->connections) {
    if (connection >= 0) ::close(connection);
  }
  delete group;
  return 0;
}

}  // extern "C"
