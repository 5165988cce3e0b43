#include "worker/child_process.h"

#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
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
#include "base/utf8_stream.h"
#include "worker/child_environment.h"
#include "worker/message.h"
#include "worker/spawn.h"

namespace tandem::worker {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kOutputTailBytes = 4096;

// A child that closed its line may end by itself for this long, so that we report its own exit and not our signal.
constexpr auto kExitGrace = std::chrono::milliseconds(1000);
// The supervisors of a forkserver end after all that it forked, and remove what that wrote.
constexpr auto kGuardGrace = std::chrono::seconds(10);
constexpr double kRoomDeadlineS = 2.0;
constexpr int kMaxGenerations = 8;  // between a grader and our child

// Returns -1 when there is no such process.
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

bool descends_from(pid_t process, pid_t ancestor) {
  for (int i = 0; i < kMaxGenerations && process > 1; ++i) {
    process = parent_of(process);
    if (process == ancestor) return true;
  }
  return false;
}

}  // namespace

ChildProcess::ChildProcess(const WorkerConfig& config, std::string mode,
                           std::function<void(std::string_view)> on_output)
    : mode_(std::move(mode)),
      on_output_(std::move(on_output)),
      max_reply_bytes_(config.max_reply_bytes),
      max_reply_values_(config.max_reply_values) {
  start(config);
  try {
    enter_sandbox(config);
  } catch (const ChildLost& lost) {
    throw ChildLost(lost.cause(), lost.what() + start_remedy(config));
  } catch (...) {
    if (!reaped_) end(/*let_it_finish=*/false);
    throw;
  }
}

// Returns the remedy for a worker that did not live to its first reply, before which it reads none of the user's files.
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
  auto [control, child_control] = make_socket_pair();
  auto [output, child_output] = make_pipe();
  auto [socket, child_socket] = make_socket_pair();
  set_nonblocking(socket);
  set_nonblocking(output);
  ask_for_senders(socket);
  Descriptor child_errors = duplicate(child_output);
  room_ = RoomLine(std::move(control));
  output_ = std::move(output);
  socket_ = std::move(socket);
  return {std::move(child_control), std::move(child_output), std::move(child_errors), std::move(child_socket)};
}

void ChildProcess::start(const WorkerConfig& config) {
  const auto [control, output, errors, socket] = open_lines();  // as protocol.py numbers them
  guard_ =
      spawn({control.get(), output.get(), errors.get(), socket.get()}, {config.python, "-m", "tandem_worker." + mode_},
            child_environment(config, runs_users_code()), config.python_flag);
  pid_ = guard_;
}

ChildProcess::ChildProcess(ChildProcess& forkserver, const WorkerConfig& config,
                           std::function<void(std::string_view)> on_output)
    : mode_(forkserver.mode_),
      on_output_(std::move(on_output)),
      guard_(forkserver.guard_),
      max_reply_bytes_(config.max_reply_bytes),
      max_reply_values_(config.max_reply_values) {
  const auto [room, output, errors, socket] = open_lines();
  auto [report, child_report] = make_pipe();
  report_ = std::move(report);
  std::vector<int> descriptors = {output.get(), errors.get(), socket.get(), child_report.get()};
  std::vector<Descriptor> namespaces;
  if (forkserver.has_rooms_) {
    forkserver.room_.ask_for_room(room);
    namespaces = room_.namespaces(config.deadline_s);
    for (const Descriptor& name_space : namespaces) descriptors.push_back(name_space.get());
  } else {
    descriptors.push_back(room.get());
  }
  forkserver.call_with("fork", base::Json::object(), config.deadline_s, descriptors);
}

// The child reads no file of the user's before its first request, so what it gives up here is given up in time.
void ChildProcess::enter_sandbox(const WorkerConfig& config) {
  const base::Json limits = {{"memory_bytes", config.memory_bytes},
                             {"file_bytes", config.max_file_bytes},
                             {"open_files", config.max_open_files},
                             {"processes", config.max_processes}};
  const base::Json writable = config.writable ? base::Json(*config.writable) : base::Json(nullptr);
  const base::Json given = call("enter_sandbox",
                                {{"sandbox", config.sandboxed},
                                 {"network", config.network},
                                 {"loopback", config.loopback},
                                 {"writable", writable},
                                 {"limits", limits},
                                 {"workers", config.num_forks},
                                 {"scratch_bytes", config.scratch_bytes}},
                                config.deadline_s);
  try {
    missing_layers_ = given.at("missing").get<std::vector<std::string>>();
    has_rooms_ = given.at("rooms").get<bool>();
  } catch (const base::Json::exception&) {
    lose(LossCause::kGarbage, "answered something else than its missing layers");
  }
}

base::Json ChildProcess::call(std::string_view name, const base::Json& arguments, double deadline_s) {
  return call_with(name, arguments, deadline_s, {});
}

