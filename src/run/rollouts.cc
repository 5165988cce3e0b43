#include "run/rollouts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/checksum.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/log.h"
#include "base/message_text.h"
#include "base/size.h"
#include "device/waits_for_samples.h"
#include "evaluation/rollout_metrics.h"
#include "rl/distillation.h"
#include "rollout_worker/replica_weights.h"
#include "run/same_files.h"
#include "sampling/processes/connections.h"
#include "session/own_engine.h"
#include "session/ranks.h"
#include "session/run_address.h"

namespace tandem::run {

namespace {

// Returns the limits of the search. Without --max-sampled-groups a filter that drops everything is waited for as long
// as the data may still have a group that it keeps.
groups::SearchLimits search_limits(const config::TrainConfig& config, int64_t num_prompts) {
  constexpr int64_t kMinBatches = 10;  // batches whose groups may all be dropped by chance, where the data are few
  if (const std::optional<int64_t> budget = config.dynamic_sampling.max_sampled_groups) return {.max_groups = *budget};
  return {.max_dropped_in_a_row = std::max(kMinBatches * config.rollout_batch_size, num_prompts)};
}

sampling::Connections::Settings workers_settings(const TrainInputs& inputs, const mesh::Launch& launch) {
  return {.address = session::workers_address(inputs.config.output.save),
          .door = session::network_door(inputs.config.mesh, launch),
          .facts = session::own_facts(inputs.config.model, inputs.mode, inputs.config.is_inexact_device,
                                      inputs.session.ops().name()),
          .welcome = {.longest_prompt = inputs.prompts.longest_tokens,
                      .eval_context_tokens = inputs.evaluation.context_tokens(inputs.session.config()),
                      .eval_sequences = inputs.evaluation.max_sequences(),
                      .line_types = session::rm_types_of(inputs.prompts),
                      .eval_line_types = inputs.evaluation.line_types(),
                      .user_output = std::filesystem::absolute(inputs.directory.grader_output_file())},
          .silence_s = inputs.config.mesh.rollout_health_check_timeout,
          .launcher_descriptor = launch.processes.launcher_descriptor,
          .num_started = launch.placement.num_engines(),
          .are_all_here = !launch.spreads_workers()};
}

}  // namespace

// Rollout workers, as the trainers see them: rank 0 has the connections, and its tensor-parallel group the weights that
// it gives them. The other ranks have neither.
class Rollouts::Workers {
 public:
  Workers(TrainInputs& inputs, const mesh::Launch& launch, session::RunMemory& memory) {
    if (inputs.mesh->data().rank() > 0) return;
    weights_.emplace(inputs.session, inputs.mesh->tensor(), inputs.config.mesh.update_weight_buffer_size);
    if (inputs.session.ops().is_on_host()) memory.add_persistent(memory::Tag::kWeights, weights_->copied_bytes());
    if (!inputs.mesh->is_conductor()) return;
    const sampling::Connections::Settings settings = workers_settings(inputs, launch);
    connections_.emplace(settings, &*weights_);
    session::say_where(inputs.config, launch, settings.door, connections_->port());
  }

  sampling::Connections* connections() { return connections_ ? &*connections_ : nullptr; }
  // `pause` is called on the rank that has the connections (Connections::update_weights).
  int64_t update_weights(const std::function<void()>& pause) {
    if (connections_) return connections_->update_weights(pause);
    if (weights_) weights_->update();
    return 0;
  }

