#include "config/custom_generate_options.h"

#include <fmt/format.h>

#include "base/check.h"

namespace tandem::config {

void CustomGenerateOptions::visit(options::Options& options) {
  const char* const group = "rollout";
  options
      .option(function, "custom-generate-function-path", group,
              "Python function that makes each sample, FILE.py:function, in slime's dialect: an async function that "
              "asks the engine, tools in between, and returns tokens with a loss mask; unset: the engine alone")
      .path()
      .does_not_affect_results();  // a checkpoint remembers the function itself: checkpoint/result_inputs.h
  options
      .option(limits.num_processes, "custom-generate-num-workers", group,
              "processes that run --custom-generate-function-path; --rm-python, --rm-memory-bytes and --rm-sandbox "
              "hold for them too")
      .at_least(1)
      .at_most(256)
      .does_not_affect_results()
      .used_if([this] { return is_on(); }, "--custom-generate-function-path");
  options
      .option(limits.max_samples, "custom-generate-concurrency", group,
              "samples that one process of --custom-generate-function-path runs at once")
      .at_least(1)
      .at_most(65536)
      .does_not_affect_results()
      .used_if([this] { return is_on(); }, "--custom-generate-function-path");
  options
      .option(limits.timeout_s, "custom-generate-timeout", group,
              "seconds that --custom-generate-function-path may take for a sample, besides waiting for the engine")
      .greater_than(0)
      .does_not_affect_results()
      .used_if([this] { return is_on(); }, "--custom-generate-function-path");
  options.option(endpoint, "custom-generate-endpoint", group,
                 "let --custom-generate-function-path give its agents an OpenAI-style endpoint on loopback: "
                 "tandem.rollout.endpoint()");
  options
      .option(max_sequences, "custom-generate-max-sequences", group,
              "sequences of which --custom-generate-function-path may make a sample; they share the lengths that a "
              "sample may have")
      .at_least(1)
      .at_most(1024);
}

void CustomGenerateOptions::check() const {
  TANDEM_USER_CHECK(is_on() || !endpoint,
                    "--custom-generate-endpoint: needs --custom-generate-function-path, whose agents ask it");
  TANDEM_USER_CHECK(
      is_on() || max_sequences == 1,
      fmt::format("--custom-generate-max-sequences {}: needs --custom-generate-function-path, which makes "
                  "them",
                  max_sequences));
  if (!is_on()) return;
  const size_t colon = function.rfind(':');
  TANDEM_USER_CHECK(colon != std::string::npos && colon > 0 && colon + 1 < function.size(),
                    fmt::format("--custom-generate-function-path {}: write it as FILE.py:FUNCTION", function));
}

}  // namespace tandem::config
