#include "config/device_config.h"

#include <fmt/format.h>

#include "base/check.h"

namespace tandem::config {

void DeviceConfig::visit(options::Options& options) {
  const char* const group = "check";
  model.visit_device(options);
  options.option(
      check, "check", group,
      "ask whether the device's memory, numbers and rows are as Tandem needs them, whether a model trains on "
      "it, and how long operations take; about a minute");
  options
      .option(model.hf_checkpoint, "hf-checkpoint", group,
              "Hugging Face directory whose widths are asked for and whose model trains; unset: a tiny model with "
              "drawn weights")
      .path();
  options
      .option(ranks, "ranks", group,
              "also train as so many processes, one for each device, and compare with one; needs --hf-checkpoint")
      .at_least(1)
      .at_most(64);
  options
      .option(report, "report", "output",
              "file for the answers, one JSON record; -: standard output, without the lines")
      .path()
      .does_not_affect_results();
}

void DeviceConfig::check_flags() const {
  TANDEM_USER_CHECK(check || (report.empty() && ranks == 1 && model.hf_checkpoint.empty()),
                    "--report, --ranks and --hf-checkpoint are about the answers: give --check too");
  TANDEM_USER_CHECK(ranks == 1 || !model.hf_checkpoint.empty(),
                    fmt::format("--ranks {}: give --hf-checkpoint too: the model that they train", ranks));
}

}  // namespace tandem::config
