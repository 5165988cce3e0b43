#include "report/run_page.h"

#include <fmt/format.h>

#include "base/check.h"
#include "report/page_parts.h"
#include "report/page_runs.h"
#include "report/run_page_assets.h"

namespace tandem::report {

std::string run_page(std::span<const RunFiles> read) {
  TANDEM_CHECK(!read.empty() && read.size() <= kMaxPageRuns);
  const PageRuns runs(read);
  PageNotes notes;
  std::string page = page_head(runs);
  page += curves_part(runs, notes);
  page += faults_part(runs, notes);
  page += times_part(runs);
  page += memory_part(runs);
  page += samples_part(runs);
  page += options_part(runs);
  page += log_part(runs);
  page += other_metrics_part(runs, notes);
  page += left_out_part(runs, notes);
  page += fmt::format("</main>\n<script>{}</script>\n</body>\n</html>\n", kPageScript);
  return page;
}

}  // namespace tandem::report
