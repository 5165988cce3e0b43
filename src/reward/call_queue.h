// Calls of a reward that wait for a process, and the grades of those that have ended. The queue is thread-safe: grader
// threads take calls and store grades, one thread adds calls and takes grades.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/bell.h"
#include "reward/graders.h"

namespace tandem::reward {

// One call of the reward.
struct Call {
  std::vector<GradeRequest> samples;
  uint64_t generation = 0;  // the queue's, when the call was added
  bool alone = false;       // it was once lost with others, and is made beside no other call
  std::chrono::steady_clock::time_point begun;
};

class CallQueue {
 public:
  // `what` names the thing that is called, for messages: "reward".
  explicit CallQueue(std::string what) : what_(std::move(what)) {}

  // Adds one call of all samples, or one a sample.
  void add(std::vector<GradeRequest> group, bool as_one_call);

  // Waits for a call. Returns nothing when the queue was stopped.
  std::optional<Call> wait();
  // Returns the next call, where it may be made beside others. One that is to be made alone holds up those after it, so
  // that its turn comes.
  std::optional<Call> next_beside_others();

  size_t num_waiting() const;

  // Counts failures of this class without a warning. Called before any are stored.
  void expect(const std::string& reason_class) { expected_ = reason_class; }
  // Warns of the first failure of each class; the others are counted.
  void store(const Call& call, std::vector<Grade> grades);
  // Puts calls that were lost together for the reason `why` to the front, each to be made again, alone.
  void repeat(std::vector<Call> calls, const std::string& why);

  // Makes take_finished() throw the first error that it is given.
  void fail(std::exception_ptr error);
  void stop();
  // Waits that long for the first grades that were not taken yet, and takes all there are, those of a call together.
  // Returns none at once where nothing was added that was not taken.
  std::vector<Grade> take_finished(double seconds);
  // The descriptor is readable while grades are there that were not taken.
  int descriptor() const { return bell_.descriptor(); }
  // Forgets what was added and is not taken: calls that wait are never made, and what those under way give is ignored.
  void discard();

  std::map<std::string, int64_t> failures() const;
  int64_t repeated() const;

 private:
  const std::string what_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  base::Bell bell_;
  std::deque<Call> calls_;
  size_t num_pending_ = 0;       // samples that have no grade yet
  std::vector<Grade> finished_;  // grades that were not taken yet
  uint64_t generation_ = 0;      // how often everything was discarded
  std::map<std::string, int64_t> num_failures_;
  std::string expected_;
  int64_t num_repeated_ = 0;
  std::exception_ptr error_;
  bool stopped_ = false;
};

}  // namespace tandem::reward
