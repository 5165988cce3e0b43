// Calls of a reward that wait for a process, and the grades of those that have ended, in the order of submission.
// Thread-safe: grader threads take calls and store grades, one thread submits and collects.
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
#include <vector>

#include "text/graders.h"

namespace tandem::text {

// One call of the reward: what it is given, and where its grades go.
struct Call {
  std::vector<GradeRequest> samples;
  size_t first_result = 0;
  bool alone = false;  // once lost with others: to be made beside no other call
  std::chrono::steady_clock::time_point begun;
};

class CallQueue {
 public:
  // One call of all samples, or one a sample.
  void add(std::vector<GradeRequest> group, bool as_one_call);

  // Waits for a call. Nothing: the queue was stopped.
  std::optional<Call> wait();
  // The next call, where it may be made beside others. One that is to be made alone holds up those behind it, so that
  // its turn comes.
  std::optional<Call> next_beside_others();

  // Warns of the first failure of each class; the others are counted.
  void store(const Call& call, std::vector<Grade> grades);
  // Calls that were lost together, `why`: to the front, each to be made again, alone.
  void repeat(std::vector<Call> calls, const std::string& why);

  // collect() rethrows the first error.
  void fail(std::exception_ptr error);
  void stop();
  // Waits that long until all that was added has grades; how many samples have none yet.
  int64_t wait_for_grades(double seconds);
  // Waits until all that was added has grades; in the order in which it was added.
  std::vector<Grade> collect();

  std::map<std::string, int64_t> failures() const;
  int64_t repeated() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Call> calls_;
  std::vector<Grade> results_;
  size_t num_pending_ = 0;  // results that are not in yet
  std::map<std::string, int64_t> num_failures_;
  int64_t num_repeated_ = 0;
  std::exception_ptr error_;
  bool stopped_ = false;
};

}  // namespace tandem::text
