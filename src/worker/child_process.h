// Owns one Python worker process (python/tandem_worker) and the request-reply line to it.
//
// This object owns the process: it runs in a session of its own, and is gone with all that it started when this object
// goes, or when we die. Supervisors (tandem_worker/sandbox/keeper.py), processes that run none of the user's code, see
// to that; the one that we start ends as the worker does. A grader is forked by another ChildProcess, the forkserver.
// It lives in a room, which is a sandbox of its own (tandem_worker/sandbox/room.py), and a witness process reports its
// end. Nothing that a worker says about processes is believed: its number comes from the kernel, with its first reply.
// A call that does not end well ends the child. Calls come from one thread at a time; interrupt() may come from
// another. The child gets four descriptors of ours and no others.
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
#include "worker/lines.h"
#include "worker/room_line.h"
#include "worker/worker_config.h"

namespace tandem::worker {

enum class LossCause : uint8_t { kDied, kDeadline, kGarbage, kMemory };

// Thrown by a call that lost its child, which is dead and reaped by then.
class ChildLost : public WorkerError {
 public:
  ChildLost(LossCause cause, const std::string& message) : WorkerError(message), cause_(cause) {}
  LossCause cause() const { return cause_; }

 private:
  LossCause cause_;
};

class ChildProcess {
 public:
  // Starts `python -m tandem_worker.<mode>`, which then gives up what `config` does not grant it; EnvironmentError or
  // ChildLost when it cannot. What the child prints goes to `on_output` (during calls and at the end), its last line
  // also into errors.
  ChildProcess(const WorkerConfig& config, std::string mode, std::function<void(std::string_view)> on_output = {});
  // Forks a worker from `forkserver`, as confined as that is and with all that it has loaded. The forkserver may not be
  // in a call.
  ChildProcess(ChildProcess& forkserver, const WorkerConfig& config, std::function<void(std::string_view)> on_output);
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Sends one request and returns the result in its reply. ChildLost when the child died, passed the deadline or
  // answered nonsense. UserError and EnvironmentError are what the child found; it lives on after them.
  base::Json call(std::string_view name, const base::Json& arguments, double deadline_s);

  // Returns whether the process still runs (it may have died between calls).
  bool alive();
  // Declares that what is there now belongs to the worker. What calls add to it is removed, or is something left.
  void note_what_belongs();
  // Begins to look for what a call left, and removes files.
  void ask_what_is_left() { room_.ask_what_is_left(); }
  // Waits for the answer: "" for nothing, "a running process", ...; the worker should then be replaced.
  std::string what_is_left();
  // Ends the call that is in flight on another thread, and with it the child.
  void interrupt();
  // Returns -1 for a forked process before its first call has ended.
  pid_t process_id() const { return pid_; }
  // Returns what this machine's kernel lacks for the sandbox that was asked for, one text a layer.
  const std::vector<std::string>& missing_layers() const { return missing_layers_; }

 private:
  [[noreturn]] void lose(LossCause cause, const std::string& what);
  // Kills and reaps; says how the process ended: "was killed by signal 9", "exited with code 3".
  std::string end(bool let_it_finish);
  std::string end_forked(bool let_it_finish);
  bool wait_for_exit(std::chrono::milliseconds patience) const;
  bool wait_for_report(std::chrono::milliseconds patience);
  // Returns the child's four descriptors; the members have ours.
  std::array<Descriptor, 4> open_lines();
  void start(const WorkerConfig& config);
  void enter_sandbox(const WorkerConfig& config);
  void note_sender(pid_t sender);
  bool runs_users_code() const { return mode_ == "grader" || mode_ == "generator" || mode_ == "advantage"; }
  std::string start_remedy(const WorkerConfig& config) const;
  base::Json call_with(std::string_view name, const base::Json& arguments, double deadline_s,
                       const std::vector<int>& descriptors);
  void exchange(std::string_view outgoing, std::string& incoming, double deadline_s, std::vector<int> descriptors);
  bool receive(std::string& incoming);
  void drain_output();
  std::string last_line() const;

  std::string mode_;
  std::function<void(std::string_view)> on_output_;
  RoomLine room_;
  Descriptor socket_, output_;
  Descriptor report_;  // brings the wait status of a forked process when it has ended
  std::optional<int> reported_status_;
  pid_t guard_ = -1;    // our child, or the forkserver's, from which all others descend
  pid_t pid_ = -1;      // the worker, once it has answered
  Descriptor process_;  // a pidfd of the worker
  bool has_rooms_ = false;
  bool reaped_ = false;
  std::atomic<bool> interrupted_ = false;
  uint64_t last_id_ = 0;
  int64_t max_reply_bytes_, max_reply_values_;
  std::vector<std::string> missing_layers_;
  std::string output_tail_;
};

}  // namespace tandem::worker
