// Declares the style and the script of run_page, which the build puts into the program (run_page.css, run_page.js,
// find_samples.js).
#pragma once

namespace tandem::report {

extern const char* const kPageStyle;
extern const char* const kPageScript;

}  // namespace tandem::report
