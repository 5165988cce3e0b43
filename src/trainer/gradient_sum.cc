#include "trainer/gradient_sum.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "memory/arena_allocator.h"
#include "model/bucket.h"

namespace tandem::trainer {

GradientSum::GradientSum(const weights::WeightStore& store, Gradients& accumulators, device::Communicator& ranks)
    : options_(at::TensorOptions().dtype(at::kFloat).device(store.device())),
      accumulators_(accumulators),
      ranks_(ranks),
      whole_(buckets_of(store.layout())),
      own_(buckets_of(store.layout(), {.rank = ranks.rank(), .size = ranks.size()})),
      parts_(store.layout().tensors.size()),
      num_slots_(gradient_layer_slots(ranks.size())) {
  for (size_t t = 0; t < parts_.size(); ++t) {
    const weights::PackedTensor& packed = store.layout().tensors[t];
    index_[packed.name] = t;
    parts_[t].shape = packed.shape;
    parts_[t].bucket = bucket_of(packed.name);
  }
  for (const Bucket& layer : whole_.layers) {
    for (const auto& [tensor, first_element] : layer.members) parts_[tensor].first_element = first_element;
  }
  for (const auto& [tensor, first_element] : whole_.outer.members) {
    parts_[tensor].first_element = num_slots_ * whole_.largest_layer() + first_element;
  }
}

void GradientSum::allocate() {
  const at::NoGradGuard without_graph;
  const memory::TagScope scope(memory::Tag::kGradients);
  scratch_ = at::empty({num_slots_ * whole_.largest_layer() + whole_.outer.num_elements}, options_);
  if (!is_alone()) receive_ = at::empty({(ranks_.size() - 1) * own_.largest()}, options_);
}

void GradientSum::begin_step(bool has_several_micro_batches) {
  sent_.reset();  // it may be left from a step that was given up
  accumulators_.begin_step();
  has_contributed_ = false;
  if (!scratch_.defined() && (has_several_micro_batches || !is_alone())) allocate();
}

void GradientSum::begin_round(std::vector<bool> contributes) {
  TANDEM_CHECK_EQ(std::ssize(contributes), ranks_.size());
  if (sent_) add_received();  // the scratch of tensors outside of the layers is written from now on
  contributes_ = std::move(contributes);
  is_direct_ = is_alone() && !std::exchange(has_contributed_, has_contributed_ || contributes_.front());
  for (Part& part : parts_) part.is_filled = false;
}

void GradientSum::receive_round() {
  if (is_alone() || std::ranges::find(contributes_, true) == contributes_.end()) return;
  for (int64_t layer = std::ssize(whole_.layers) - 1; layer >= 0; --layer) end_of_bucket(layer);
  end_of_bucket(model::kOuterBucket);
}

void GradientSum::end_step() {
  if (sent_) add_received();
}

void GradientSum::release() {
  sent_.reset();
  scratch_.reset();
  receive_.reset();
  accumulators_.release();
}

at::Tensor GradientSum::scratch(size_t tensor) const {
  TANDEM_CHECK(scratch_.defined(), "a second micro-batch in a step of one");
  const Part& part = parts_[tensor];
  const int64_t slot = part.bucket == model::kOuterBucket ? 0 : part.bucket % num_slots_;
  return scratch_.narrow(0, slot * whole_.largest_layer() + part.first_element, elements_of(part.shape, {}))
      .view(part.shape);
}

at::Tensor GradientSum::scratch_of(size_t tensor, int rank) const {
  const Rows rows = rows_of(parts_[tensor].shape, {.rank = rank, .size = ranks_.size()});
  return scratch(tensor).narrow(0, rows.begin, rows.count());
}

model::GradientTarget GradientSum::of(const std::string& packed_name) {
  const auto found = index_.find(packed_name);
  if (found == index_.end()) return {};
  const bool is_first = !std::exchange(parts_[found->second].is_filled, true);
  if (is_direct_) return accumulators_.target(found->second);
  return {.memory = scratch(found->second), .use = is_first ? device::GradientUse::kSet : device::GradientUse::kAdd};
}

void GradientSum::end_of_bucket(int64_t bucket) {
  const at::NoGradGuard without_graph;
  const std::vector<Bucket::Member>& members = whole_.of(bucket).members;
  if (is_direct_ || members.empty()) return;
  for (const auto& [tensor, first_element] : members) {
    if (contributes() && !parts_[tensor].is_filled) scratch(tensor).zero_();
  }
  if (is_alone()) {
    add_own(whole_.of(bucket));
  } else {
    if (sent_) add_received();
    send(bucket);
  }
}

void GradientSum::add(size_t tensor, const at::Tensor& part) {
  const model::GradientTarget sum = accumulators_.target(tensor);
  if (sum.use == device::GradientUse::kSet) {
    sum.memory.copy_(part);
  } else {
    sum.memory.add_(part);
  }
}

void GradientSum::add_own(const Bucket& bucket) {
  for (const auto& [tensor, first_element] : bucket.members) add(tensor, scratch_of(tensor, rank()));
}

void GradientSum::send(int64_t bucket) {
  auto sent = std::make_unique<Sent>();
  sent->bucket = bucket;
  const auto size = static_cast<size_t>(ranks_.size());
  device::TensorLists to(size), from(size);
  int64_t begin = 0;  // position in the receive buffer
  for (int r = 0; r < ranks_.size(); ++r) {
    if (r == rank()) continue;
    for (const auto& [tensor, first_element] : whole_.of(bucket).members) {
      if (!contributes()) break;
      at::Tensor rows = scratch_of(tensor, r);
      if (rows.size(0) > 0) to[static_cast<size_t>(r)].push_back(std::move(rows));
    }
    if (!contributes_[static_cast<size_t>(r)]) continue;
    const Bucket& own = own_.of(bucket);
    for (const auto& [tensor, first_element] : own.members) {
      const int64_t count = scratch_of(tensor, rank()).numel();
      if (count > 0) from[static_cast<size_t>(r)].push_back(receive_.narrow(0, begin + first_element, count));
    }
    begin += own.num_elements;
  }
  sent->received = from;
  sent->exchange = ranks_.start_exchange(std::move(to), std::move(from));
  sent_ = std::move(sent);
}

void GradientSum::add_received() {
  const at::NoGradGuard without_graph;
  const std::unique_ptr<Sent> sent = std::move(sent_);  // it is waited for however this ends
  sent->exchange->wait();
  const Bucket& bucket = whole_.of(sent->bucket);
  for (int r = 0; r < ranks_.size(); ++r) {
    if (!contributes_[static_cast<size_t>(r)]) continue;
    auto received = sent->received[static_cast<size_t>(r)].begin();
    for (const auto& [tensor, first_element] : bucket.members) {
      const at::Tensor own = scratch_of(tensor, rank());
      if (own.size(0) == 0) continue;
      add(tensor, r == rank() ? own : (received++)->view(own.sizes()));
    }
  }
}

}  // namespace tandem::trainer
