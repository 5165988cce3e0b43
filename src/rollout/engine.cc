#include "rollout/engine.h"

#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <deque>
#include <map>
#include <span>
#include <utility>

#include "base/check.h"
#include "memory/arena_allocator.h"
#include "model/lora.h"
#include "model/model_plan.h"
#include "rollout/drafter.h"
#include "rollout/draws.h"
#include "rollout/kv_cache.h"
#include "rollout/rollout_plan.h"
#include "rollout/scheduler.h"
#include "rollout/shared_steps.h"
#include "rollout/step_runner.h"
#include "rollout/stop_strings.h"

namespace tandem::rollout {

namespace {

// One group in flight.
struct ActiveGroup {
  rl::Group result;
  rl::SamplingParams sampling;
  std::vector<int32_t> end_ids;         // tokens that end a completion
  size_t max_new_tokens = 0;            // most tokens of a completion that the context allows
  std::vector<size_t> most_tokens;      // one for each completion: tokens with which it ends or pauses, at the latest
  std::vector<SequenceId> sequences;    // one for each completion
  std::vector<std::string> stop_tails;  // one for each completion; see completes_stop_string()
  int64_t num_unfinished = 0;
  std::optional<Drafter> drafter;  // made when one of its sequences may first be guessed
};

struct SampleRef {
  ActiveGroup* group = nullptr;
  size_t index = 0;
};

void check_sampling(const rl::SamplingParams& sampling) {
  TANDEM_USER_CHECK(sampling.temperature == 0.0 ||
                        (std::isfinite(sampling.temperature) && sampling.temperature >= rl::kMinTemperature),
                    "temperature is", sampling.temperature, "but must be 0 (greedy) or at least", rl::kMinTemperature);
  TANDEM_USER_CHECK(sampling.top_p > 0.0 && sampling.top_p <= 1.0, "top-p is", sampling.top_p,
                    "but must be above 0 and at most 1 (off)");
  TANDEM_USER_CHECK(sampling.top_k == -1 || sampling.top_k >= 0, "top-k is", sampling.top_k,
                    "but must be positive, or -1 (off)");
  TANDEM_USER_CHECK(sampling.min_p >= 0.0 && sampling.min_p <= 1.0, "min-p is", sampling.min_p,
                    "but must lie between 0 (off) and 1");
  TANDEM_USER_CHECK(sampling.max_new_tokens > 0, "max-new-tokens is", sampling.max_new_tokens, "but must be positive");
  TANDEM_USER_CHECK(sampling.max_context_tokens >= 0, "max-context-tokens is", sampling.max_context_tokens,
                    "but must be positive, or 0 (the model's)");
  for (const std::string& text : sampling.stop) {
    TANDEM_USER_CHECK(!text.empty(), "a stop string is empty: remove it");
  }
}

int64_t lookahead_of(const EngineConfig& config, const device::Ops& ops) {
  return config.lookahead.value_or(ops.runs_ahead() ? 1 : 0);
}

bool can_record(const model::Model& model) {
  const model::ModelConfig& config = model.config();
  // An adapter of experts multiplies rows with `rank` numbers.
  const auto can_record_experts = [&](const model::ExpertsConfig& e) {
    const auto can_record_width = [&](int64_t width) {
      return model.ops().can_record_experts(e.count, e.chosen, config.hidden, width);
    };
    return can_record_width(e.width) && (!model::adapts_experts(config) || can_record_width(config.lora->rank));
  };
  // A rotation after norms with an offset may wait for the host: a backend may leave it to plain ATen.
  if (model::ops_shape(config).norms_have_offset) return false;
  return model.ops().can_record(model.dtype(), config.num_heads, config.num_kv_heads, config.head_dim) &&
         (!config.experts || can_record_experts(*config.experts));
}

StepRunnerConfig runner_config(const EngineConfig& config, const model::Model& model) {
  const BatchLimits& limits = config.limits;
  const bool records = can_record(model);
  return {.max_batch_tokens = limits.max_batch_tokens,
          .max_decodes = limits.most_recorded_rows(),
          // Windows would mean so many more launches; on the CPU they keep the logits small.
          .window_rows = records ? limits.max_batch_tokens + limits.max_running
                                 : int64_t{logits_window_rows(model.config().vocab)},
          .records = config.record_steps.value_or(records),
          .runs_ahead = lookahead_of(config, model.ops()) > 0,
          .exchange = config.shared_steps == nullptr ? nullptr : &config.shared_steps->exchange()};
}

class PagedEngine final : public Engine {
 public:
  PagedEngine(const EngineConfig& config, model::Model& model)
      : config_(config),
        model_(model),
        cache_(model.config(), config.num_kv_blocks, at::TensorOptions(model.dtype()).device(model.ops().device()),
               config.kv_memory),
        lookahead_(lookahead_of(config, model.ops())),
        runner_(runner_config(config, model), model, cache_),
        scheduler_({.num_blocks = config.num_kv_blocks,
                    .max_batch_tokens = config.limits.max_batch_tokens,
                    .max_running = config.limits.max_running,
                    .lookahead = lookahead_,
                    .kinds = cache_.layout().kinds}) {}

