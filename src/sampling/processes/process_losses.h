// Processes of the user's code that were lost during a rollout, and the calls that were made again for it. No torch.
#pragma once

#include <cstdint>

namespace tandem::sampling {

struct ProcessLosses {
  int64_t grader_restarts = 0, repeated_grades = 0;
  int64_t generator_restarts = 0, repeated_generations = 0;  // processes of --custom-generate-function-path

  ProcessLosses& operator+=(const ProcessLosses& other) {
    grader_restarts += other.grader_restarts;
    repeated_grades += other.repeated_grades;
    generator_restarts += other.generator_restarts;
    repeated_generations += other.repeated_generations;
    return *this;
  }
  ProcessLosses operator-(const ProcessLosses& other) const {
    return {.grader_restarts = grader_restarts - other.grader_restarts,
            .repeated_grades = repeated_grades - other.repeated_grades,
            .generator_restarts = generator_restarts - other.generator_restarts,
            .repeated_generations = repeated_generations - other.repeated_generations};
  }
  static void fields(auto& wire, auto& m) {
    wire(m.grader_restarts, m.repeated_grades, m.generator_restarts, m.repeated_generations);
  }
};

}  // namespace tandem::sampling
