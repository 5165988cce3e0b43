// Grades as bytes, for the ranks of a run that graded others. Every field is in them, bit for bit.
#pragma once

#include "base/wire.h"
#include "reward/graders.h"

namespace tandem::reward {

// Columns hold scalars, as grades_of() reads no others.
void write_grade(const Grade& grade, base::WireWriter& out);
// EnvironmentError for bytes that write_grade() does not write.
Grade read_grade(base::WireReader& in);

}  // namespace tandem::reward
