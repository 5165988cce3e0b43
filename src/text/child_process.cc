#include "text/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "text/child_environment.h"
#include "text/message.h"
#include "text/utf8_stream.h"

namespace tandem::text {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kChannelFd = 3;    // where the child finds its socket (protocol.py)
constexpr int kFirstOwnFd = 10;  // ours stay clear of 0..3, which the child's are moved to
constexpr size_t kOutputTailBytes = 4096;

// Time to die by itself for a child that closed its line, so that we report its own exit and not our signal.
constexpr auto kExitGrace = std::chrono::milliseconds(1000);

Descriptor above_standard(int fd, const char* what) {
  Descriptor low(fd);
  TANDEM_ENV_CHECK(fd >= 0, "cannot start a worker process:", what, std::strerror(errno));
  if (fd >= kFirstOwnFd) return low;
  const int high = ::fcntl(fd, F_DUPFD_CLOEXEC, kFirstOwnFd);
  TANDEM_ENV_CHECK(high >= 0, "cannot start a worker process: fcntl:", std::strerror(errno));
  return Descriptor(high);
}

std::pair<Descriptor, Descriptor> make_pipe() {
  std::array<int, 2> fds = {-1, -1};
  TANDEM_ENV_CHECK(::pipe2(fds.data(), O_CLOEXEC) == 0, "cannot start a worker process: pipe:", std::strerror(errno));
  Descriptor second(fds[1]);
  fds[1] = -1;
  Descriptor first = above_standard(fds[0], "pipe:");
  const int write_fd = ::fcntl(second.get(), F_DUPFD_CLOEXEC, kFirstOwnFd);
  return {std::move(first), above_standard(write_fd, "pipe:")};
}

std::pair<Descriptor, Descriptor> make_socket_pair() {
  std::array<int, 2> fds = {-1, -1};
  TANDEM_ENV_CHECK(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds.data()) == 0,
                   "cannot start a worker process: socketpair:", std::strerror(errno));
  Descriptor second(fds[1]);
  Descriptor first = above_standard(fds[0], "socketpair:");
  const int second_fd = ::fcntl(second.get(), F_DUPFD_CLOEXEC, kFirstOwnFd);
  return {std::move(first), above_standard(second_fd, "socketpair:")};
}

void set_nonblocking(const Descriptor& descriptor) {
  const int flags = ::fcntl(descriptor.get(), F_GETFL);
  TANDEM_CHECK(flags >= 0 && ::fcntl(descriptor.get(), F_SETFL, flags | O_NONBLOCK) == 0, std::strerror(errno));
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> result;
  result.reserve(texts.size() + 1);
  for (std::string& text : texts) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// posix_spawn, not fork: it shares the parent's memory until exec, so its cost does not grow with the trainer.
pid_t spawn(const std::vector<int>& child_fds, std::vector<std::string> arguments, std::vector<std::string> environment,
            const std::string& python_flag) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  TANDEM_ENV_CHECK(posix_spawn_file_actions_init(&actions) == 0 && posix_spawnattr_init(&attributes) == 0,
                   "cannot start a worker process: out of memory");
  int error = 0;
  for (size_t target = 0; target < child_fds.size() && error == 0; ++target) {
    error = posix_spawn_file_actions_adddup2(&actions, child_fds[target], static_cast<int>(target));
  }
  if (error == 0) error = posix_spawn_file_actions_addclosefrom_np(&actions, static_cast<int>(child_fds.size()));
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  pid_t pid = -1;
  if (error == 0) {
    error = posix_spawnp(&pid, arguments[0].c_str(), &actions, &attributes, pointers(arguments).data(),
                         pointers(environment).data());
  }
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  TANDEM_USER_CHECK(error == 0 || python_flag.empty(), fmt::format("{} {}: {}; name a Python interpreter, 3.9 or newer",
                                                                   python_flag, arguments[0], std::strerror(error)));
  TANDEM_ENV_CHECK(error == 0,
                   fmt::format("cannot start the Python interpreter {}: {}; run `make setup`, or name another one",
                               arguments[0], std::strerror(error)));
  return pid;
}

// -1 when there is no such process.
pid_t parent_of(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);
  const size_t name_end = line.rfind(')');
  char state = 0;
  pid_t parent = -1;
  if (name_end != std::string::npos) std::istringstream(line.substr(name_end + 1)) >> state >> parent;
  return parent;
}

