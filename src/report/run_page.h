// A run, or several side by side, as one HTML page that needs nothing else: no network, no other file. The curves are
// there without its script, which only reads values off them.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "report/run_files.h"

namespace tandem::report {

// Every page begins so: by it `tandem view` knows a file that it may replace.
inline constexpr const char* kPageMark = "<!doctype html>\n<!-- a page of `tandem view` -->\n";

// Runs that a page shows at most: as many as there are colours that an eye tells apart.
constexpr size_t kMaxPageRuns = 10;

// The page of 1 to kMaxPageRuns runs. Below 20 MB whatever the files hold; it says what it leaves out for that. The
// same files give the same page.
std::string run_page(std::span<const RunFiles> runs);

}  // namespace tandem::report
