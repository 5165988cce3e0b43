#include "mesh/started_workers.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <utility>

#include "base/check.h"

namespace tandem::mesh {

namespace {

constexpr size_t kMaxBytes = 4096;  // of one end

}  // namespace

WorkerEndsTeller::WorkerEndsTeller() {
  std::array<int, 2> ends = {-1, -1};
  // A message is one worker's end; closed, there are no more.
  TANDEM_ENV_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) == 0,
                   "cannot start the processes: no descriptor is left (ulimit -n)");
  ours_ = OwnedDescriptor(ends[0]);
  theirs_ = OwnedDescriptor(ends[1]);
}

void WorkerEndsTeller::tell(const WorkerEnd& end) const {
  const std::string text = fmt::format("{} {}", end.code, end.how).substr(0, kMaxBytes);
  send(ours_.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void WorkerEndsTeller::close() const { shutdown(ours_.get(), SHUT_WR); }

bool WorkerEndsTeller::has_beaten() const {
  bool has_beaten = false;
  char beat = 0;
  while (recv(ours_.get(), &beat, sizeof beat, MSG_DONTWAIT) > 0) has_beaten = true;
  return has_beaten;
}

void StartedWorkers::beat() const {
  const char beat = 1;
  if (socket_.get() >= 0) send(socket_.get(), &beat, sizeof beat, MSG_NOSIGNAL | MSG_DONTWAIT);
}

StartedWorkers::StartedWorkers(std::optional<int> descriptor) {
  if (!descriptor) return;
  socket_ = OwnedDescriptor(*descriptor);
  fcntl(socket_.get(), F_SETFD, FD_CLOEXEC);
}

std::optional<bool> StartedWorkers::have_all_ended() {
  if (socket_.get() < 0) return std::nullopt;
  std::array<char, kMaxBytes> buffer;
  while (!have_ended_) {
    const ssize_t size = recv(socket_.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (size < 0 && errno == EINTR) continue;
    TANDEM_ENV_CHECK(size >= 0,
                     fmt::format("TANDEM_WORKERS_FD={}: is no socket of a launcher; unset it", socket_.get()));
    have_ended_ = size == 0;
    if (have_ended_) break;
    WorkerEnd end;
    const char* const last = buffer.data() + size;
    const char* const behind = std::from_chars(buffer.data(), last, end.code).ptr;
    if (behind < last) end.how.assign(behind + 1, last);
    if (!first_end_ || (first_end_->code == 0 && end.code != 0)) first_end_ = std::move(end);
  }
  return true;
}

}  // namespace tandem::mesh
