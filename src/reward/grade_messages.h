// Samples to grade and their grades as a grader process reads and writes them (python/tandem_worker/grader.py). A
// grader runs user code, which may write anything: what it sends is judged here, member by member, within bounds.
#pragma once

#include <string>
#include <vector>

#include "base/json.h"
#include "reward/graders.h"

namespace tandem::reward {

base::Json to_json(const std::vector<GradeRequest>& samples);

// Returns the grades of one call, in the order of its samples. Throws BadReply for what no honest grader writes.
std::vector<Grade> grades_of(const base::Json& message, const std::vector<GradeRequest>& samples);

// Returns failed grades for all samples of a call that failed as a whole.
std::vector<Grade> all_failed(const std::vector<GradeRequest>& samples, const std::string& reason_class,
                              const std::string& reason);

}  // namespace tandem::reward