std::string describe_exit(int status) {
  if (WIFSIGNALED(status)) return fmt::format("was killed by signal {}", WTERMSIG(status));
  return fmt::format("exited with code {}", WEXITSTATUS(status));
}

// The descriptors arrive with the first byte.
ssize_t send(int socket, std::string_view bytes, const std::vector<int>& descriptors) {
  iovec content = {const_cast<char*>(bytes.data()), bytes.size()};
  msghdr message = {};
  message.msg_iov = &content;
  message.msg_iovlen = 1;
  constexpr size_t kMaxDescriptors = 8;
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

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

void Descriptor::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

ChildProcess::ChildProcess(const WorkerConfig& config, std::string mode,
                           std::function<void(std::string_view)> on_output)
    : mode_(std::move(mode)), on_output_(std::move(on_output)), max_reply_bytes_(config.max_reply_bytes) {
  start(config);
  try {
    confine(config);
  } catch (const ChildLost& lost) {
    throw ChildLost(lost.cause(), lost.what() + start_remedy(config));
  } catch (...) {
    if (!reaped_) end(/*let_it_finish=*/false);
    throw;
  }
}

// For a worker that did not live to its first reply, which asks nothing of the user's files.
std::string ChildProcess::start_remedy(const WorkerConfig& config) const {
  if (!config.python_flag.empty()) return "";  // the user's own interpreter, of which the last line says more
  std::string set;
  for (const std::string& entry : child_environment(config, runs_users_code())) {
    if (entry.starts_with("PYTHONHOME=") || entry.starts_with("PYTHONPATH=" + config.worker_directory + ":")) {
      set += (set.empty() ? "" : " and ") + entry.substr(0, entry.find('='));
    }
  }
  if (!set.empty()) return fmt::format("; {} changes where Python finds its own modules: unset it, or mend it", set);
  return fmt::format("; does {} run? `make setup` mends .venv", config.python);
}

ChildProcess::~ChildProcess() {
  if (!reaped_) end(/*let_it_finish=*/false);
}

std::array<Descriptor, 4> ChildProcess::open_lines() {
  auto [child_lifeline, lifeline] = make_pipe();
  auto [output, child_output] = make_pipe();
  auto [socket, child_socket] = make_socket_pair();
  set_nonblocking(socket);
  set_nonblocking(output);
  const int child_errors = ::fcntl(child_output.get(), F_DUPFD_CLOEXEC, kFirstOwnFd);
  lifeline_ = std::move(lifeline);
  output_ = std::move(output);
  socket_ = std::move(socket);
  static_assert(kChannelFd == 3, "the fourth descriptor");
  return {std::move(child_lifeline), std::move(child_output), above_standard(child_errors, "pipe:"),
          std::move(child_socket)};
}

void ChildProcess::start(const WorkerConfig& config) {
  const auto [lifeline, output, errors, socket] = open_lines();
  pid_ =
      spawn({lifeline.get(), output.get(), errors.get(), socket.get()}, {config.python, "-m", "tandem_worker." + mode_},
            child_environment(config, runs_users_code()), config.python_flag);
}

ChildProcess::ChildProcess(ChildProcess& warm_parent, const WorkerConfig& config,
                           std::function<void(std::string_view)> on_output)
    : mode_(warm_parent.mode_), on_output_(std::move(on_output)), max_reply_bytes_(config.max_reply_bytes) {
  auto [lifeline, output, errors, socket] = open_lines();
  auto [report, child_report] = make_pipe();
  report_ = std::move(report);
  workers_lifeline_ = std::move(lifeline);
  warm_parent.call_with("fork", base::Json::object(), config.deadline_s,
                        {workers_lifeline_.get(), output.get(), errors.get(), socket.get(), child_report.get()});
}

// The child reads no file of the user's before its first request, so what it gives up here is given up in time.
void ChildProcess::confine(const WorkerConfig& config) {
  const base::Json limits = {{"memory_bytes", config.memory_bytes},
                             {"file_bytes", config.max_file_bytes},
                             {"open_files", config.max_open_files},
                             {"processes", config.max_processes}};
  const base::Json writable = config.writable ? base::Json(*config.writable) : base::Json(nullptr);
  const base::Json missing =
      call("confine", {{"sandbox", config.sandboxed}, {"writable", writable}, {"limits", limits}}, config.deadline_s);
  try {
    missing_layers_ = missing.get<std::vector<std::string>>();
  } catch (const base::Json::exception&) {
    lose(LossCause::kGarbage, "answered something else than its missing layers");
  }
}

base::Json ChildProcess::call(std::string_view name, const base::Json& arguments, double deadline_s) {
  base::Json result = call_with(name, arguments, deadline_s, {});
  if (workers_lifeline_.get() >= 0) {  // whom the kernel will kill for us is who answered
    pid_ = std::max(::fcntl(workers_lifeline_.get(), F_GETOWN), -1);
    if (pid_ > 0) init_pid_ = parent_of(pid_);
    workers_lifeline_.close();
  }
  return result;
}

base::Json ChildProcess::call_with(std::string_view name, const base::Json& arguments, double deadline_s,
                                   const std::vector<int>& descriptors) {
  TANDEM_CHECK(!reaped_, "a call to a worker that has ended");
  const uint64_t id = ++last_id_;
  std::string incoming;
  exchange(framed_request(id, name, arguments), incoming, deadline_s, descriptors);
  try {
    return result_of(incoming, id);
  } catch (const BadReply& bad) {
    lose(LossCause::kGarbage, bad.what());
  }
}

// Sends and receives until `incoming` holds one whole message.
void ChildProcess::exchange(std::string_view outgoing, std::string& incoming, double deadline_s,
                            std::vector<int> descriptors) {
  const auto deadline =
      Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(deadline_s));
  for (Arrival arrival = Arrival::kPartial; arrival != Arrival::kWhole; arrival = arrival_of(incoming)) {
    if (arrival == Arrival::kNonsense) lose(LossCause::kGarbage, "answered with something other than a reply");
    std::array<pollfd, 2> polled = {pollfd{socket_.get(), POLLIN, 0}, pollfd{output_.get(), POLLIN, 0}};
    if (!outgoing.empty()) polled[0].events |= POLLOUT;
    const double left_ms = std::chrono::duration<double, std::milli>(deadline - Clock::now()).count();
    if (left_ms <= 0)
      lose(LossCause::kDeadline, fmt::format("did not answer: the deadline of {:g} s passed", deadline_s));
    const int ready = ::poll(polled.data(), polled.size(), static_cast<int>(std::min(std::ceil(left_ms), 1e9)));
    TANDEM_CHECK(ready >= 0 || errno == EINTR, std::strerror(errno));
    if (ready <= 0) continue;
    if (polled[1].revents != 0) drain_output();
    if ((polled[0].revents & POLLOUT) != 0 && !outgoing.empty()) {
      const ssize_t sent = send(socket_.get(), outgoing, descriptors);
      if (sent > 0) {
        outgoing.remove_prefix(static_cast<size_t>(sent));
        descriptors.clear();
      }
      // A failed send means a closed line, which receive() reports.
      if (sent < 0 && errno != EAGAIN && errno != EINTR) outgoing = {};
    }
    if ((polled[0].revents & (POLLIN | POLLHUP | POLLERR)) != 0 && !receive(incoming)) lose(LossCause::kDied, "");
    if (static_cast<int64_t>(incoming.size()) > max_reply_bytes_)
      lose(LossCause::kGarbage, fmt::format("answered with more than {} bytes", max_reply_bytes_));
  }
  drain_output();
}

