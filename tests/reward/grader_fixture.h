// Requests and configurations for the grader tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "reward/graders.h"
#include "tests/base/thrown.h"

namespace tandem::reward {

inline GraderConfig rule(const std::string& rm_type) {
  GraderConfig config;
  config.worker = worker::default_worker_config();
  if (!rm_type.empty()) config.rm_types = {rm_type};
  config.label_key = "label";
  config.metadata_key = "metadata";
  config.limits.num_processes = 1;
  return config;
}

// Returns the configuration of a function of tests/reward/rewards/<file>.
inline GraderConfig function(const std::string& spec) {
  GraderConfig config = rule("");
  config.custom_rm_path = "tests/reward/rewards/" + spec;
  return config;
}

inline GradeRequest request(uint64_t sample_id, const std::string& response, const base::Json& label = "") {
  GradeRequest request;
  request.sample_id = sample_id;
  request.prompt = "prompt";
  request.prompt_text = "<prompt>";
  request.response = response;
  request.label = label;
  return request;
}

// Waits for the grades of all samples that were submitted and not taken, and returns them by sample id.
template <typename GradersOrScorer>
std::vector<Grade> take_all(GradersOrScorer& graders) {
  constexpr double kAsLongAsItTakes = 3600.0;
  std::vector<Grade> all;
  while (true) {
    std::vector<Grade> grades = graders.take_finished(kAsLongAsItTakes);
    if (grades.empty()) break;
    std::ranges::move(grades, std::back_inserter(all));
  }
  std::ranges::stable_sort(all, {}, &Grade::sample_id);
  return all;
}

// Grades one sample on its own.
inline Grade grade_one(Graders& graders, const GradeRequest& request) {
  graders.submit({request});
  return take_all(graders).at(0);
}

// Returns what a user is told whose graders cannot be made.
inline std::string refusal(const GraderConfig& config) {
  return base::refusal_of([&] { const Graders graders(config); });
}

}  // namespace tandem::reward