// The kernel says who has sent a reply. For the last resort, a descriptor of that process is kept, if it is a
// descendant of our own child: a number alone may be another's by the time that it is used.
void ChildProcess::note_sender(pid_t sender) {
  if (process_.is_open() || sender <= 1) return;
  Descriptor process(static_cast<int>(::syscall(SYS_pidfd_open, sender, 0)));
  if (!descends_from(sender, guard_)) return;
  pid_ = sender;
  process_ = std::move(process);
}

void ChildProcess::note_what_belongs() {
  if (!room_.note_what_belongs(kRoomDeadlineS)) lose(LossCause::kDied, "");
}

std::string ChildProcess::what_is_left() { return room_.what_is_left(kRoomDeadlineS); }

base::Json ChildProcess::call_with(std::string_view name, const base::Json& arguments, double deadline_s,
                                   const std::vector<int>& descriptors) {
  TANDEM_CHECK(!reaped_, "a call to a worker that has ended");
  const uint64_t id = ++last_id_;
  std::string incoming;
  exchange(framed_request(id, name, arguments), incoming, deadline_s, descriptors);
  try {
    return result_of(incoming, id, max_reply_values_);
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
      const ssize_t sent = worker::send(socket_.get(), outgoing, descriptors);
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
  const Received received = worker::receive(socket_.get(), buffer.data(), buffer.size());
  if (received.num_bytes < 0) return errno == EAGAIN || errno == EINTR;
  if (received.num_bytes > 0) note_sender(received.sender);
  incoming.append(buffer.data(), static_cast<size_t>(received.num_bytes));
  return received.num_bytes > 0;
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
  base::Utf8Stream text;  // user code prints what it likes; an error message is text
  const std::string line = text.push(said.substr(begin, std::min(end + 1 - begin, kMaxBytes)));
  return line + text.finish();
}

void ChildProcess::lose(LossCause cause, const std::string& what) {
  const pid_t pid = pid_;
  if (cause == LossCause::kDied && report_.is_open() && !interrupted_) {
    wait_for_report(kExitGrace);
    if (room_.ran_out_of_memory(kRoomDeadlineS)) cause = LossCause::kMemory;
  }
  const std::string how = end(/*let_it_finish=*/cause == LossCause::kDied && !interrupted_);
  std::string message = fmt::format("{} worker (process {}) {}", mode_, pid, what.empty() ? how : what);
  if (cause == LossCause::kMemory)
    message += ": with what it had started it took more memory than it may have (--rm-memory-bytes)";
  if (const std::string line = last_line(); !line.empty()) message += "; its last line: " + line;
  throw ChildLost(cause, message);
}

// WNOWAIT leaves the process a zombie, so that its number is not another's.
bool ChildProcess::wait_for_exit(std::chrono::milliseconds patience) const {
  for (const auto give_up = Clock::now() + patience; Clock::now() < give_up;) {
    siginfo_t info = {};
    if (::waitid(P_PID, static_cast<id_t>(guard_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != 0)
      return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return false;
}

std::string ChildProcess::end(bool let_it_finish) {
  if (report_.is_open()) return end_forked(let_it_finish);
  if (let_it_finish) wait_for_exit(kExitGrace);
  room_.close();
  wait_for_exit(runs_users_code() ? kGuardGrace : kExitGrace);
  ::kill(guard_, SIGKILL);
  int status = 0;
  pid_t waited = 0;
  do {
    waited = ::waitpid(guard_, &status, 0);
  } while (waited < 0 && errno == EINTR);
  reaped_ = true;
  drain_output();
  return waited == guard_ ? describe_exit(status) : "ended";
}

std::string ChildProcess::end_forked(bool let_it_finish) {
  if (let_it_finish && !reported_status_) wait_for_report(kExitGrace);
  room_.close();
  if (!reported_status_ && !wait_for_report(kExitGrace) && process_.is_open()) {
    ::syscall(SYS_pidfd_send_signal, process_.get(), SIGKILL, nullptr, 0);  // its supervisor does not answer
    wait_for_report(kExitGrace);
  }
  reaped_ = true;
  drain_output();
  return reported_status_ ? describe_exit(*reported_status_) : "ended";
}

// Returns whether a forked process has ended. Its room ends next, and with it all that the process started. Nobody
// waits for that: a fork bomb may take a second to die.
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
  if (process_.is_open() && wait_to_read(process_, 0)) return false;  // a pidfd can be read when its process has ended
  if (report_.is_open()) return !wait_to_read(report_, 0);
  siginfo_t info = {};
  const int result = ::waitid(P_PID, static_cast<id_t>(guard_), &info, WEXITED | WNOHANG | WNOWAIT);
  return result == 0 && info.si_pid == 0;
}

void ChildProcess::interrupt() {
  interrupted_ = true;
  ::shutdown(socket_.get(), SHUT_RDWR);
}

}  // namespace tandem::worker
