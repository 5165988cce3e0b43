// A run, or two side by side, as one HTML page that needs nothing else: no network, no other file. The curves are
// there without its script, which only reads values off them.
#pragma once

#include <string>

#include "report/run_files.h"

namespace tandem::report {

// Every page begins so: by it `tandem view` knows a file that it may replace.
inline constexpr const char* kPageMark = "<!doctype html>\n<!-- a page of `tandem view` -->\n";

// The page of one run, or of two (`other` is not null). Below 20 MB whatever the files hold; what is left out for that
// is said in it. The same files give the same page.
std::string run_page(const RunFiles& run, const RunFiles* other);

}  // namespace tandem::report