  void add(GroupRequest request) override;
  void abort(uint64_t group_id) override;
  void abort_all() override;
  void release(uint64_t sample_id) override { scheduler_.release_prefix(sample_id); }
  void update_weights(const weights::WeightsView& view) override;
  std::optional<rl::Group> next_finished() override;
  bool step() override;
  bool shares_steps() const override { return config_.shared_steps != nullptr; }
  void leave_shared_steps() override;
  int64_t num_unfinished_groups() const override { return static_cast<int64_t>(groups_.size()); }
  bool has_room() const override { return scheduler_.has_room(); }
  EngineStats stats() const override;
  void reset_stats() override;

 private:
  int64_t checked_max_tokens(const GroupRequest& request) const;
  void check_begun(const GroupRequest& request, size_t max_new_tokens) const;
  // Makes completion `index` of the group the begun one, as if its tokens had just been drawn.
  void go_on(ActiveGroup& group, size_t index, rl::Completion begun) const;
  // A step whose draws have not been read.
  struct StepInFlight {
    std::vector<ScheduledBatch::SampleSlot> sample_slots;
    std::unique_ptr<device::Ops::Fetch> results;
  };
  void make_room();
  // Guesses how the running sequences go on, if few are left. Steps in flight are read first where it needs them.
  Drafts guess();
  // Returns how many tokens of each running sequence may be guessed in one step.
  int64_t most_drafts() const;
  // Returns whether a guess reaches past the token in flight of some sequence, so that it is worth waiting for.
  bool is_worth_a_wait();
  // Returns the drafter of the sequence's group, which has read all tokens so far.
  Drafter& drafter(SequenceId sequence);
  // Queues a step, if there are rows. The other ranks make it too, if `shared_rows` is not 0.
  void queue(const ScheduledBatch& plan, int64_t shared_rows);
  // Tells the other ranks what this one would do next. Returns the rows of the step that all of them make together, or
  // 0.
  int64_t agree(const ScheduledBatch& plan);
  void read_oldest_step();
  // Reads the draws of all steps in flight. When no group is left, nothing stays on the device but the cache.
  void drain();
  // Takes the i-th draw of a step. Returns false if it is dropped.
  bool accept(SequenceId sequence, const StepResults& results, size_t i);
  void check_finite(const rl::Completion& completion, int32_t token) const;
  rl::FinishReason reason_to_end(ActiveGroup& group, size_t index, int32_t token) const;
  void hand_over(ActiveGroup& group);

  const SampleRef& sample(SequenceId sequence) const { return samples_[static_cast<size_t>(sequence)]; }