// Takes what the socket holds; false at its end.
bool ChildProcess::receive(std::string& incoming) {
  std::array<char, 65536> buffer;
  const ssize_t received = ::recv(socket_.get(), buffer.data(), buffer.size(), 0);
  if (received < 0) return errno == EAGAIN || errno == EINTR;
  incoming.append(buffer.data(), static_cast<size_t>(received));
  return received > 0;
}

void ChildProcess::drain_output() {
  // A child that prints without end must not hold us here: a pipe holds 64 KiB, so this is its content and a little
  // more.
  constexpr int kMaxReads = 32;
  std::array<char, 16384> buffer;
  for (int i = 0; i < kMaxReads && output_.get() >= 0; ++i) {
    const ssize_t received = ::read(output_.get(), buffer.data(), buffer.size());
    if (received < 0) return;
    if (received == 0) {
      output_.close();  // the child closed it; poll() skips a descriptor of -1
      return;
    }
    const std::string_view text(buffer.data(), static_cast<size_t>(received));
    if (on_output_) on_output_(text);
    output_tail_.append(text);
    if (output_tail_.size() > kOutputTailBytes) output_tail_.erase(0, output_tail_.size() - kOutputTailBytes);
  }
}

std::string ChildProcess::last_line() const {
  // A fatal error of the interpreter ends in the frames of its threads; the cause stands above them.
  const std::string_view said = std::string_view(output_tail_).substr(0, output_tail_.rfind("\nCurrent thread 0x"));
  const size_t end = said.find_last_not_of(" \n\r\t");
  if (end == std::string_view::npos) return "";
  const size_t begin = said.find_last_of('\n', end) + 1;  // npos + 1 is 0
  constexpr size_t kMaxBytes = 300;
  Utf8Stream text;  // user code prints what it likes; an error message is text
  const std::string line = text.push(said.substr(begin, std::min(end + 1 - begin, kMaxBytes)));
  return line + text.finish();
}

