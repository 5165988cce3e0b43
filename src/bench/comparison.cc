#include "bench/comparison.h"

#include <fmt/format.h>

#include "base/message_text.h"

namespace tandem::bench {

std::string Comparison::text(const std::string& what) const {
  const std::string all = fmt::format("{} {}", base::with_commas(compared), what);
  if (is_equal()) return all;
  return fmt::format("{} of {} differ, by {:.3g} at most", base::with_commas(different), all, largest);
}

}  // namespace tandem::bench
