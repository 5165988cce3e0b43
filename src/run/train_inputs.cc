#include "run/train_inputs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <ranges>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/files.h"
#include "base/log.h"
#include "base/message_text.h"
#include "base/size.h"
#include "checkpoint/data_position.h"
#include "checkpoint/load_checkpoint.h"
#include "checkpoint/result_inputs.h"
#include "checkpoint/resume.h"
#include "checkpoint/run_state.h"
#include "groups/in_flight.h"
#include "model/config.h"
#include "model/lora.h"
#include "plan/plan_text.h"
#include "report/json_output.h"
#include "report/sample_file.h"
#include "run/frozen_weights.h"
#include "run/learning/reference.h"
#include "run/learning/reward_model.h"
#include "run/learning/teachers.h"
#include "run/read_paths.h"
#include "run/trackers.h"
#include "run/train_warnings.h"
#include "sampling/rollout_file.h"
#include "session/advantage_setup.h"
#include "session/answer_end.h"
#include "session/generator_setup.h"
#include "session/given_answers.h"
#include "session/plan_together.h"
#include "session/ranks.h"
#include "session/read_model.h"
#include "session/read_reference.h"
#include "session/read_reward_model.h"
#include "session/read_teachers.h"
#include "session/trainer_setup.h"
#include "weights/store.h"

