// The schedule of a run that trains while others sample, RUN/schedule.jsonl: which groups each rollout took, and which
// weights sampled which tokens of them. Both depend on timing, and all else follows from them: so a run with the same
// flags and this log has the same bits (docs/ASYNC.md). One line a rollout:
//
//   {"rollout": 17, "take": [409, 412], "drop": [410], "samples": {"6592": [[15, 310], [17, 822]], ...}}
//
// Tokens up to 310 of sample 6592 are of the weights of version 15, those up to 822 of version 17. A line holds in
// place of earlier lines about its rollout and later ones. No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/files.h"
#include "sampling/rollout.h"

namespace tandem::sampling {

// Holds what the log says of a rollout.
struct ScheduledRollout {
  int64_t rollout = 0;          // from 0
  std::vector<size_t> taken;    // groups, ascending
  std::vector<size_t> dropped;  // groups that a filter dropped since the rollout before
  struct Span {
    uint64_t version = 0;
    int64_t end = 0;  // behind its last token
  };
  std::map<uint64_t, std::vector<Span>> samples;  // of all samples of the groups taken, by id
};

class ScheduleLog {
 public:
  // Reads a log; an incomplete last line is none. Throws UserError "FILE:LINE: what" for anything that write() does not
  // write.
  ScheduleLog(const std::string& path, int64_t n_samples_per_prompt);
  ScheduleLog(ScheduleLog&&) = default;
  ScheduleLog(const ScheduleLog&) = delete;
  ScheduleLog& operator=(const ScheduleLog&) = delete;

  // Returns what the log says of a rollout, or null.
  const ScheduledRollout* of(int64_t rollout) const;
  // Returns the groups of later rollouts, this one included, whose first token the weights of this version sampled,
  // ascending.
  std::vector<size_t> begun_by(uint64_t version, int64_t rollout) const;
  // Returns how many tokens the weights of this version add to a sample that has `num_tokens`; 0 also of a sample that
  // the log does not know.
  int64_t tokens_of(uint64_t sample_id, uint64_t version, int64_t num_tokens) const;

 private:
  const uint64_t n_;
  std::map<int64_t, ScheduledRollout> rollouts_;
  std::map<uint64_t, const std::vector<ScheduledRollout::Span>*> samples_;  // by id
};

// Returns the line of a rollout that has its numbers in flight.
std::string schedule_line(int64_t rollout_id, const Rollout& rollout);

}  // namespace tandem::sampling
