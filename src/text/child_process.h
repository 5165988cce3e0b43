// One Python child process (python/tandem_worker) and the request-reply line to it.
//
// Owns the process: it is a group of its own, killed with all that it started and reaped when this object goes, and
// killed by the kernel should our process die first. A call that does not end well ends the child. Calls come from one
// thread at a time; interrupt() may come from another. No descriptor of ours reaches the child but the four it is
// given.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
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
  pid_t process_id() const { return pid_; }
  // What this machine's kernel lacks for the sandbox that was asked for, one text a layer.
  const std::vector<std::string>& missing_layers() const { return missing_layers_; }

 private:
  [[noreturn]] void lose(LossCause cause, const std::string& what);
  // Kills and reaps; says how the process ended: "was killed by signal 9", "exited with code 3".
  std::string end(bool let_it_finish);
  void start(const WorkerConfig& config);
  void confine(const WorkerConfig& config);
  void exchange(std::string_view outgoing, std::string& incoming, double deadline_s);
  bool receive(std::string& incoming);
  bool is_complete(const std::string& incoming);
  void drain_output();
  std::string last_line() const;

  std::string mode_;
  std::function<void(std::string_view)> on_output_;
  Descriptor lifeline_, socket_, output_;
  pid_t pid_ = -1;
  bool reaped_ = false;
  std::atomic<bool> interrupted_ = false;
  uint64_t last_id_ = 0;
  int64_t max_reply_bytes_;
  std::vector<std::string> missing_layers_;
  std::string output_tail_;
};

}  // namespace tandem::text
