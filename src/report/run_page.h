// Shows a run, or several side by side, as one HTML page that needs nothing else: no network, no other file. The curves
// need no script; the page's script only reads values off them.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "report/run_files.h"

namespace tandem::report {

// Every page begins with this, by which `tandem view` recognizes a file that it may replace.
inline constexpr const char* kPageMark = "<!doctype html>\n<!-- a page of `tandem view` -->\n";

// A page shows at most so many runs: as many as there are colours that an eye tells apart.
constexpr size_t kMaxPageRuns = 10;

// Returns the page of 1 to kMaxPageRuns runs. It stays below 20 MB whatever the files hold, and lists what it leaves
// out for that. The same files give the same page.
std::string run_page(std::span<const RunFiles> runs);

}  // namespace tandem::report
