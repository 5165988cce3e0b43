#include "mesh/launch/launcher_link.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <utility>

#include "base/check.h"

namespace tandem::mesh {

namespace {

constexpr size_t kMaxBytes = 4096;  // most bytes of one end's message
constexpr auto kBeatEvery = std::chrono::milliseconds(500);
// So many seconds of silence are normal: a program is loaded from a slow disk, a busy machine is late with a beat.
constexpr double kLongestStart = 60.0, kLongestBetweenBeats = 3.0;

}  // namespace

RankLink::RankLink() {
  std::array<int, 2> ends = {-1, -1};
  // A message is one worker's end, or one beat the other way; when it is closed, no more workers end.
  TANDEM_ENV_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) == 0,
                   "cannot start the processes: no descriptor is left (ulimit -n)");
  ours_ = OwnedDescriptor(ends[0]);
  theirs_ = OwnedDescriptor(ends[1]);
}

void RankLink::tell(const WorkerEnd& end) const {
  const std::string text = fmt::format("{} {}", end.code, end.how).substr(0, kMaxBytes);
  send(ours_.get(), text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
}

void RankLink::close() const { shutdown(ours_.get(), SHUT_WR); }

bool RankLink::is_silent_for(double seconds) {
  char beat = 0;
  while (recv(ours_.get(), &beat, sizeof beat, MSG_DONTWAIT) > 0) {
    has_beaten_ = true;
    silence_.reset();
  }
  return silence_.seconds() > std::max(seconds, has_beaten_ ? kLongestBetweenBeats : kLongestStart);
}

std::optional<bool> StartedWorkers::have_all_ended() {
  if (!descriptor_) return std::nullopt;
  std::array<char, kMaxBytes> buffer;
  while (!have_ended_) {
    const ssize_t size = recv(*descriptor_, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (size < 0 && errno == EINTR) continue;
    TANDEM_ENV_CHECK(size >= 0,
                     fmt::format("TANDEM_LAUNCHER_FD={}: is no socket of a launcher; unset it", *descriptor_));
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

Heartbeat::Heartbeat(std::optional<int> launcher_descriptor) {
  if (!launcher_descriptor) return;
  fcntl(*launcher_descriptor, F_SETFD, FD_CLOEXEC);
  thread_ = std::jthread([descriptor = *launcher_descriptor](const std::stop_token& end) {
    const char beat = 1;
    std::mutex mutex;
    std::condition_variable_any never;
    std::unique_lock lock(mutex);
    do {
      send(descriptor, &beat, sizeof beat, MSG_NOSIGNAL | MSG_DONTWAIT);
    } while (!never.wait_for(lock, end, kBeatEvery, [&end] { return end.stop_requested(); }));
  });
}

}  // namespace tandem::mesh
