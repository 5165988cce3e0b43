// Rewards in worker processes: rule-based (exact, math, dapo) and the user's Python functions in the TRL, verl and slime
// dialects. Each call has a deadline and a memory limit; an exception, a hang, a memory bomb, a NaN, a wrong type or
// count, a dead process: the sample is marked failed, with the reason, and the next one is graded by a fresh process.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "text/text_worker.h"

namespace tandem::text {

struct GraderConfig {
  WorkerConfig worker;
  std::string rm_type;          // exact, math, dapo; empty with custom_rm_path
  std::string custom_rm_path;   // FILE.py:function
  std::string reward_key;       // picks a number out of a dict result ("score", "acc"); empty: the number itself
  bool group_rm = false;        // the function takes all samples of a group at once
  int num_processes = 2;
  double deadline_s = 30.0;     // per sample (per group with group_rm)
  int64_t memory_bytes = int64_t{2} << 30;
};

struct GradeRequest {
  uint64_t group_id = 0, sample_id = 0;
  base::Json prompt;            // string or message list, as the data line had it
  std::string prompt_text, response, label;
  base::Json metadata;          // the data line's other keys
  std::vector<int32_t> response_tokens;
  bool truncated = false;
};

struct Grade {
  uint64_t sample_id = 0;
  double reward = 0.0;          // 0 when failed
  bool failed = false;
  std::string reason;           // one line: "ValueError: ...", "deadline of 30 s passed", "killed by signal 9", ...
  std::map<std::string, double> extras;  // other numbers of a dict result
};

class Graders {
 public:
  // Starts the processes; UserError when the file, the function or the rm-type does not exist.
  explicit Graders(const GraderConfig& config);
  ~Graders();

  void submit(std::vector<GradeRequest> group);  // returns at once
  std::vector<Grade> collect();                  // waits for everything submitted; in submission order
  // Totals of the run: reason class ("exception", "deadline", "died", "memory", "not_finite", "wrong_type") -> count.
  std::map<std::string, int64_t> failures() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tandem::text
