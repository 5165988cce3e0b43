#include "run/checkpoint_writer.h"

#include <fmt/format.h>

namespace tandem::run {

namespace {
// Tokenizer files of published models are 10-20 MB; logs and metrics of the run go into the same room.
constexpr int64_t kOtherFilesBytes = int64_t{32} << 20;
}  // namespace

int64_t checkpoint_bytes(const Session& session) { return session.weight_bytes() + kOtherFilesBytes; }

double write_checkpoint(const Session& session, const RunDirectory& directory, int64_t step, Report& report) {
  const double begin = report.seconds();
  report.sync();
  session.export_checkpoint(directory.checkpoint(step), /*overwrite=*/false);
  directory.set_latest(step);
  report.line(fmt::format("saved {}", directory.checkpoint(step)));
  return report.seconds() - begin;
}

}  // namespace tandem::run
