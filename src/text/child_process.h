// One Python worker process (python/tandem_worker) and the request-reply line to it.
//
// Owns the process: it is a group of its own, killed with all that it started and gone when this object goes, and
// killed by the kernel should our process die first. It is our child, or was forked by another ChildProcess (the warm
// parent) and is then the child of an init that reports its end (tandem_worker/processes.py). A call that does not end
// well ends the child. Calls come from one thread at a time; interrupt() may come from another. No descriptor of ours
// reaches the child but the four it is given.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/text_worker.h"

namespace tandem::text {

enum class LossCause : uint8_t { kDied, kDeadline, kGarbage };

// A call that lost its child, which is dead and reaped by then.
class ChildLost : public WorkerError {
 public:
  ChildLost(LossCause cause, const std::string& message) : WorkerError(message), cause_(cause) {}
  LossCause cause() const { return cause_; }

 private:
  LossCause cause_;
};

// A descriptor that closes itself.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor() { close(); }
  int get() const { return fd_; }
  void close();

 private:
  int fd_ = -1;
};

class ChildProcess {
 public:
  // Starts `python -m tandem_worker.<mode>`, which then gives up what `config` does not grant it; EnvironmentError or
  // ChildLost when it cannot. What the child prints goes to `on_output` (during calls and at the end), its last line
  // also into errors.
  ChildProcess(const WorkerConfig& config, std::string mode, std::function<void(std::string_view)> on_output = {});
  // A worker that `warm_parent` forks, as confined as that is, with all that it has loaded; the parent may not be in a
  // call.
  ChildProcess(ChildProcess& warm_parent, const WorkerConfig& config, std::function<void(std::string_view)> on_output);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // One request and the result in its reply. ChildLost when the child died, passed the deadline or answered nonsense.
  // UserError and EnvironmentError are what the child found; it lives on after them.
  base::Json call(std::string_view name, const base::Json& arguments, double deadline_s);

  // Whether the process still runs (it may have died between calls).
  bool alive();
  // Ends the call that is in flight on another thread, and with it the child.
  void interrupt();
  // -1 for a forked one before its first call has ended.
  pid_t process_id() const { return pid_; }
  // What this machine's kernel lacks for the sandbox that was asked for, one text a layer.
  const std::vector<std::string>& missing_layers() const { return missing_layers_; }

 private:
  [[noreturn]] void lose(LossCause cause, const std::string& what);
  // Kills and reaps; says how the process ended: "was killed by signal 9", "exited with code 3".
  std::string end(bool let_it_finish);
  std::string end_forked(bool let_it_finish);
  bool wait_for_report(std::chrono::milliseconds patience);
  // The child's four descriptors; ours are in the members.
  std::array<Descriptor, 4> open_lines();
  void start(const WorkerConfig& config);
  void confine(const WorkerConfig& config);
  bool runs_users_code() const { return mode_ == "grader"; }
  std::string start_remedy(const WorkerConfig& config) const;
  base::Json call_with(std::string_view name, const base::Json& arguments, double deadline_s,
                       const std::vector<int>& descriptors);
  void exchange(std::string_view outgoing, std::string& incoming, double deadline_s, std::vector<int> descriptors);
  bool receive(std::string& incoming);
  void drain_output();
  std::string last_line() const;

  std::string mode_;
  std::function<void(std::string_view)> on_output_;
  Descriptor lifeline_, socket_, output_;
  Descriptor report_;            // of a forked process: its wait status, when it has ended
  Descriptor workers_lifeline_;  // its end of the lifeline, which knows its process id
  std::optional<int> reported_status_;
  pid_t pid_ = -1;
  pid_t init_pid_ = -1;  // of a forked process
  bool reaped_ = false;
  std::atomic<bool> interrupted_ = false;
  uint64_t last_id_ = 0;
  int64_t max_reply_bytes_;
  std::vector<std::string> missing_layers_;
  std::string output_tail_;
};

}  // namespace tandem::text