  EngineConfig config_;
  model::Model& model_;
  KvCache cache_;
  const int64_t lookahead_;
  StepRunner runner_;
  Scheduler scheduler_;
  int64_t longest_sequence_ = 0;           // most tokens that a group in flight may grow to
  const void* weights_address_ = nullptr;  // address at the last update_weights()

  std::map<uint64_t, std::unique_ptr<ActiveGroup>> groups_;  // by group id
  std::vector<SampleRef> samples_;                           // by sequence id
  std::deque<rl::Group> finished_;

  std::deque<StepInFlight> in_flight_;  // at most lookahead_, between calls
  std::vector<device::Draw> draws_;     // draws of the step that is being queued; kept, so that it allocates nothing

  int64_t generated_tokens_ = 0, wasted_rows_ = 0, forwards_ = 0;
  int64_t draft_tokens_ = 0, right_drafts_ = 0, draft_steps_ = 0;
};

int64_t PagedEngine::checked_max_tokens(const GroupRequest& request) const {
  const auto prompt_tokens = static_cast<int64_t>(request.prompt->tokens.size());
  const model::ModelConfig& model = model_.config();
  TANDEM_USER_CHECK(prompt_tokens > 0, "the prompt of group", request.group_id, "has no tokens");
  for (const int32_t id : request.prompt->tokens) {
    TANDEM_USER_CHECK(id >= 0 && id < model.vocab, "the prompt of group", request.group_id, "has token", id,
                      "but the model's vocabulary has", model.vocab, "tokens: use the checkpoint's own tokenizer");
  }
  check_sampling(request.sampling);
  const int64_t asked_context = request.sampling.max_context_tokens;
  TANDEM_USER_CHECK(asked_context <= model.max_positions, "a context of", asked_context,
                    "tokens is asked for, but the model's is", model.max_positions);
  const int64_t context = asked_context > 0 ? asked_context : model.max_positions;
  TANDEM_USER_CHECK(prompt_tokens < context, "the prompt of group", request.group_id, "has", prompt_tokens,
                    "tokens, which leaves no room for a completion in the context of", context,
                    "tokens: shorten or drop it");
  const int64_t max_tokens = prompt_tokens + std::min(request.sampling.max_new_tokens, context - prompt_tokens);
  TANDEM_USER_CHECK(scheduler_.fits(max_tokens), "group", request.group_id, "may grow to", max_tokens,
                    "tokens, more than a KV cache of", cache_.bytes(),
                    "bytes can hold for one sequence: raise --kv-cache-bytes or allow fewer new tokens");
  return max_tokens;
}

void PagedEngine::check_begun(const GroupRequest& request, size_t max_new_tokens) const {
  const size_t num_samples = request.sample_ids.size();
  TANDEM_CHECK(request.begun.empty() || request.begun.size() == num_samples, request.begun.size(), num_samples);
  TANDEM_CHECK(request.budgets.empty() || request.budgets.size() == num_samples, request.budgets.size(), num_samples);
  for (const int64_t budget : request.budgets) TANDEM_CHECK(budget >= 0, "a budget of", budget, "tokens");
  for (size_t i = 0; i < request.begun.size(); ++i) {
    const rl::Completion& begun = request.begun[i];
    const size_t num_tokens = begun.tokens.size();
    TANDEM_CHECK_EQ(begun.sample_id, request.sample_ids[i]);
    TANDEM_CHECK_EQ(begun.logprobs.size(), num_tokens, "log-probs of sample", begun.sample_id);
    TANDEM_CHECK_EQ(begun.behavior_logprobs.size(), request.sampling.truncates() ? num_tokens : 0,
                    "behavior log-probs of sample", begun.sample_id);
    TANDEM_CHECK_EQ(begun.versions.empty(), num_tokens == 0, "versions of sample", begun.sample_id);
    TANDEM_USER_CHECK(num_tokens < max_new_tokens, "sample", begun.sample_id, "has", num_tokens,
                      "tokens, and here it may have at most", fmt::format("{}:", max_new_tokens),
                      "give --rollout-max-response-len and --rollout-max-context-len as they were when it began");
    for (const int32_t id : begun.tokens) {
      TANDEM_USER_CHECK(id >= 0 && id < model_.config().vocab, "sample", begun.sample_id, "has token", id,
                        "but the model's vocabulary has", model_.config().vocab,
                        "tokens: continue it with the model that began it");
    }
  }
}

void PagedEngine::go_on(ActiveGroup& group, size_t index, rl::Completion begun) const {
  rl::Completion& completion = group.result.completions[index];
  completion = std::move(begun);
  completion.finish_reason = rl::FinishReason::kRunning;
  for (const int32_t token : completion.tokens) {
    TANDEM_USER_CHECK(reason_to_end(group, index, token) == rl::FinishReason::kRunning, "sample", completion.sample_id,
                      "has ended already by what ends a completion now, so it cannot be continued: give the stop texts, stop "
                      "tokens and --ignore-eos with which it began, or leave out --partial-rollout");
  }
}

void PagedEngine::add(GroupRequest request) {
  TANDEM_CHECK(!request.sample_ids.empty(), "group", request.group_id, "has no samples");
  TANDEM_CHECK(!groups_.contains(request.group_id), "group", request.group_id, "is already in flight");
  const int64_t max_tokens = checked_max_tokens(request);
  const int64_t prompt_tokens = std::ssize(request.prompt->tokens);
  const auto max_new_tokens = static_cast<size_t>(max_tokens - prompt_tokens);
  check_begun(request, max_new_tokens);
  TANDEM_CHECK(request.sampling.stop.empty() || !config_.token_bytes.empty(),
               "stop strings need EngineConfig::token_bytes");

  auto group = std::make_unique<ActiveGroup>();
  const size_t num_samples = request.sample_ids.size();
  group->max_new_tokens = max_new_tokens;
  group->num_unfinished = static_cast<int64_t>(num_samples);
  group->stop_tails.resize(num_samples);
  group->sampling = std::move(request.sampling);
  if (!group->sampling.ignore_eos) {
    group->end_ids = group->sampling.stop_token_ids;
    const std::vector<int32_t>& eos = model_.config().eos_token_ids;
    group->end_ids.insert(group->end_ids.end(), eos.begin(), eos.end());
  }
  group->result.group_id = request.group_id;
  group->result.prompt = request.prompt;
  group->result.completions.resize(num_samples);
  std::vector<NewSequence> sequences;
  for (size_t i = 0; i < num_samples; ++i) {
    const size_t num_begun = request.begun.empty() ? 0 : request.begun[i].tokens.size();
    const size_t budget = request.budgets.empty() ? 0 : static_cast<size_t>(request.budgets[i]);
    const size_t room = max_new_tokens - num_begun;
    group->most_tokens.push_back(num_begun + (budget > 0 ? std::min(budget, room) : room));
    group->result.completions[i].sample_id = request.sample_ids[i];
    if (num_begun > 0) go_on(*group, i, std::move(request.begun[i]));
    sequences.push_back({.max_tokens = prompt_tokens + static_cast<int64_t>(group->most_tokens[i]),
                         .generated = group->result.completions[i].tokens});
  }
  if (request.owner) {
    TANDEM_CHECK_EQ(num_samples, 1U, "samples of a turn");
    group->sequences = {scheduler_.add_owned(std::move(request.prompt), *request.owner, std::move(sequences.front()))};
  } else {
    group->sequences = scheduler_.add_group(std::move(request.prompt), std::move(sequences));
  }
  longest_sequence_ = std::max(longest_sequence_, max_tokens);
  for (size_t i = 0; i < num_samples; ++i) {
    const auto sequence = static_cast<size_t>(group->sequences[i]);
    if (sequence >= samples_.size()) samples_.resize(sequence + 1);
    samples_[sequence] = {.group = group.get(), .index = i};
  }
  groups_.emplace(request.group_id, std::move(group));
}

void PagedEngine::abort(uint64_t group_id) {
  drain();
  const auto found = groups_.find(group_id);
  if (found == groups_.end()) return;  // the group has ended already
  ActiveGroup& group = *found->second;
  scheduler_.finish_group(group.sequences.front());
  for (rl::Completion& completion : group.result.completions) {
    if (completion.finish_reason == rl::FinishReason::kRunning) completion.finish_reason = rl::FinishReason::kAbort;
  }
  hand_over(group);
  drain();
}

void PagedEngine::abort_all() {
  while (!groups_.empty()) abort(groups_.begin()->first);
}

void PagedEngine::update_weights(const weights::WeightsView& view) {
  TANDEM_CHECK(groups_.empty(), "weights change only while no group is in flight");
  scheduler_.release_prefixes();
  model_.set_weights(view);
  const void* const address = view["final_norm"].const_data_ptr();
  if (address != std::exchange(weights_address_, address)) runner_.drop_recordings();
}

std::optional<rl::Group> PagedEngine::next_finished() {
  while (finished_.empty()) {
    if (!step()) return std::nullopt;
  }
  rl::Group group = std::move(finished_.front());
  finished_.pop_front();
  return group;
}

bool PagedEngine::step() {
  const bool was_idle = scheduler_.idle();
  if (was_idle && !shares_steps()) return false;
  const c10::NoGradGuard no_grad;
  const memory::TagScope scratch(memory::Tag::kEngineScratch);
  make_room();
  const Drafts drafts = guess();
  const ScheduledBatch& plan = scheduler_.plan(drafts);
  queue(plan, shares_steps() ? agree(plan) : 0);
  // A plan is empty while full sequences wait for their last token: then no step is ahead of it. Nor is one after a
  // step with drafts, since nobody knows yet how many tokens it gives.
  const bool waits = (plan.empty() && !was_idle) || !drafts.empty();
  const size_t ahead = waits ? 0 : static_cast<size_t>(lookahead_);
  while (in_flight_.size() > ahead) read_oldest_step();
  if (!was_idle && scheduler_.idle()) drain();
  return !was_idle;
}

int64_t PagedEngine::agree(const ScheduledBatch& plan) {
  const bool is_by_itself = !plan.empty() && !runner_.can_share(plan);
  return config_.shared_steps->agree({.rows = plan.num_rows(), .is_by_itself = is_by_itself}).rows;
}

void PagedEngine::leave_shared_steps() {
  if (!shares_steps()) return;
  TANDEM_CHECK(groups_.empty(), "groups in flight");
  const c10::NoGradGuard no_grad;
  const memory::TagScope scratch(memory::Tag::kEngineScratch);
  while (true) {
    make_room();
    const SharedSteps::Agreed agreed = config_.shared_steps->agree({.has_left = true});
    if (agreed.all_left) break;
    queue(scheduler_.plan({}), agreed.rows);
    while (in_flight_.size() > static_cast<size_t>(lookahead_)) read_oldest_step();
  }
  drain();
  runner_.end();
}

void PagedEngine::make_room() {
  // An engine without sequences computes rows that have no keys.
  const int64_t longest = std::max<int64_t>(longest_sequence_, 1);
  if (runner_.is_ready(longest)) return;
  drain();
  if (shares_steps() || !scheduler_.idle()) runner_.begin(longest);
}

int64_t PagedEngine::most_drafts() const {
  const int64_t running = scheduler_.num_running();
  if (config_.limits.max_draft_tokens == 0 || running == 0 || scheduler_.num_waiting() > 0) return 0;
  const auto rows = static_cast<uint64_t>(std::min(kMostDraftRows, config_.limits.max_batch_tokens) / running);
  return std::min(config_.limits.max_draft_tokens, static_cast<int64_t>(std::bit_floor(rows)) - 1);
}

Drafter& PagedEngine::drafter(SequenceId sequence) {
  ActiveGroup& group = *sample(sequence).group;
  const std::vector<rl::Completion>& completions = group.result.completions;
  if (!group.drafter) group.drafter.emplace(group.result.prompt->tokens, completions.size());
  for (size_t i = 0; i < completions.size(); ++i) group.drafter->read(i, completions[i].tokens);
  return *group.drafter;
}

bool PagedEngine::is_worth_a_wait() {
  bool is_worth = false;
  for (const SequenceId id : scheduler_.running()) {
    Drafter& guesser = drafter(id);
    const size_t index = sample(id).index;
    if (!guesser.can_guess(index, 2)) continue;
    guesser.charge_wait(index);
    is_worth = true;
  }
  return is_worth;
}

Drafts PagedEngine::guess() {
  if (most_drafts() <= 0 || (!in_flight_.empty() && !is_worth_a_wait())) return {};
  while (!in_flight_.empty()) read_oldest_step();
  Drafts drafts;
  const int64_t most = most_drafts();
  for (const SequenceId id : scheduler_.running()) {
    const auto [group, index] = sample(id);
    const auto room = static_cast<int64_t>(group->most_tokens[index] - group->result.completions[index].tokens.size());
    std::vector<int32_t> tokens = drafter(id).guess(index, std::min(most, room - 1));
    if (!tokens.empty()) drafts.emplace(id, std::move(tokens));
  }
  return drafts;
}

void PagedEngine::queue(const ScheduledBatch& plan, int64_t shared_rows) {
  if (plan.empty() && shared_rows == 0) return;
  draws_.clear();
  for (const ScheduledBatch::SampleSlot& slot : plan.sample_slots) {
    const auto [group, index] = sample(slot.sequence);
    draws_.push_back(
        make_draw(group->sampling, group->result.completions[index].sample_id, slot.position, slot.logits_index));
  }
  in_flight_.push_back(
      {.sample_slots = plan.sample_slots,
       .results = shared_rows > 0 ? runner_.run_shared(plan, draws_, shared_rows) : runner_.run(plan, draws_)});
  if (!plan.empty()) ++forwards_;
}

void PagedEngine::read_oldest_step() {
  const StepInFlight step = std::move(in_flight_.front());
  in_flight_.pop_front();
  const StepResults results = read_results(step.results->wait());
  if (config_.check_ranks) config_.check_ranks();
  bool was_after_draft = false;
  for (size_t i = 0; i < step.sample_slots.size(); ++i) {
    const auto& slot = step.sample_slots[i];
    const bool is_taken = accept(slot.sequence, results, i);
    if (slot.is_after_draft) {
      ++draft_tokens_;
      right_drafts_ += is_taken ? 1 : 0;
      draft_steps_ += was_after_draft ? 0 : 1;
    } else if (!is_taken) {
      ++wasted_rows_;
    }
    was_after_draft = slot.is_after_draft;
  }
}

void PagedEngine::drain() {
  while (!in_flight_.empty()) read_oldest_step();
  if (!scheduler_.idle()) return;
  longest_sequence_ = 0;
  if (!shares_steps()) runner_.end();  // else the others go on
}

void PagedEngine::check_finite(const rl::Completion& completion, int32_t token) const {
  if (token >= 0) return;
  throw EnvironmentError(fmt::format(
      "the model's logits for token {} of sample {} are not finite: {}", completion.tokens.size(), completion.sample_id,
      config_.why_not_finite ? config_.why_not_finite() : "its weights have diverged or are damaged"));
}

bool PagedEngine::accept(SequenceId sequence, const StepResults& results, size_t i) {
  const int32_t token = results.tokens[i];
  if (!scheduler_.append(sequence, token)) return false;
  const auto [group, index] = sample(sequence);
  rl::Completion& completion = group->result.completions[index];
  check_finite(completion, token);
  const uint64_t version = model_.weight_version();
  if (completion.versions.empty() || completion.versions.back().version != version) {
    TANDEM_CHECK(completion.versions.empty() || completion.versions.back().version < version, "sample",
                 completion.sample_id, "is continued with older weights:", version);
    completion.versions.push_back({.begin = static_cast<int64_t>(completion.tokens.size()), .version = version});
  }
  completion.tokens.push_back(token);
  completion.logprobs.push_back(results.logprobs[i]);
  if (group->sampling.truncates()) completion.behavior_logprobs.push_back(results.behavior_logprobs[i]);
  ++generated_tokens_;
  completion.finish_reason = reason_to_end(*group, index, token);
  if (completion.finish_reason == rl::FinishReason::kRunning) return true;
  scheduler_.finish(sequence);
  if (--group->num_unfinished == 0) hand_over(*group);
  return true;
}

rl::FinishReason PagedEngine::reason_to_end(ActiveGroup& group, size_t index, int32_t token) const {
  if (std::find(group.end_ids.begin(), group.end_ids.end(), token) != group.end_ids.end()) {
    return rl::FinishReason::kStop;
  }
  // Rows of the vocabulary past the tokenizer's have no text.
  if (!group.sampling.stop.empty() && static_cast<size_t>(token) < config_.token_bytes.size() &&
      completes_stop_string(group.stop_tails[index], config_.token_bytes[static_cast<size_t>(token)],
                            group.sampling.stop)) {
    return rl::FinishReason::kStop;
  }
  const size_t num_tokens = group.result.completions[index].tokens.size();
  if (num_tokens < group.most_tokens[index]) return rl::FinishReason::kRunning;
  return num_tokens < group.max_new_tokens ? rl::FinishReason::kPaused : rl::FinishReason::kLength;
}

void PagedEngine::hand_over(ActiveGroup& group) {
  finished_.push_back(std::move(group.result));
  groups_.erase(finished_.back().group_id);
}

EngineStats PagedEngine::stats() const {
  const SchedulerStats& scheduler = scheduler_.stats();
  return {.generated_tokens = generated_tokens_,
          .prefill_tokens = scheduler.prefill_tokens,
          .shared_prompt_tokens = scheduler.shared_prompt_tokens,
          .recomputed_tokens = scheduler.recomputed_tokens,
          .resumed_tokens = scheduler.resumed_tokens,
          .kept_tokens = scheduler.kept_tokens,
          .kept_dropped = scheduler.kept_dropped,
          .wasted_rows = wasted_rows_,
          .draft_tokens = draft_tokens_,
          .right_drafts = right_drafts_,
          .draft_steps = draft_steps_,
          .forwards = forwards_,
          .preemptions = scheduler.preemptions,
          .copies_on_write = scheduler.copies_on_write,
          .peak_running = scheduler.peak_running,
          .peak_blocks = scheduler.peak_blocks,
          .num_blocks = scheduler_.pool().num_blocks()};
}

void PagedEngine::reset_stats() {
  scheduler_.reset_stats();
  generated_tokens_ = wasted_rows_ = forwards_ = 0;
  draft_tokens_ = right_drafts_ = draft_steps_ = 0;
}

}  // namespace

std::unique_ptr<Engine> make_engine(const EngineConfig& config, model::Model& model) {
  const BatchLimits& limits = config.limits;
  TANDEM_CHECK(limits.max_batch_tokens > 0 && limits.max_running > 0, limits.max_batch_tokens, limits.max_running);
  TANDEM_CHECK(config.num_kv_blocks > 0, config.num_kv_blocks);
  TANDEM_CHECK(lookahead_of(config, model.ops()) == 0 || lookahead_of(config, model.ops()) == 1, "lookahead");
  return std::make_unique<PagedEngine>(config, model);
}

}  // namespace tandem::rollout
