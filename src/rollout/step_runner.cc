#include "rollout/step_runner.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace tandem::rollout {

StepRunner::StepRunner(const StepRunnerConfig& config, model::Model& model, KvCache& cache)
    : config_(config),
      model_(model),
      cache_(cache),
      attention_(model.ops(), cache,
                 std::max(config.max_batch_tokens, bucket_rows(std::min(config.max_decodes, kLargestBucket)))),
      buckets_(model.ops(), config.max_decodes, std::ssize(cache.layout().kinds)) {}

void StepRunner::begin(int64_t context_tokens) {
  if (is_ready(context_tokens)) return;
  end();
  buckets_.take(context_tokens);
}

void StepRunner::end() {
  drawn_n_.reset();
  if (buckets_.is_taken()) buckets_.release();
}

std::unique_ptr<device::Ops::Fetch> StepRunner::run(const ScheduledBatch& plan, std::span<const device::Draw> draws) {
  cache_.copy_blocks(plan.copies);
  const bool is_recorded = config_.records && config_.exchange == nullptr && is_decode(plan);
  StepBuckets::Bucket* const bucket = is_recorded ? buckets_.find(plan.num_rows()) : nullptr;
  return bucket == nullptr ? run_exact(plan, draws, exact_shape(plan)) : run_bucket(*bucket, plan, draws);
}

bool StepRunner::can_share(const ScheduledBatch& plan) const {
  return is_decode(plan) && plan.num_rows() <= std::min(config_.max_decodes, kLargestBucket);
}

std::unique_ptr<device::Ops::Fetch> StepRunner::run_shared(const ScheduledBatch& plan,
                                                           std::span<const device::Draw> draws, int64_t rows) {
  cache_.copy_blocks(plan.copies);
  model_.share_experts(config_.exchange);
  std::unique_ptr<device::Ops::Fetch> results =
      config_.records
          ? run_bucket(*buckets_.find(rows), plan, draws)
          : run_exact(plan, draws, bucket_shape(rows, std::max<int64_t>(plan.max_blocks, 1), std::ssize(plan.places)));
  model_.share_experts(nullptr);
  return results;
}

std::unique_ptr<device::Ops::Fetch> StepRunner::run_exact(const ScheduledBatch& plan,
                                                          std::span<const device::Draw> draws, const StepShape& shape) {
  input_.fill(plan, draws, shape, config_.window_rows, drawer());
  const auto options = at::TensorOptions(at::kInt).device(ops().device());
  StepTensors tensors(shape, at::empty({shape.num_words()}, options), at::empty({3 * shape.num_draws}, options));
  tensors.windows = input_.windows();
  for (size_t kind = 0; kind < plan.places.size(); ++kind) {
    tensors.rows.push_back(ops().prepare(attention_rows(input_, kind)));
  }
  send(tensors);
  compute(tensors);
  return fetch(tensors);
}

std::unique_ptr<device::Ops::Fetch> StepRunner::run_bucket(StepBuckets::Bucket& bucket, const ScheduledBatch& plan,
                                                           std::span<const device::Draw> draws) {
  StepTensors& tensors = bucket.tensors;
  input_.fill(plan, draws, tensors.shape, config_.window_rows, drawer());
  tensors.windows = input_.windows();  // they are the same at each step
  buckets_.fill_rows(bucket, input_);
  send(tensors);
  buckets_.run(bucket, [this, &tensors] { compute(tensors); });
  return fetch(tensors);
}

void StepRunner::send(const StepTensors& tensors) {
  ops().send(host_words(input_), tensors.input);
  if (input_.takes_drawn()) {
    TANDEM_CHECK(drawn_n_.defined(), "a step takes tokens of none");
    ops().take_drawn(tensors.ids_T, drawn_n_);
  }
  drawn_n_.reset();
}

void StepRunner::compute(const StepTensors& tensors) {
  attention_.set_batch(tensors.rows, tensors.slots_T);
  const at::Tensor hidden_TE = model::forward_hidden(model_, tensors.ids_T, tensors.positions_T, attention_);
  attention_.end_batch();
  if (!model_.ranks().is_alone()) at::Tensor(tensors.results).zero_();
  for (const DrawWindow& window : tensors.windows) draw_window(tensors, hidden_TE, window);
  model_.ranks().fill_in(tensors.results);
}

void StepRunner::draw_window(const StepTensors& tensors, const at::Tensor& hidden_TE, const DrawWindow& window) const {
  const auto rows_of = [&window](const at::Tensor& x) { return x.narrow(0, window.first_row, window.num_rows); };
  const auto draws_of = [&window](const at::Tensor& x) { return x.narrow(0, window.first_draw, window.num_draws); };
  const at::Tensor hidden_RE =
      tensors.logits_rows_R.defined() ? hidden_TE.index_select(0, rows_of(tensors.logits_rows_R)) : rows_of(hidden_TE);
  constexpr int64_t kDrawBytes = sizeof(device::Draw);
  const at::Tensor draws = tensors.draws.narrow(0, window.first_draw * kDrawBytes, window.num_draws * kDrawBytes);
  ops().sample(model_.own_logits(model_.head(hidden_RE)), draws, draws_of(tensors.token_n), draws_of(tensors.logprob_n),
               draws_of(tensors.behavior_n));
}

std::unique_ptr<device::Ops::Fetch> StepRunner::fetch(const StepTensors& tensors) {
  if (config_.runs_ahead) drawn_n_ = tensors.token_n;
  return ops().fetch(tensors.results);
}

}  // namespace tandem::rollout
