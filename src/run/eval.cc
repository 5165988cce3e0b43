// `tandem eval` prints the mean reward and pass@k of a checkpoint on data sets.
#include "run/verbs.h"

#include <fmt/format.h>

#include <memory>
#include <optional>

#include "base/check.h"
#include "base/json.h"
#include "base/message_text.h"
#include "device/registry.h"
#include "evaluation/evaluation.h"
#include "evaluation/rewards.h"
#include "evaluation/rollout_metrics.h"
#include "model/registry.h"
#include "plan/engine_kv.h"
#include "plan/plan.h"
#include "report/json_output.h"
#include "report/report.h"
#include "report/sample_file.h"
#include "rollout/rollout_plan.h"
#include "run/learning/reward_model.h"
#include "run/read_paths.h"
#include "session/answer_end.h"
#include "session/generator_setup.h"
#include "session/model_session.h"
#include "session/read_model.h"
#include "session/read_reward_model.h"
#include "session/stop_signal.h"
#include "weights/weights_plan.h"

namespace tandem::run {

namespace {

using Results = std::vector<evaluation::Evaluation::Result>;

int64_t weight_bytes(const model::ModelConfig& model) {
  return weights::store_bytes(model::build_layout(model), model::dtype_bytes(model.dtype));
}

// Prints a line for each data set, and writes the files of --output and --sample-output.
void write_results(const config::EvalConfig& config, const Results& results, report::Report& report) {
  base::Json record = base::Json::object();
  for (const evaluation::Evaluation::Result& result : results) {
    if (result.is_scored()) report.print_result(evaluation::eval_line(result));
    for (const auto& [name, value] : result.metrics) record[name] = value;
  }
  if (!config.output.empty()) {
    report::JsonOutput output(config.output);
    output.write(record);
    output.finish();
  }
  if (!config.sample_output.empty()) {
    report::JsonOutput output(config.sample_output);
    for (const evaluation::Evaluation::Result& result : results) {
      for (size_t i = 0; i < result.rollout.samples.size(); ++i) {
        base::Json line = base::Json::object();
        line["data_set"] = result.name;
        line.update(report::sample_record(result.rollout.samples[i], &result.rollout.grades[i],
                                          report::SampleDetail::kReadable));
        output.write(line);
      }
    }
    output.finish();
  }
}

// Throws what kept the samples of a data set from being scored.
void check_all_scored(const Results& results) {
  for (const evaluation::Evaluation::Result& result : results) {
    if (result.is_scored()) continue;
    const std::string line = evaluation::unscored_line(result);
    TANDEM_ENV_CHECK(!evaluation::failed_for_environment(result.rollout), line);
    throw UserError(line);
  }
}

}  // namespace

int evaluate(const config::EvalConfig& config, const config::RunMode& mode) {
  config.check();
  const std::vector<ReadPath> read = read_paths(config);
  check_output(config.output, read, mode);
  check_output(config.sample_output, read, mode);
  TANDEM_USER_CHECK(!report::is_same_file(config.output, config.sample_output),
                    fmt::format("--sample-output {}: is the file of --output; name another one", config.sample_output));
  session::ModelSession session(config.model);
  const evaluation::Evaluation evaluation(config.eval, config.rollout, config.data, config.reward, session.text());
  const int64_t longest = evaluation.context_tokens(session.config());
  const std::optional<model::ModelConfig> judge = session::read_reward_model(config.reward, session.config());
  const int64_t kv_bytes = plan::engine_kv_bytes(config.model, config.rollout, session.config(),
                                                 {.sequences = evaluation.max_sequences(),
                                                  .context_tokens = longest,
                                                  .other_bytes = judge ? weight_bytes(*judge) : 0},
                                                 device::device_bytes(session.device()));
  session::check_stop_tokens(config.rollout, session.config());
  if (evaluation.is_rendered()) {
    session::warn_where_answers_run_on(config.data, config.rollout, session.config(), session.text());
  }
  const session::RewardContext told = session::reward_context(config.data, mode);
  evaluation.check_url_is_asked(config.reward);
  evaluation.try_out(std::nullopt, told);
  check_reward_model(config.reward, session, evaluation.is_rendered());
  session::try_out_generation(config.custom_generate, config.reward, session.directory(), told);
  report::Report report;
  session::print_rewards(evaluation.reward_of_run(config.reward), report);
  if (mode.dry_run) {
    session.check_weights();
    report.print(fmt::format("{} at most in one data set; KV cache {} bytes",
                             base::counted(evaluation.max_sequences(), "completion"), base::with_commas(kv_bytes)));
    report.print_result("everything is in order; nothing was written (--dry-run)");
    return 0;
  }
  session.load_weights();
  std::optional<RewardModel> reward_model;
  if (judge) {
    reward_model.emplace(config.reward, config.data, session,
                         RewardModel::Settings{.max_tokens = plan::reward_model_tokens(*judge, longest),
                                               .batch = config::OptimizerOptions().batch},
                         /*memory=*/nullptr);
  }
  const auto model = session.make_model();
  const auto engine =
      rollout::make_engine(session.engine_config(config.rollout, rollout::num_kv_blocks(session.config(), kv_bytes),
                                                 /*has_other_stops=*/config.custom_generate.is_on()),
                           *model);
  session::defer_stops(
      "stopping: nothing is kept of an evaluation that is not finished (a second signal ends it at once)");
  const evaluation::EvaluationRewards rewards(evaluation, told);
  std::unique_ptr<reward::Generators> generators;
  if (config.custom_generate.is_on()) {
    generators = std::make_unique<reward::Generators>(
        session::generator_config(config.custom_generate, config.reward, session.directory(), told));
  }
  const auto generation = sampling::custom_generation(config.custom_generate, told.metadata_key, session.config(),
                                                      generators.get(), /*is_evaluation=*/true);
  sampling::RolloutPhase phase(*engine, session.text());
  const auto score = [&reward_model](const config::RewardOptions& reward, const session::PromptSet& prompts,
                                     sampling::Rollout& sampled) {
    reward_model.value().score(reward, prompts, sampled, trainer::no_other_ranks());
  };
  const std::optional<std::vector<evaluation::Evaluation::Result>> results =
      evaluation.run(phase, rewards.of_sets(), generation, score, report);
  if (!results) return session::cut_short_exit_code(session::stop_signal());

  write_results(config, *results, report);
  check_all_scored(*results);
  return 0;
}

}  // namespace tandem::run
