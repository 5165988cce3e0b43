// A sample's reward, given by one source or added up over several. Each source has grader processes of its own, so it
// can be in any dialect, take groups or samples, and fail by itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/bell.h"
#include "reward/graders.h"

namespace tandem::reward {

struct RewardSource {
  std::string name;  // the name in metrics and samples
  double weight = 1.0;
  // A sample whose rm_type is remote_rm, or which has none where that is the source's own, goes to the service; all
  // others go to the graders. A source with neither is a reward model, whose part of a grade stays unset until the
  // whole rollout is scored (sampling::put_model_rewards).
  std::optional<GraderConfig> graders, service;
  bool asks_service_first = false;  // remote_rm is the source's own
};

struct ScorerConfig {
  std::vector<RewardSource> sources;  // not empty
  // Grades show what each source gave (Grade::parts). False only for one source of weight 1, whose grades are then left
  // as they are.
  bool shows_parts = false;
};

// Scores as TRL adds rewards up: the reward is the sum of weight x reward over the sources that apply to the sample.
// Where none does, or one fails, the sample fails as that source's would; the reason names it. Names of other numbers,
// columns and logged metrics get their source's in front, "NAME/". A sample that one source removes is removed, a token
// is trained on where all masks say so, and of several states the last one holds.
class Scorer {
 public:
  // Starts all processes. UserError for a reward that cannot be used, EnvironmentError for a service that cannot be
  // reached.
  explicit Scorer(const ScorerConfig& config);

  // These work as those of Graders; a grade comes when all sources have given theirs. Sample ids are unique among what
  // is submitted and not taken.
  void submit(std::vector<GradeRequest> group);
  std::vector<Grade> take_finished(double seconds);
  std::vector<int> descriptors() const;
  void discard();
  int64_t restarts() const;
  int64_t repeated() const;

 private:
  struct Source {
    explicit Source(const RewardSource& source);
    bool is_served(const GradeRequest& sample) const;
    bool is_scored_later() const { return !graders && !service; }

    std::string name;
    double weight;
    bool asks_service_first;
    std::optional<Graders> graders, service;
  };
  // A sample that is submitted and not taken.
  struct UnderWay {
    uint64_t number = 0;                           // in the order of submission
    std::vector<std::optional<Grade>> parts = {};  // one of each source, in their order
    size_t num_graded = 0;
  };
  // Calls f for every pool of processes, with the index of its source.
  template <typename F>
  void for_each_pool(F f);
  template <typename F>
  int64_t sum_over_pools(F f) const;
  Grade combined(uint64_t sample_id, std::vector<std::optional<Grade>> parts) const;

  std::deque<Source> sources_;  // a deque, because Graders cannot be moved
  size_t num_asked_ = 0;        // sources that are asked here, those that are not scored later
  bool shows_parts_;
  std::map<uint64_t, UnderWay> under_way_;  // by sample id
  uint64_t num_submitted_ = 0;
  std::vector<Grade> finished_;  // grades that nobody had to be asked for; the bell rings while there are some
  base::Bell bell_;
};

}  // namespace tandem::reward