 private:
  std::optional<rollout_worker::ReplicaWeights> weights_;
  std::optional<sampling::Connections> connections_;
};

Rollouts::~Rollouts() = default;

Rollouts::Rollouts(TrainInputs& inputs, const mesh::Launch& launch, session::RunMemory& memory, mesh::Mesh& mesh)
    : inputs_(inputs),
      engine_(inputs.config.colocate
                  ? std::make_unique<session::OwnEngine>(
                        inputs.config, inputs.session, inputs.plan, memory,
                        inputs.config.mesh.rollout_expert_parallel ? std::optional(mesh.data()) : std::nullopt)
                  : nullptr),
      workers_(inputs.config.colocate ? nullptr : std::make_unique<Workers>(inputs, launch, memory)),
      order_(inputs.prompts.file_sizes, inputs.config.data.prompt_data_weights, inputs.config.rollout_shuffle,
             static_cast<uint64_t>(inputs.config.rollout.rollout_seed)),
      phase_(make_phase(launch, mesh, inputs.session.text())) {
  const config::TrainConfig& config = inputs.config;
  if (!config.keeps_groups() || !mesh.is_conductor()) return;
  in_flight_ = std::make_unique<groups::InFlight>(
      groups::InFlightSchedule::Settings{.wanted = config.rollout_batch_size,
                                         .at_once = config.groups_at_once(),
                                         .max_staleness = config.async.max_weight_staleness,
                                         .limits = config.dynamic_sampling.is_on()
                                                       ? search_limits(config, std::ssize(inputs.prompts.prompts))
                                                       : groups::SearchLimits()},
      config.rollout.n_samples_per_prompt, inputs.checkpoint ? inputs.checkpoint->step() : 0);
}

std::unique_ptr<sampling::RolloutPhase> Rollouts::make_phase(const mesh::Launch& launch, mesh::Mesh& mesh,
                                                             text::TextWorker& text) {
  const double timeout_s = inputs_.config.mesh.timeout_s();
  if (workers_) return std::make_unique<sampling::RolloutPhase>(workers_->connections(), timeout_s, mesh);
  return std::make_unique<sampling::RolloutPhase>(
      engine_->engine(), text, mesh,
      sampling::LinkSettings{.door = session::ranks_door(inputs_.config, launch), .timeout_s = timeout_s});
}

std::optional<sampling::Rollout> Rollouts::next(int64_t rollout_id, evaluation::Rewards& rewards,
                                                report::Report& report) {
  std::optional<sampling::Rollout> rollout;
  if (!inputs_.config.load_debug_rollout_data.empty()) {
    // Each rank reads it by itself, and with a stale one on a host they would train a mixture.
    check_read_alike(*inputs_.mesh, [&] {
      rollout = inputs_.read_debug_rollout(rollout_id);
      return ReadFiles{{fmt::format("the file of rollout {} of --load-debug-rollout-data", rollout_id),
                        base::file_checksum(inputs_.debug_rollout_path(rollout_id))}};
    });
  } else {
    const sampling::RolloutRequest request =
        begun_ ? *std::exchange(begun_, std::nullopt) : this->request(rollout_id, rewards);
    rollout = phase_->run(request, rewards.of_training(), report);
    if (rollout && rollout->in_flight) {
      log_schedule(rollout_id, *rollout, report);
      if (!in_flight_) begin_what_rank0_began(*rollout->in_flight);
    } else if (rollout && rollout->filtered) {
      order_.set_cursor(cursors_.at(static_cast<size_t>(rollout->filtered->num_groups - 1)));
    }
  }
  if (rollout && phase_->speaks()) {
    evaluation::warn_of_failures(*rollout, title(rollout_id));
    evaluation::warn_of_filter(*rollout, title(rollout_id));
  }
  return rollout;
}

void Rollouts::go_on(int64_t rollout_id, evaluation::Rewards& rewards) {
  const bool is_live = in_flight_ && inputs_.config.async.is_live(inputs_.config.colocate) && !is_replayed(rollout_id);
  if (!is_live || session::stop_requested()) return;
  begun_ = request(rollout_id, rewards);
  phase_->go_on(*begun_);
}

std::string Rollouts::title(int64_t rollout_id) const {
  return fmt::format("rollout {}/{}", rollout_id + 1, inputs_.num_rollouts);
}

// Returns whether --replay-schedule says what this rollout consists of.
bool Rollouts::is_replayed(int64_t rollout_id) const {
  return inputs_.schedule_log && inputs_.schedule_log->of(rollout_id) != nullptr;
}

const session::PromptLine* Rollouts::next_prompt() {
  const auto index = static_cast<size_t>(order_.next());
  cursors_.push_back(order_.cursor());
  return &inputs_.prompts.prompts[index];
}

// With dynamic sampling a rollout takes more prompts than it keeps, and the run more epochs.
reward::TrainingState Rollouts::state_before(int64_t rollout_id) const {
  const auto epochs = [&](int64_t prompts) {
    return static_cast<double>(prompts) / static_cast<double>(inputs_.prompts.prompts.size());
  };
  return {.global_step = inputs_.steps_before(rollout_id),
          .max_steps = inputs_.steps_before(inputs_.num_rollouts),
          .epoch = epochs(order_.num_taken()),
          .num_train_epochs = static_cast<int64_t>(std::ceil(epochs(inputs_.prompts_before(inputs_.num_rollouts))))};
}

// A group has the number of its prompt in the whole run, so its samples have ids of their own, and the same ones
// whenever it is sampled.
sampling::RolloutRequest Rollouts::request(int64_t rollout_id, evaluation::Rewards& rewards) {
  const config::TrainConfig& config = inputs_.config;
  sampling::RolloutRequest request;
  request.title = title(rollout_id);
  request.n_samples_per_prompt = config.rollout.n_samples_per_prompt;
  const int64_t first_sample = base::Size(order_.num_taken()) * request.n_samples_per_prompt;
  TANDEM_USER_CHECK(first_sample < config::kMaxSamples,
                    fmt::format("a run has at most {} samples, and {} are sampled: begin a new one",
                                config::kMaxSamples, first_sample));
  request.first_sample_id = config.keeps_groups() ? 0 : static_cast<uint64_t>(first_sample);
  request.sampling = config.rollout.sampling();
  request.skip_special_tokens = config.rollout.skip_special_tokens;
  request.failure_reward = config.reward.failure();
  request.state = state_before(rollout_id);
  request.generation =
      sampling::custom_generation(config.custom_generate, config.data.lines.metadata_key, inputs_.session.config(),
                                  rewards.generators(), /*is_evaluation=*/false);
  if (config.dynamic_sampling.is_on()) {
    cursors_.clear();
    request.dynamic.emplace(
        sampling::DynamicSampling{.filter = rewards.filter(),
                                  .filter_name = config.dynamic_sampling.filter_path,
                                  .next_prompt = [this] { return next_prompt(); },
                                  .num_groups = config.rollout_batch_size,
                                  .groups_at_once = config.groups_at_once(),
                                  .limits = search_limits(config, std::ssize(inputs_.prompts.prompts)),
                                  .stops_when_too_few = config.dynamic_sampling.stops_when_too_few()});
  }
  if (config.keeps_groups()) {
    request.in_flight = in_flight_request(rollout_id);
  } else if (!request.dynamic) {
    for (int64_t i = 0; i < config.rollout_batch_size; ++i) {
      const rl::OpdConfig& opd = config.loss.loss.opd;
      if (opd.has_given_answers()) {
        request.takes_answer.push_back(rl::takes_answer(opd, static_cast<uint64_t>(config.rollout.rollout_seed),
                                                        static_cast<uint64_t>(order_.num_taken())));
      }
      request.prompts.push_back(&inputs_.prompts.prompts[static_cast<size_t>(order_.next())]);
    }
  }
  return request;
}

// A log that is replayed is the run's own where --load and --replay-schedule name the same one: then it has the line.
void Rollouts::log_schedule(int64_t rollout_id, const sampling::Rollout& rollout, report::Report& report) const {
  if (!in_flight_) return;
  const std::string path = inputs_.directory.schedule_file();
  if (is_replayed(rollout_id) && base::file_exists(path) &&
      std::filesystem::equivalent(path, inputs_.config.async.replay_schedule + "/schedule.jsonl"))
    return;
  report.log_schedule(sampling::schedule_line(rollout_id, rollout));
}

sampling::InFlightRequest Rollouts::in_flight_request(int64_t rollout_id) {
  const config::TrainConfig& config = inputs_.config;
  const bool is_replayed = this->is_replayed(rollout_id);
  if (inputs_.schedule_log && !is_replayed && phase_->speaks() && !std::exchange(goes_on_by_itself_, true))
    base::log_info("--replay-schedule: the schedule ends before rollout {}; the run continues by itself", rollout_id + 1);
  return {.groups = in_flight_.get(),
          .num_groups = config.rollout_batch_size,
          .groups_at_once = config.groups_at_once(),
          .phase_tokens =
              config.async.is_live(config.colocate) ? 0 : config.async.tokens_of_phase(config.rollout.response_len()),
          .log = is_replayed ? &*inputs_.schedule_log : nullptr,
          .pauses_completions = config.async.partial_rollout,
          .weight_version = inputs_.session.trained().version(),
          .next_group = [this] { return next_group(); },
          .num_begun = [this] { return order_.num_taken(); },
          .line_of = [this](size_t group) { return line_of(group); }};
}

sampling::InFlightRequest::Drawn Rollouts::next_group() {
  const auto number = static_cast<size_t>(order_.num_taken());
  const session::PromptLine* const line = &inputs_.prompts.prompts[static_cast<size_t>(order_.next())];
  if (!in_flight_) lines_[number] = line;
  return {.group = number, .line = line};
}

const session::PromptLine* Rollouts::line_of(size_t group) {
  while (order_.num_taken() <= static_cast<int64_t>(group)) next_group();
  const auto found = lines_.find(group);
  TANDEM_ENV_CHECK(found != lines_.end(), "rank 0 took group", group,
                   "which is not in flight here: start all ranks with the same build and flags");
  return found->second;
}

void Rollouts::begin_what_rank0_began(const sampling::InFlightNumbers& numbers) {
  while (order_.num_taken() < numbers.num_begun) next_group();
  const std::set<size_t> go_on(numbers.in_flight.begin(), numbers.in_flight.end());
  std::erase_if(lines_, [&](const auto& entry) { return !go_on.contains(entry.first); });
}

checkpoint::DataPosition Rollouts::position() const {
  checkpoint::DataPosition position = {.cursor = order_.cursor()};
  if (in_flight_) {
    const session::PromptLine* const first = inputs_.prompts.prompts.data();
    position.in_flight = std::make_shared<const std::string>(
        groups::to_bytes(*in_flight_, [first](const session::PromptLine& line) { return &line - first; }));
  }
  return position;
}

std::optional<Rollouts::WeightUpdate> Rollouts::update_weights() {
  if (engine_) {
    engine_->update_weights();
    return std::nullopt;
  }
  const base::Clock::time_point begin = base::Clock::now();
  const int64_t num_sent_again = workers_->update_weights([this] { phase_->pause(); });
  {  // Rank 0 waits for completions that have begun, which may take longer than ranks wait for each other elsewhere.
    const device::WaitsForSamples waits(inputs_.mesh->host());
    device::any_of(inputs_.mesh->host(), false);
  }
  return WeightUpdate{.seconds = base::seconds_since(begin), .num_sent_again = num_sent_again};
}

void Rollouts::forget_kv() {
  if (engine_) engine_->update_weights();
}

void Rollouts::restore(const checkpoint::Checkpoint& checkpoint, const checkpoint::RunState& state) {
  update_weights();
  order_.set_cursor(state.cursor);
  const std::optional<std::string> bytes = checkpoint::in_flight_of(checkpoint);
  if (!bytes) return;
  if (!inputs_.config.keeps_groups()) {  // whatever the flags are that these groups were sampled with
    const int64_t count = groups::num_groups_in(*bytes, checkpoint.directory());
    if (count > 0 && phase_->speaks()) {
      base::log_warning(
          "{} of the checkpoint that had begun are dropped, because neither --partial-rollout nor "
          "--max-weight-staleness is given",
          base::counted(count, "group"));
    }
    return;
  }
  const groups::InFlightLimits limits = {.file = checkpoint.directory(),
                                         .num_prompts = std::ssize(inputs_.prompts.prompts),
                                         .num_begun = order_.num_taken(),
                                         .rollout = state.step,
                                         .n_samples_per_prompt = inputs_.config.rollout.n_samples_per_prompt,
                                         .vocab = inputs_.session.config().vocab,
                                         .max_new_tokens = inputs_.config.rollout.response_len(),
                                         .has_behavior_logprobs = inputs_.config.rollout.sampling().truncates()};
  const auto line_at = [this](int64_t record) -> const session::PromptLine& {
    return inputs_.prompts.prompts[static_cast<size_t>(record)];
  };
  if (in_flight_) {
    groups::put_back(*bytes, limits, line_at, *in_flight_);
  } else {
    for (const auto& [number, record] : groups::records_in(*bytes, limits)) lines_[number] = &line_at(record);
  }
}

}  // namespace tandem::run
