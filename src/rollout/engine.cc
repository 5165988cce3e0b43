#include "rollout/engine.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <span>
#include <utility>

#include "base/check.h"
#include "device/sampler.h"
#include "device/transfer.h"
#include "memory/arena_allocator.h"
#include "rollout/draws.h"
#include "rollout/kv_cache.h"
#include "rollout/paged_attention.h"
#include "rollout/rollout_plan.h"
#include "rollout/scheduler.h"
#include "rollout/stop_strings.h"

namespace tandem::rollout {

namespace {

// The float32 quotient of logits and temperature must stay finite.
constexpr double kMinTemperature = 1e-4;

// One group in flight.
struct ActiveGroup {
  rl::Group result;
  rl::SamplingParams sampling;
  std::vector<int32_t> end_ids;         // tokens that end a completion
  size_t max_new_tokens = 0;            // as far as the context allows
  std::vector<SequenceId> sequences;    // one a completion
  std::vector<std::string> stop_tails;  // one a completion; see completes_stop_string()
  int64_t num_unfinished = 0;
};

struct SampleRef {
  ActiveGroup* group = nullptr;
  size_t index = 0;
};

void check_sampling(const rl::SamplingParams& sampling) {
  TANDEM_USER_CHECK(
      sampling.temperature == 0.0 || (std::isfinite(sampling.temperature) && sampling.temperature >= kMinTemperature),
      "temperature is", sampling.temperature, "but must be 0 (greedy) or at least", kMinTemperature);
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

// Valid while the vector is neither changed nor destroyed.
at::Tensor int32_view(const std::vector<int32_t>& values, at::IntArrayRef shape) {
  return at::from_blob(const_cast<int32_t*>(values.data()), shape, at::TensorOptions().dtype(at::kInt));
}

class PagedEngine final : public Engine {
 public:
  PagedEngine(const EngineConfig& config, model::Model& model)
      : config_(config),
        model_(model),
        cache_(model.config(), config.num_kv_blocks, at::TensorOptions(model.dtype()).device(model.ops().device()),
               config.kv_memory),
        attention_(model.ops(), cache_, config.limits.max_batch_tokens),
        scheduler_({.num_blocks = config.num_kv_blocks,
                    .max_batch_tokens = config.limits.max_batch_tokens,
                    .max_running = config.limits.max_running}),
        max_logits_rows_(logits_window_rows(model.config().vocab)) {}

  void add(GroupRequest request) override;
  void abort(uint64_t group_id) override;
  void abort_all() override;
  void pause(PauseMode mode) override;
  void update_weights(const weights::WeightsView& view) override;
  void resume() override { paused_ = false; }
  std::optional<rl::Group> next_finished() override;
  bool step() override;
  int64_t compact_kv() override;
  int64_t num_unfinished_groups() const override { return static_cast<int64_t>(groups_.size()); }
  EngineStats stats() const override;
  void reset_stats() override;

 private:
  int64_t checked_max_tokens(const GroupRequest& request) const;
  at::Tensor forward(const ScheduledBatch& plan);
  void sample_window(const ScheduledBatch& plan, const at::Tensor& hidden_TE,
                     std::span<const ScheduledBatch::SampleSlot> sample_slots);
  void accept(SequenceId sequence, const device::SampledToken& drawn, float logprob);
  rl::FinishReason reason_to_end(ActiveGroup& group, size_t index, int32_t token) const;
  void hand_over(ActiveGroup& group);

  at::Tensor on_device(const at::Tensor& host) const { return device::to_device(host, model_.ops().device()); }
  const SampleRef& sample(SequenceId sequence) const { return samples_[static_cast<size_t>(sequence)]; }

  EngineConfig config_;
  model::Model& model_;
  KvCache cache_;
  PagedAttention attention_;
  Scheduler scheduler_;
  const int64_t max_logits_rows_;
  bool paused_ = false;

  std::map<uint64_t, std::unique_ptr<ActiveGroup>> groups_;  // by group id
  std::vector<SampleRef> samples_;                           // by sequence id
  std::deque<rl::Group> finished_;

  // Of one window of sample_slots; kept, so that a step allocates nothing here.
  std::vector<device::Draw> draws_;

  int64_t generated_tokens_ = 0, forwards_ = 0;
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

void PagedEngine::add(GroupRequest request) {
  TANDEM_CHECK(!request.sample_ids.empty(), "group", request.group_id, "has no samples");
  TANDEM_CHECK(!groups_.contains(request.group_id), "group", request.group_id, "is already in flight");
  const int64_t max_tokens = checked_max_tokens(request);
  TANDEM_CHECK(request.sampling.stop.empty() || !config_.token_bytes.empty(),
               "stop strings need EngineConfig::token_bytes");

  auto group = std::make_unique<ActiveGroup>();
  const size_t num_samples = request.sample_ids.size();
  group->sequences = scheduler_.add_group(request.prompt, static_cast<int64_t>(num_samples), max_tokens);
  group->max_new_tokens = static_cast<size_t>(max_tokens) - request.prompt->tokens.size();
  group->num_unfinished = static_cast<int64_t>(num_samples);
  group->stop_tails.resize(num_samples);
  group->sampling = std::move(request.sampling);
  if (!group->sampling.ignore_eos) {
    group->end_ids = group->sampling.stop_token_ids;
    const std::vector<int32_t>& eos = model_.config().eos_token_ids;
    group->end_ids.insert(group->end_ids.end(), eos.begin(), eos.end());
  }
  group->result.group_id = request.group_id;
  group->result.prompt = std::move(request.prompt);
  group->result.completions.resize(num_samples);
  for (size_t i = 0; i < num_samples; ++i) {
    group->result.completions[i].sample_id = request.sample_ids[i];
    const auto sequence = static_cast<size_t>(group->sequences[i]);
    if (sequence >= samples_.size()) samples_.resize(sequence + 1);
    samples_[sequence] = {.group = group.get(), .index = i};
  }
  groups_.emplace(request.group_id, std::move(group));
}

void PagedEngine::abort(uint64_t group_id) {
  const auto found = groups_.find(group_id);
  if (found == groups_.end()) return;  // it has ended by itself
  ActiveGroup& group = *found->second;
  scheduler_.finish_group(group.sequences.front());
  for (rl::Completion& completion : group.result.completions) {
    if (completion.finish_reason == rl::FinishReason::kRunning) completion.finish_reason = rl::FinishReason::kAbort;
  }
  hand_over(group);
}

void PagedEngine::abort_all() {
  while (!groups_.empty()) abort(groups_.begin()->first);
}

void PagedEngine::pause(PauseMode mode) {
  paused_ = true;
  if (mode == PauseMode::kDropKv) scheduler_.drop_kv();
}

void PagedEngine::update_weights(const weights::WeightsView& view) {
  TANDEM_CHECK(paused_ || groups_.empty(), "weights change only while the engine is paused or idle");
  model_.set_weights(view);
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
  if (paused_) return false;
  const ScheduledBatch& plan = scheduler_.plan();
  if (plan.empty()) return false;
  const c10::NoGradGuard no_grad;
  const memory::TagScope scratch(memory::Tag::kEngineScratch);
  const at::Tensor hidden_TE = forward(plan);
  std::span<const ScheduledBatch::SampleSlot> sample_slots(plan.sample_slots);
  while (!sample_slots.empty()) {
    const size_t window = std::min(sample_slots.size(), static_cast<size_t>(max_logits_rows_));
    sample_window(plan, hidden_TE, sample_slots.first(window));
    sample_slots = sample_slots.subspan(window);
  }
  ++forwards_;
  return true;
}

at::Tensor PagedEngine::forward(const ScheduledBatch& plan) {
  const int64_t num_rows = plan.num_rows();
  cache_.copy_blocks(plan.copies);
  device::AttentionRows rows;
  rows.sequence_of_row = int32_view(plan.sequence_of_row, {num_rows});
  rows.row_position = int32_view(plan.positions, {num_rows});
  rows.block_table = int32_view(plan.block_table, {static_cast<int64_t>(plan.sequences.size()), plan.max_blocks});
  attention_.set_batch(model_.ops().prepare(rows), on_device(int32_view(plan.slot_mapping, {num_rows})));
  at::Tensor hidden_TE = model::forward_hidden(model_, on_device(int32_view(plan.token_ids, {num_rows})),
                                               on_device(rows.row_position), attention_);
  attention_.end_batch();
  return hidden_TE;
}

void PagedEngine::sample_window(const ScheduledBatch& plan, const at::Tensor& hidden_TE,
                                std::span<const ScheduledBatch::SampleSlot> sample_slots) {
  // The window's logits rows: a range of plan.logits_rows, at most as many as sample_slots.
  const int32_t first = sample_slots.front().logits_index;
  const int64_t num_rows = sample_slots.back().logits_index - first + 1;
  const at::Tensor rows = int32_view(plan.logits_rows, {static_cast<int64_t>(plan.logits_rows.size())});
  const bool every_row = rows.size(0) == hidden_TE.size(0);
  const at::Tensor hidden_RE = every_row ? hidden_TE.narrow(0, first, num_rows)
                                         : hidden_TE.index_select(0, on_device(rows.narrow(0, first, num_rows)));
  const at::Tensor logits_RV = model_.head(hidden_RE);
  const auto num_draws = static_cast<int64_t>(sample_slots.size());
  draws_.clear();
  for (const ScheduledBatch::SampleSlot& slot : sample_slots) {
    const auto [group, index] = sample(slot.sequence);
    const rl::Completion& completion = group->result.completions[index];
    draws_.push_back(make_draw(group->sampling, completion.sample_id, static_cast<int64_t>(completion.tokens.size()),
                               slot.logits_index - first));
  }
  const at::Tensor draws =
      at::from_blob(draws_.data(), {num_draws * static_cast<int64_t>(sizeof(device::Draw))}, at::kByte);
  const at::Tensor token_n = at::empty({num_draws}, logits_RV.options().dtype(at::kInt));
  const at::Tensor logprob_n = at::empty({num_draws}, logits_RV.options());
  const at::Tensor behavior_n = at::empty({num_draws}, logits_RV.options());
  model_.ops().sample(logits_RV, on_device(draws), token_n, logprob_n, behavior_n);
  const at::Tensor tokens = device::to_host(token_n), logprobs = device::to_host(logprob_n);
  const at::Tensor behaviors = device::to_host(behavior_n);
  for (int64_t i = 0; i < num_draws; ++i) {
    accept(sample_slots[static_cast<size_t>(i)].sequence,
           {.token = tokens.const_data_ptr<int32_t>()[i], .behavior_logprob = behaviors.const_data_ptr<float>()[i]},
           logprobs.const_data_ptr<float>()[i]);
  }
}

void PagedEngine::accept(SequenceId sequence, const device::SampledToken& drawn, float logprob) {
  const auto [group, index] = sample(sequence);
  rl::Completion& completion = group->result.completions[index];
  if (drawn.token < 0) {
    throw EnvironmentError(
        fmt::format("the model's logits for token {} of sample {} are not finite: {}", completion.tokens.size(),
                    completion.sample_id,
                    config_.why_not_finite ? config_.why_not_finite() : "its weights have diverged or are damaged"));
  }
  const uint64_t version = model_.weight_version();
  if (completion.versions.empty() || completion.versions.back().version != version) {
    completion.versions.push_back({.begin = static_cast<int64_t>(completion.tokens.size()), .version = version});
  }
  completion.tokens.push_back(drawn.token);
  completion.logprobs.push_back(logprob);
  if (group->sampling.truncates()) completion.behavior_logprobs.push_back(drawn.behavior_logprob);
  ++generated_tokens_;
  scheduler_.append(sequence, drawn.token);
  completion.finish_reason = reason_to_end(*group, index, drawn.token);
  if (completion.finish_reason == rl::FinishReason::kRunning) return;
  scheduler_.finish(sequence);
  if (--group->num_unfinished == 0) hand_over(*group);
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
  return group.result.completions[index].tokens.size() < group.max_new_tokens ? rl::FinishReason::kRunning
                                                                              : rl::FinishReason::kLength;
}

void PagedEngine::hand_over(ActiveGroup& group) {
  finished_.push_back(std::move(group.result));
  groups_.erase(finished_.back().group_id);
}

int64_t PagedEngine::compact_kv() {
  cache_.copy_blocks(scheduler_.compact());
  return scheduler_.pool().used_end() * cache_.block_bytes();
}

EngineStats PagedEngine::stats() const {
  const SchedulerStats& scheduler = scheduler_.stats();
  return {.generated_tokens = generated_tokens_,
          .prefill_tokens = scheduler.prefill_tokens,
          .shared_prompt_tokens = scheduler.shared_prompt_tokens,
          .recomputed_tokens = scheduler.recomputed_tokens,
          .forwards = forwards_,
          .preemptions = scheduler.preemptions,
          .copies_on_write = scheduler.copies_on_write,
          .peak_running = scheduler.peak_running,
          .peak_blocks = scheduler.peak_blocks,
          .num_blocks = scheduler_.pool().num_blocks()};
}

void PagedEngine::reset_stats() {
  scheduler_.reset_stats();
  generated_tokens_ = forwards_ = 0;
}

}  // namespace

std::unique_ptr<Engine> make_engine(const EngineConfig& config, model::Model& model) {
  const BatchLimits& limits = config.limits;
  TANDEM_CHECK(limits.max_batch_tokens > 0 && limits.max_running > 0, limits.max_batch_tokens, limits.max_running);
  TANDEM_CHECK(config.num_kv_blocks > 0, config.num_kv_blocks);
  return std::make_unique<PagedEngine>(config, model);
}

}  // namespace tandem::rollout
