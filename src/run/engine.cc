// `tandem engine` completes requests from standard input, with the weights read once. It opens no socket: the process
// that started it talks to it, as the Python API does.
#include "run/verbs.h"

#include <fmt/format.h>

#include <algorithm>
#include <iostream>
#include <new>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/message_text.h"
#include "device/registry.h"
#include "plan/engine_kv.h"
#include "report/json_output.h"
#include "report/report.h"
#include "rollout/rollout_plan.h"
#include "run/completion_requests.h"
#include "run/request_lines.h"
#include "sampling/rollout_phase.h"
#include "session/model_session.h"
#include "session/read_model.h"
#include "worker/worker_config.h"

namespace tandem::run {

namespace {

bool is_blank(const std::string& line) { return line.find_first_not_of(" \t\r") == std::string::npos; }

// Returns the rollout of a request. Completions depend on the request and the seed alone: samples count from 0 in each.
sampling::RolloutRequest rollout_request(const CompletionRequest& request) {
  sampling::RolloutRequest rollout;
  rollout.is_graded = false;
  for (const session::PromptLine& prompt : request.prompts) rollout.prompts.push_back(&prompt);
  rollout.n_samples_per_prompt = request.sampling.n_samples_per_prompt;
  rollout.sampling = request.sampling.sampling();
  rollout.skip_special_tokens = request.sampling.skip_special_tokens;
  rollout.title = "engine";
  return rollout;
}

base::Json answer_of(const CompletionRequest& request, const sampling::Rollout& rollout) {
  const auto n = static_cast<size_t>(request.sampling.n_samples_per_prompt);
  base::Json prompts = base::Json::array();
  for (size_t p = 0; p < request.prompts.size(); ++p) {
    base::Json completions = base::Json::array();
    for (size_t i = 0; i < n; ++i) completions.push_back(completion_record(rollout.samples[p * n + i]));
    const rl::Prompt& prompt = *request.prompts[p].prompt;
    prompts.push_back({{"text", prompt.text}, {"tokens", prompt.tokens}, {"completions", std::move(completions)}});
  }
  return {{"id", request.id}, {"prompts", std::move(prompts)}};
}

// Returns limits that bound the texts by what can fit the context.
RequestLimits request_limits(const config::EngineProcessConfig& config, int64_t vocab, int64_t context,
                             const std::vector<std::string>& token_bytes) {
  size_t longest = 0;
  for (const std::string& token : token_bytes) longest = std::max(longest, token.size());
  return {.num_samples = config.max_request_samples,
          .vocab = vocab,
          .context_tokens = context,
          .max_token_bytes = static_cast<int64_t>(longest)};
}

// Drops the groups that the engine took of a request before it refused it: they must not decode next to the next one.
void drop_all(rollout::Engine& engine) {
  engine.abort_all();
  while (engine.next_finished()) {
  }
}

}  // namespace

int answer_requests(const config::EngineProcessConfig& config, const config::RunMode& mode) {
  session::ModelSession session(config.model);
  session::check_stop_tokens(config.rollout, session.config());
  const int64_t context =
      config.rollout.max_context_len > 0 ? config.rollout.max_context_len : session.config().max_positions;
  const int64_t kv_bytes =
      plan::engine_kv_bytes(config.model, config.rollout, session.config(),
                            {.sequences = config.rollout.limits.max_running, .context_tokens = context},
                            device::device_bytes(session.device()));
  if (mode.dry_run) {
    session.check_weights();
    report::Report().print_result(
        fmt::format("context {} tokens, KV cache {} bytes; nothing was read from standard input "
                    "(--dry-run)",
                    context, base::with_commas(kv_bytes)));
    return 0;
  }
  session.load_weights();
  const auto model = session.make_model();
  const rollout::EngineConfig engine_config =
      session.engine_config(config.rollout, rollout::num_kv_blocks(session.config(), kv_bytes),
                            /*has_other_stops=*/true);
  const RequestLimits limits = request_limits(config, session.config().vocab, context, engine_config.token_bytes);
  const auto engine = rollout::make_engine(engine_config, *model);
  sampling::RolloutPhase phase(*engine, session.text());
  report::Report report;
  report::JsonOutput output("-");
  output.write({{"ready", true}, {"context_tokens", context}, {"vocab_size", session.config().vocab}});
  output.finish();
  const std::string input = "standard input";
  std::ios::sync_with_stdio(false);  // reads in blocks, not a byte at a time
  for (RequestLines lines(std::cin, config.max_request_bytes); lines.next();) {
    if (!lines.is_too_long() && is_blank(lines.text())) continue;
    base::Json id, answer;
    try {
      TANDEM_USER_CHECK(!lines.is_too_long(),
                        fmt::format("{}:{}: the line has {} bytes; a request may have {}: ask for less at a time, or "
                                    "start the engine with more --max-request-bytes",
                                    input, lines.number(), lines.num_bytes(), config.max_request_bytes));
      const base::Json parsed = base::parse_json(lines.text(), input, lines.number());
      id = request_id(parsed);
      const CompletionRequest request =
          read_request(parsed, {.file = input, .line = lines.number(), .text = lines.text()}, config.rollout,
                       config.data, limits, session.text());
      session::check_stop_tokens(request.sampling, session.config());
      const auto rollout = phase.run(rollout_request(request), nullptr, report);
      answer = answer_of(request, *rollout);
    } catch (const UserError& error) {
      drop_all(*engine);
      answer = {{"id", id}, {"error", error.what()}};
    } catch (const worker::WorkerError& error) {  // a lost tokenizer is replaced by its next call
      drop_all(*engine);
      answer = {{"id", id},
                {"error", fmt::format("{}:{}: the tokenizer was lost while the request was answered: {}; the next "
                                      "request gets a new one",
                                      input, lines.number(), base::one_line(error.what()))}};
    } catch (const std::bad_alloc&) {
      throw EnvironmentError(
          fmt::format("{}:{}: out of memory while the request was answered: ask for fewer or shorter "
                      "completions at a time, or raise the limit (ulimit -v)",
                      input, lines.number()));
    }
    output.write(answer);
    output.finish();
  }
  return 0;
}

}  // namespace tandem::run