void ChildProcess::lose(LossCause cause, const std::string& what) {
  const pid_t pid = pid_;
  const std::string how = end(/*let_it_finish=*/cause == LossCause::kDied && !interrupted_);
  std::string message = fmt::format("{} worker (process {}) {}", mode_, pid, what.empty() ? how : what);
  if (const std::string line = last_line(); !line.empty()) message += "; its last line: " + line;
  throw ChildLost(cause, message);
}

std::string ChildProcess::end(bool let_it_finish) {
  if (report_.get() >= 0) return end_forked(let_it_finish);
  const auto wait_for_exit = [&](std::chrono::milliseconds patience) {
    // WNOWAIT: the process stays a zombie, so its group still exists for the kill below.
    siginfo_t info = {};
    for (const auto give_up = Clock::now() + patience; Clock::now() < give_up;) {
      if (::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != 0) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  };
  if (let_it_finish) wait_for_exit(kExitGrace);
  lifeline_.close();
  // What stands in front of a warm parent ends after all that runs behind it; that is worth waiting for.
  if (mode_ == "grader") wait_for_exit(kExitGrace);
  ::kill(-pid_, SIGKILL);
  ::kill(pid_, SIGKILL);  // should it have left its group
  int status = 0;
  pid_t waited = 0;
  do {
    waited = ::waitpid(pid_, &status, 0);
  } while (waited < 0 && errno == EINTR);
  reaped_ = true;
  drain_output();
  return waited == pid_ ? describe_exit(status) : "ended";
}

std::string ChildProcess::end_forked(bool let_it_finish) {
  if (!let_it_finish || !wait_for_report(kExitGrace)) {
    if (init_pid_ > 0) ::kill(init_pid_, SIGTERM);  // it lives until it has reported
  }
  lifeline_.close();
  if (!reported_status_ && !wait_for_report(kExitGrace) &&
      pid_ > 0) {  // it has cut its lifeline; its init still holds its number
    ::kill(-pid_, SIGKILL);
    ::kill(pid_, SIGKILL);
    wait_for_report(kExitGrace);
  }
  reaped_ = true;
  drain_output();
  return reported_status_ ? describe_exit(*reported_status_) : "ended";
}

// Whether a forked process has ended. Its init ends next, and with it all that the process started: a fork bomb may
// take a second to die, for which nobody needs to wait.
bool ChildProcess::wait_for_report(std::chrono::milliseconds patience) {
  const auto give_up = Clock::now() + patience;
  while (true) {
    pollfd polled = {report_.get(), POLLIN, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(give_up - Clock::now());
    if (left.count() <= 0 || ::poll(&polled, 1, static_cast<int>(left.count())) == 0) return false;
    int status = 0;
    const ssize_t received = ::read(report_.get(), &status, sizeof status);
    if (received == sizeof status) reported_status_ = status;
    if (received == sizeof status || received == 0) return true;
  }
}

bool ChildProcess::alive() {
  if (reaped_) return false;
  if (report_.get() >= 0) {
    pollfd polled = {report_.get(), POLLIN, 0};
    return ::poll(&polled, 1, 0) == 0;
  }
  siginfo_t info = {};
  const int result = ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT);
  return result == 0 && info.si_pid == 0;
}

void ChildProcess::interrupt() {
  interrupted_ = true;
  ::shutdown(socket_.get(), SHUT_RDWR);
}

}  // namespace tandem::text
