#include "base/standard_output.h"

#include <unistd.h>

#include <cstdio>

#include "base/check.h"
#include "base/file_parts.h"

namespace tandem::base {

void write_to_standard_output(std::string_view text) {
  const bool is_written = std::fflush(stdout) == 0 && write_all(STDOUT_FILENO, text.data(), text.size()) == 0;
  TANDEM_ENV_CHECK(is_written, "standard output: cannot be written (closed pipe or full disk)");
}

}  // namespace tandem::base
