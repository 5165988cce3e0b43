// `tandem generate` writes completions of each prompt.
#include "run/verbs.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/check.h"
#include "base/log.h"
#include "base/message_text.h"
#include "device/registry.h"
#include "plan/engine_kv.h"
#include "plan/kv_size.h"
#include "report/json_output.h"
#include "report/report.h"
#include "rollout/rollout_plan.h"
#include "run/completion_requests.h"
#include "run/read_paths.h"
#include "sampling/rollout_phase.h"
#include "session/answer_end.h"
#include "session/model_session.h"
#include "session/prompt_set.h"
#include "session/read_model.h"
#include "session/stop_signal.h"

namespace tandem::run {

namespace {

// The lines of a batch are written when it is finished, in the order of the data.
constexpr size_t kPromptsPerBatch = 1024;

void write_batch(const session::PromptSet& data, const sampling::RolloutRequest& request,
                 const sampling::Rollout& rollout, report::JsonOutput& output) {
  const auto n = static_cast<size_t>(request.n_samples_per_prompt);
  for (size_t p = 0; p < request.prompts.size(); ++p) {
    const data::PromptRecord& line = request.prompts[p]->record;
    const rl::SharedPrompt& prompt = request.prompts[p]->prompt;
    base::Json record = base::Json::object();
    record["line"] = line.line;
    if (!data.sources.empty()) record["source"] = data.sources.at(prompt.get());
    record["prompt"] = prompt->text;
    if (!line.label.is_null()) record["label"] = line.label;
    record["prompt_tokens"] = prompt->tokens;
    base::Json completions = base::Json::array();
    for (size_t i = 0; i < n; ++i) completions.push_back(completion_record(rollout.samples[p * n + i]));
    record["completions"] = std::move(completions);
    output.write(record);
  }
}

}  // namespace

int generate(const config::GenerateConfig& config, const config::RunMode& mode) {
  check_output(config.output, read_paths(config), mode);
  session::ModelSession session(config.model);
  const session::PromptSet prompts = session::load_all_prompts(config.data, session.text());
  const int64_t context =
      plan::choose_context_tokens(config.rollout, session.config(), prompts.longest_tokens, prompts.longest_place);
  const int64_t n = config.rollout.n_samples_per_prompt;
  const auto batch = static_cast<int64_t>(std::min(prompts.prompts.size(), kPromptsPerBatch));
  const int64_t kv_bytes = plan::engine_kv_bytes(config.model, config.rollout, session.config(),
                                                 {.sequences = batch * n, .context_tokens = context},
                                                 device::device_bytes(session.device()));
  const rl::SamplingParams sampling = config.rollout.sampling();
  session::check_stop_tokens(config.rollout, session.config());
  if (prompts.is_rendered)
    session::warn_where_answers_run_on(config.data, config.rollout, session.config(), session.text());
  report::Report report;
  if (mode.dry_run) {
    session.check_weights();
    report.print(fmt::format("{}, the longest of {}; KV cache {} bytes",
                             base::counted(std::ssize(prompts.prompts), "prompt"),
                             base::counted(prompts.longest_tokens, "token"), base::with_commas(kv_bytes)));
    report.print_result("everything is in order; nothing was written (--dry-run)");
    return 0;
  }
  session.load_weights();
  const auto model = session.make_model();
  const auto engine = rollout::make_engine(
      session.engine_config(config.rollout, rollout::num_kv_blocks(session.config(), kv_bytes)), *model);
  sampling::RolloutPhase phase(*engine, session.text());
  session::defer_stops(fmt::format(
      "stopping: batches of {} prompts that are finished are written (a second signal ends the process at once)",
      kPromptsPerBatch));
  report::JsonOutput output(config.output);
  int64_t num_completions = 0, num_tokens = 0;
  double seconds = 0.0;
  for (size_t begin = 0; begin < prompts.prompts.size(); begin += kPromptsPerBatch) {
    sampling::RolloutRequest request;
    const size_t end = std::min(prompts.prompts.size(), begin + kPromptsPerBatch);
    for (size_t p = begin; p < end; ++p) request.prompts.push_back(&prompts.prompts[p]);
    request.n_samples_per_prompt = n;
    request.sampling = sampling;
    request.first_sample_id = begin * static_cast<uint64_t>(n);
    request.skip_special_tokens = config.rollout.skip_special_tokens;
    request.is_graded = false;
    request.title = prompts.prompts.size() <= kPromptsPerBatch
                        ? "generate"
                        : fmt::format("generate {} to {} of {}", begin + 1, end, prompts.prompts.size());
    const std::optional<sampling::Rollout> rollout = phase.run(request, nullptr, report);
    if (!rollout) {
      base::log_warning("prompts {} to {}: sampling was stopped, and none of their completions is written", begin + 1,
                        end);
      break;
    }
    write_batch(prompts, request, *rollout, output);
    for (const rl::Sample& sample : rollout->samples) num_tokens += static_cast<int64_t>(sample.completion.size());
    num_completions += static_cast<int64_t>(rollout->samples.size());
    seconds += rollout->seconds;
  }
  output.finish();
  base::log_info("{}, {} in {:.3f} s ({:.0f} tok/s)", base::counted(num_completions, "completion"),
                 base::counted(num_tokens, "token"), seconds,
                 static_cast<double>(num_tokens) / std::max(seconds, 1e-9));
  return session::stop_requested() ? session::cut_short_exit_code(session::stop_signal()) : 0;
}

}  // namespace tandem::run