namespace tandem::run {

namespace {

config::TrainConfig checked(config::TrainConfig config) {
  config.check();
  return config;
}

session::PromptSet load_prompts(const config::TrainConfig& config, session::ModelSession& session) {
  const config::DataOptions data = config.reward.data(config.data);
  session::PromptSet prompts =
      session::load_all_prompts(data, session.text(), session::line_check(config.reward, data));
  if (config.loss.loss.opd.has_given_answers()) {
    session::read_given_answers(data,
                                {.key = config.loss.opd_answer_key,
                                 .max_tokens = config.rollout.response_len(),
                                 .max_context_tokens = config.rollout.max_context_len,
                                 .skip_special_tokens = config.rollout.skip_special_tokens},
                                session.text(), session.config(), prompts);
  }
  return prompts;
}

int64_t num_prompts(const session::PromptSet& prompts) { return static_cast<int64_t>(prompts.prompts.size()); }

plan::TrainPlan plan_of(const config::TrainConfig& config, const session::ModelSession& session,
                        const session::PromptSet& prompts, const evaluation::Evaluation& evaluation,
                        const std::optional<checkpoint::Checkpoint>& checkpoint, const mesh::Mesh& mesh) {
  const auto tokens_of = [](const session::PromptLine& line) { return std::ssize(line.prompt->tokens); };
  plan::PlanInputs facts{.longest_prompt = prompts.longest_tokens,
                         .longest_place = prompts.longest_place,
                         .shortest_prompt = std::ranges::min(prompts.prompts | std::views::transform(tokens_of)),
                         .eval_sequences = evaluation.max_sequences()};
  if (!config.colocate) facts.role = plan::Role::kTrainer;
  facts.gives_weights = !config.colocate && mesh.is_conductor();
  facts.eval_context_tokens = evaluation.context_tokens(session.config());
  facts.teachers = session::read_teachers(config.loss, session.config());
  facts.reward_model = session::read_reward_model(config.reward, session.config());
  facts.resumes_reference = checkpoint && checkpoint::read_state(*checkpoint).reference_step > 0;
  if (!facts.resumes_reference && config.loss.needs_reference() && !config.loss.ref_load.empty())
    facts.reference = session::read_reference(config.loss.ref_load, session.config());
  const plan::DeviceMemory device = plan::device_memory(config, device::device_bytes(session.device()));
  return session::plan_together(config, session.config(), facts, device, mesh.tensor().host);
}

// Returns what the run of the checkpoint has done. How many samples a filter keeps decides how many prompts and steps a
// rollout takes, and rollouts that were read from files took none: those are counted as planned.
config::RunProgress progress_of(const std::optional<checkpoint::Checkpoint>& checkpoint,
                                const config::TrainConfig& config, int64_t num_prompts) {
  if (!checkpoint) return {};
  const checkpoint::RunState state = checkpoint::read_state(*checkpoint);
  const base::Size rollouts = state.step;
  if (config.dynamic_sampling.is_on() || !config.load_debug_rollout_data.empty()) {
    return {.rollouts = rollouts,
            .steps = rollouts * config.steps_per_rollout(),
            .records = rollouts * config.rollout_batch_size};
  }
  config::RunProgress done = {.rollouts = rollouts,
                              .steps = state.optimizer.steps,
                              .records = base::Size(state.cursor.epoch) * num_prompts + state.cursor.offset};
  if (!config.keeps_groups()) return done;
  // Groups in flight have been drawn, and the further rollouts train on them.
  const std::optional<std::string> in_flight = checkpoint::in_flight_of(*checkpoint);
  if (in_flight) done.records -= groups::num_groups_in(*in_flight, checkpoint->directory());
  return done;
}

// Throws UserError if the checkpoint is beyond the length of the run.
int64_t rollouts_of_run(const config::TrainConfig& config, int64_t num_prompts, const config::RunProgress& done) {
  const int64_t rollouts = config.rollouts(num_prompts, done);
  checkpoint::check_length(config.checkpoints, done.rollouts, rollouts);
  return rollouts;
}

// Returns the space that a run takes which has finished `begin` of its rollouts.
RunSpace run_space(const session::ModelSession& session, const config::TrainConfig& config,
                   const session::PromptSet& prompts, int64_t num_rollouts, int64_t begin) {
  RunSpace space = checkpoint_space(
      session.config(), weights::copied_bytes(session.directory()),
      config.output.num_exports(num_rollouts, begin) + num_further_bests(config.checkpoints, config.output),
      config.output.num_checkpoints(num_rollouts, begin), config.checkpoints.keep_latest,
      saved_reference_element_bytes(config.loss, session.config().dtype),
      num_checkpoints_there(config.checkpoints, config.output.save, begin));
  add_records(space, config, prompts, num_rollouts - begin);
  return space;
}

// Throws UserError for a model whose experts cannot be shared.
void check_expert_parallel(const model::ModelConfig& model) {
  TANDEM_USER_CHECK(model.experts,
                    "--rollout-expert-parallel: the model has no experts that devices could share; leave it out");
  TANDEM_USER_CHECK(
      !model::adapts_experts(model),
      "--rollout-expert-parallel with --target-modules of experts: experts with an adapter are not shared; "
      "leave one of the two out");
  TANDEM_USER_CHECK(
      !model.is_quantised(),
      fmt::format("--rollout-expert-parallel with --dtype {}: quantised experts are not shared; leave one "
                  "of the two out",
                  model.dtype_name()));
}

// Logs which prompts --num-epoch leaves out. Throws UserError for a model that cannot be spread over as many devices, a
// stop token that the model does not have, a reference of another shape, a teacher that cannot teach, a reward model
// that lacks something, or a dump's name without {rollout_id}; EnvironmentError if dumps cannot be written. Returns
// what check_teachers() does.
std::vector<scorer::Welcome> check_start(const config::TrainConfig& config, session::ModelSession& session,
                                         const session::PromptSet& prompts, const config::RunProgress& done,
                                         const TeacherCheck& teachers) {
  session::check_spread(session.config(), config.mesh);
  if (config.mesh.rollout_expert_parallel) check_expert_parallel(session.config());
  session::check_stop_tokens(config.rollout, session.config());
  if (config.loss.needs_reference()) {
    check_reference(session, config.loss.ref_load, config.loss.ref_update_interval.has_value());
  }
  std::vector<scorer::Welcome> teachers_elsewhere = check_teachers(config, session, prompts, teachers);
  check_reward_model(config.reward, session, prompts.is_rendered);
  for (const auto& [flag, pattern] : {std::pair{"--save-debug-rollout-data", config.output.save_debug_rollout_data},
                                      {"--load-debug-rollout-data", config.load_debug_rollout_data}}) {
    if (!pattern.empty()) report::rollout_path(flag, pattern, 0);
  }
  if (const std::string& dumps = config.output.save_debug_rollout_data; !dumps.empty()) {
    report::check_output(report::rollout_path("--save-debug-rollout-data", dumps, 0));
  }
  const std::string left_out = config.left_out_by_epochs(num_prompts(prompts), done);
  if (!left_out.empty()) base::log_info("{}", left_out);
  return teachers_elsewhere;
}

std::optional<sampling::ScheduleLog> read_schedule(const config::TrainConfig& config) {
  if (config.async.replay_schedule.empty()) return std::nullopt;
  const std::string path = config.async.replay_schedule + "/schedule.jsonl";
  TANDEM_USER_CHECK(base::file_exists(path), fmt::format("--replay-schedule {}: there is no schedule.jsonl; name a run "
                                                         "that sampled while it trained",
                                                         config.async.replay_schedule));
  return std::optional<sampling::ScheduleLog>(std::in_place, path, config.rollout.n_samples_per_prompt);
}

void check_best(const std::string& metric, const evaluation::Evaluation& evaluation) {
  if (metric.empty()) return;
  std::vector<std::string> names;
  for (const evaluation::Evaluation::RewardMetric& known : evaluation.reward_metrics()) names.push_back(known.name);
  TANDEM_USER_CHECK(
      std::ranges::find(names, metric) != names.end(),
      fmt::format("--save-best {}: no such metric of the evaluations; give one of {}", metric, fmt::join(names, ", ")));
}

// Throws UserError unless the file of rollout `begin` of --load-debug-rollout-data is one that the run can train on,
// and those of the rollouts after it are there.
void check_debug_rollouts(const TrainInputs& inputs, int64_t begin) {
  const std::string& pattern = inputs.config.load_debug_rollout_data;
  if (pattern.empty() || begin >= inputs.num_rollouts) return;
  inputs.read_debug_rollout(begin);
  for (int64_t rollout_id = begin + 1; rollout_id < inputs.num_rollouts; ++rollout_id) {
    const std::string path = inputs.debug_rollout_path(rollout_id);
    TANDEM_USER_CHECK(
        base::file_exists(path),
        fmt::format("{}: no such file, and --load-debug-rollout-data is to give rollouts {} to {}; put it "
                    "there, or give another --num-rollout",
                    path, begin, inputs.num_rollouts - 1));
  }
}

// Names what earlier versions computed in another way (docs/RUNS.md).
std::map<std::string, std::string> new_definitions(const config::TrainConfig& config, const model::ModelConfig& model) {
  std::map<std::string, std::string> result = rl::new_definitions(config.loss.loss);
  if (model.lora && model.lora->dropout > 0.0 && config.keeps_groups())
    result["the ratio of samples of the present weights under --lora-dropout"] = "1";
  return result;
}

}  // namespace

TrainInputs::TrainInputs(const config::TrainConfig& given, const config::RunMode& run_mode,
                         std::unique_ptr<mesh::Mesh> ranks)
    : mesh(std::move(ranks)),
      config(checked(given)),
      mode(run_mode),
      session(config.model, config.lora, config.optimizer, mesh->tensor()),
      prompts(load_prompts(config, session)),
      evaluation(config.eval, config.rollout, config.data, config.reward, session.text()),
      checkpoint(checkpoint::open_checkpoint(config.checkpoints, mode.result_options)),
      done(progress_of(checkpoint, config, num_prompts(prompts))),
      num_rollouts(rollouts_of_run(config, num_prompts(prompts), done)),
      plan(plan_of(config, session, prompts, evaluation, checkpoint, *mesh)),
      trainer(session::trainer_config(config, session.config().num_layers, steps_before(num_rollouts))),
      schedule_log(read_schedule(config)),
      space(run_space(session, config, prompts, num_rollouts, done.rollouts)),
      directory(config.output.save,
                checkpoint::run_folder(config.checkpoints, config.output.save, config.output.overwrite), space.bytes(),
                space.what_for(), done.rollouts) {
  check_keeps(directory, read_paths(config));
  check_trackers(config.output.trackers);
  config.reward.line_types = session::rm_types_of(prompts);
  config.reward.check_some_pass();
  evaluation.check_url_is_asked(config.reward);
  const evaluation::Evaluation::Grading grading = {.reward = config.reward, .label_key = config.data.lines.label_key};
  std::vector<const session::PromptSet*> graded = evaluation.prompts_graded(grading);
  graded.insert(graded.begin(), &prompts);
  session::try_out_reward(evaluation.reward_of_run(config.reward), reward_context(), graded);
  evaluation.try_out(grading, reward_context());
  groups::try_out_filter(config.dynamic_sampling, config.reward, reward_context());
  session::try_out_advantages(config.loss.custom_advantage_path, config.reward, reward_context());
  session::try_out_generation(config.custom_generate, config.reward, session.directory(), reward_context());
  check_best(config.output.save_best, evaluation);
  constexpr double kWaitOfDryRun = 5.0;  // seconds that the process of a teacher has to answer
  teachers_elsewhere = check_start(config, session, prompts, done,
                                   {.context_tokens = plan.longest_prompt + config.rollout.response_len(),
                                    .wait_s = mode.dry_run ? kWaitOfDryRun : config.mesh.timeout_s(),
                                    .hosts = mesh->host()});
  check_debug_rollouts(*this, done.rollouts);
  // The inputs are read once: one that is edited while the run continues is another one.
  result_inputs = checkpoint::result_inputs(
      {.flags = mode.result_options,
       .kernels = session.ops().name(),
       .schedule = trainer.schedule,
       .model_directory = session.directory(),
       .frozen = frozen_weights(config, session, teachers_elsewhere),
       .adapter = session::adapter_inputs(session.config()),
       .prompt_data = config.data.prompt_data,
       .text_prefix = prompts.text_prefix,
       .custom_rm_paths = config.reward.custom_rm_path,
       .group_filter = config.dynamic_sampling.name(),
       .generate_function = config.custom_generate.function,
       .advantage_function = config.loss.custom_advantage_path,
       .groups_in_flight = config.keeps_groups() ? std::optional(config.groups_at_once()) : std::nullopt,
       .samples_while_training = config.async.is_live(config.colocate),
       .definitions = new_definitions(config, session.config())});
  if (checkpoint) {
    checkpoint::check_can_resume(*checkpoint, result_inputs, mode.values_where_absent, mode.texts,
                                 config.checkpoints.allow_changed_config, num_prompts(prompts));
    checkpoint::check_trained_tensors(*checkpoint, model::trained_layout(session.config()));
  }
  for (const std::string& warning : train_warnings(config)) base::log_warning("{}", warning);
  if (const auto text = warm_up_warning(trainer.schedule, steps_before(num_rollouts))) base::log_warning("{}", *text);
  for (const std::string& idle : mode.idle_flags) base::log_warning("{}", idle);
  if (prompts.is_rendered || evaluation.is_rendered()) {
    session::warn_where_answers_run_on(config.data, config.rollout, session.config(), session.text());
  }
}

int64_t TrainInputs::steps_before(int64_t rollout_id) const {
  return done.steps + (base::Size(rollout_id) - done.rollouts) * config.steps_per_rollout();
}

int64_t TrainInputs::prompts_before(int64_t rollout_id) const {
  return done.records + (base::Size(rollout_id) - done.rollouts) * config.rollout_batch_size;
}

evaluation::Evaluation::RewardMetric TrainInputs::best_metric() const {
  for (const evaluation::Evaluation::RewardMetric& metric : evaluation.reward_metrics()) {
    if (metric.name == config.output.save_best) return metric;
  }
  return {.name = config.output.save_best, .judged_by = "", .asked = ""};
}

std::string TrainInputs::debug_rollout_path(int64_t rollout_id) const {
  return report::rollout_path("--load-debug-rollout-data", config.load_debug_rollout_data, rollout_id);
}

sampling::Rollout TrainInputs::read_debug_rollout(int64_t rollout_id) const {
  return sampling::read_rollout(debug_rollout_path(rollout_id),
                                {.num_samples = config.samples_per_rollout(),
                                 .vocab = session.config().vocab,
                                 .context_tokens = plan.context_tokens,
                                 .further_sequences = config.custom_generate.further_sequences()});
}

evaluation::Rewards TrainInputs::start_rewards() const {
  // A process grades nothing if rollout workers sample for it, or if it is not rank 0 of its tensor-parallel group.
  if (!config.colocate || mesh->tensor().rank() > 0) return evaluation::Rewards(evaluation);
  const session::RewardContext context = reward_context();
  std::optional<reward::GeneratorConfig> generation;
  if (config.custom_generate.is_on())
    generation = session::generator_config(config.custom_generate, config.reward, session.directory(), context);
  return evaluation::Rewards(config.reward, config.dynamic_sampling, context, evaluation, generation);
}

session::RewardContext TrainInputs::reward_context() const {
  session::RewardContext context = session::reward_context(config.data, mode);
  context.output_path = directory.grader_output_file();
  return context;
}

int print_dry_run(const TrainInputs& inputs) {
  const config::TrainConfig& config = inputs.config;
  const model::ModelConfig& model = inputs.session.config();
  inputs.session.check_weights();
  inputs.directory.check_not_written();
  report::Report report;
  report.print(fmt::format("model: {} parameters in {}, {} layers, context {}", model.num_parameters(),
                           model.dtype_name(), model.num_layers, model.max_positions));
  if (model.lora) report.print(session::lora_text(model));
  report.print(fmt::format("data: {}, the longest of {}", base::counted(num_prompts(inputs.prompts), "prompt"),
                           base::counted(inputs.prompts.longest_tokens, "token")));
  const int64_t epochs = config.num_epochs_per_rollout;
  report.print(fmt::format("run: {} of {} x {} samples, {} of {} each{}", base::counted(inputs.num_rollouts, "rollout"),
                           config.rollout_batch_size, config.rollout.n_samples_per_prompt,
                           base::counted(config.steps_per_rollout(), "optimizer step"),
                           base::counted(config.samples_per_step(), "sample"),
                           epochs > 1 ? fmt::format(" ({} epochs over each rollout)", epochs) : ""));
  session::print_rewards(inputs.evaluation.reward_of_run(config.reward), report);
  report.print(plan::plan_text(inputs.plan, model));
  report.print(fmt::format("on disk: about {:.1f} MiB, {} bytes{}",
                           static_cast<double>(inputs.space.bytes()) / (1 << 20), inputs.space.bytes(),
                           inputs.space.what_for()));
  if (inputs.checkpoint) report.print(fmt::format("resumes from {}", inputs.checkpoint->directory()));
  report.print_result("everything is in order; nothing was written (--dry-run)");
  return 0;
}

void print_start(const TrainInputs& inputs, int64_t rollout_id, report::Report& report) {
  const model::ModelConfig& model = inputs.session.config();
  report.print(fmt::format("{} parameters in {} on {}  {}  {} of {} x {} samples  -> {}",
                           base::with_commas(model.num_parameters()), model.dtype_name(), inputs.session.ops().name(),
                           base::counted(num_prompts(inputs.prompts), "prompt"),
                           base::counted(inputs.num_rollouts, "rollout"), inputs.config.rollout_batch_size,
                           inputs.config.rollout.n_samples_per_prompt, inputs.directory.path()));
  if (model.lora) report.print(session::lora_text(model));
  session::print_rewards(inputs.evaluation.reward_of_run(inputs.config.reward), report);
  if (inputs.checkpoint) {
    report.print(fmt::format(
        "resumes after rollout {} of {}{}", rollout_id, inputs.checkpoint->directory(),
        rollout_id == inputs.num_rollouts ? "; nothing is left to do: raise --num-rollout or --num-epoch" : ""));
  }
}

}  // namespace tandem::run
