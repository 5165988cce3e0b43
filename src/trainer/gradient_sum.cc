#include "trainer/gradient_sum.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "memory/arena_allocator.h"
#include "model/bucket.h"

namespace tandem::trainer {

GradientSum::GradientSum(const weights::WeightStore& store, Gradients& accumulators, device::Communicator& ranks,
                         int64_t group_size)
    : options_(at::TensorOptions().dtype(at::kFloat).device(store.device())),
      accumulators_(accumulators),
      ranks_(ranks),
      group_size_(group_size),
      has_two_levels_(works_in_two_levels(ranks.size(), group_size)),
      whole_(buckets_of(store.layout())),
      own_(buckets_of(store.layout(), {.rank = ranks.rank(), .size = ranks.size()})),
      parts_(store.layout().tensors.size()),
      num_slots_(gradient_layer_slots(ranks.size())),
      group_accumulators_(store, {.rank = ranks.rank(), .size = ranks.size()}),
      group_of_(parts_.size(), -1) {
  for (int64_t g = 0; has_two_levels_ && g < num_groups(); ++g) {
    columns_.push_back(buckets_of(store.layout(), {.rank = owner(g), .size = ranks.size()}));
  }
  for (size_t t = 0; t < parts_.size(); ++t) {
    const weights::PackedTensor& packed = store.layout().tensors[t];
    if (!packed.is_frozen) index_[packed.name] = t;
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
  if (is_alone()) return;
  if (!has_two_levels_) {
    receive_ = at::empty({(ranks_.size() - 1) * own_.largest()}, options_);
    return;
  }
  const base::Size column = column_elements_of(columns_);
  receive_ = at::empty({(group_size_ - 1) * column}, options_);
  group_sums_ = at::empty({column}, options_);
  receive_sums_ = at::empty({(num_groups() - 1) * own_.largest()}, options_);
}

void GradientSum::begin_step(int64_t num_micro_batches) {
  sent_sums_.reset();  // they may be left from a step that was given up
  sent_.reset();
  accumulators_.begin_step();
  has_contributed_ = false;
  first_group_ = round_ = -1;
  std::ranges::fill(group_of_, -1);
  if (!scratch_.defined() && (num_micro_batches > 1 || !is_alone())) allocate();
  if (!has_two_levels_ && group_size_ > 1 && num_micro_batches > group_size_) group_accumulators_.begin_step();
}

void GradientSum::begin_round(std::vector<bool> contributes) {
  TANDEM_CHECK_EQ(std::ssize(contributes), ranks_.size());
  receive_all();  // the scratch of tensors outside of the layers is written from now on
  contributes_ = std::move(contributes);
  ++round_;
  const auto first = std::ranges::find(contributes_, true);
  if (first_group_ < 0 && first != contributes_.end()) {
    first_group_ = (round_ * ranks_.size() + (first - contributes_.begin())) / group_size_;
  }
  is_direct_ = is_alone() && !std::exchange(has_contributed_, has_contributed_ || contributes_.front());
  for (Part& part : parts_) part.is_filled = false;
}

void GradientSum::receive_round() {
  if (is_alone() || std::ranges::find(contributes_, true) == contributes_.end()) return;
  for (int64_t layer = std::ssize(whole_.layers) - 1; layer >= 0; --layer) end_of_bucket(layer);
  end_of_bucket(model::kOuterBucket);
}

void GradientSum::end_step() {
  receive_all();
  const at::NoGradGuard without_graph;
  for (size_t tensor = 0; tensor < parts_.size(); ++tensor) end_group(tensor);
}

// Exchanges are waited for in the order in which they began.
void GradientSum::receive_all() {
  if (sent_sums_) add_sums();
  if (sent_) add_received();
  if (sent_sums_) add_sums();
}

void GradientSum::release() {
  sent_sums_.reset();
  sent_.reset();
  for (at::Tensor* memory : {&scratch_, &receive_, &group_sums_, &receive_sums_}) memory->reset();
  group_accumulators_.release();
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
    if (sent_sums_) add_sums();
    if (sent_) add_received();
    has_two_levels_ ? send_in_group(bucket) : send(bucket);
  }
}

void GradientSum::add_to_sum(size_t tensor, const at::Tensor& part) {
  const model::GradientTarget sum = accumulators_.target(tensor);
  if (sum.use == device::GradientUse::kSet) {
    sum.memory.copy_(part);
  } else {
    sum.memory.add_(part);
  }
}

// The sum of the first group that contributes is made where that of all groups is.
void GradientSum::add(size_t tensor, int64_t micro_batch, const at::Tensor& part) {
  const int64_t group = micro_batch / group_size_;
  if (group_size_ == 1 || group == first_group_) return add_to_sum(tensor, part);
  const at::Tensor& sum = group_accumulators_.target(tensor).memory;
  if (group_of_[tensor] == group) {
    sum.add_(part);
  } else {
    end_group(tensor);
    group_of_[tensor] = group;
    sum.copy_(part);
  }
}

void GradientSum::end_group(size_t tensor) {
  if (std::exchange(group_of_[tensor], -1) >= 0) add_to_sum(tensor, group_accumulators_.last(tensor));
}

void GradientSum::add_own(const Bucket& bucket) {
  for (const auto& [tensor, first_element] : bucket.members) add(tensor, round_, scratch_of(tensor, rank()));
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
  if (has_two_levels_) return send_sums();
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
      add(tensor, round_ * ranks_.size() + r, r == rank() ? own : (received++)->view(own.sizes()));
    }
  }
}

bool GradientSum::group_contributes(int64_t group) const {
  const auto begin = contributes_.begin() + group * group_size_;
  return std::find(begin, begin + group_size_, true) != begin + group_size_;
}

base::Size GradientSum::column_elements(int64_t bucket) const {
  base::Size elements = 0;
  for (const Buckets& owner : columns_) elements += owner.of(bucket).num_elements;
  return elements;
}

// Returns the rows of one owner in memory for those of all owners of this rank's place, which begins there.
std::vector<at::Tensor> GradientSum::column(int64_t bucket, const at::Tensor& memory, int64_t begin,
                                            int64_t group) const {
  for (int64_t g = 0; g < group; ++g) begin += columns_[static_cast<size_t>(g)].of(bucket).num_elements;
  std::vector<at::Tensor> rows;
  for (const auto& [tensor, first_element] : columns_[static_cast<size_t>(group)].of(bucket).members) {
    const int64_t count = scratch_of(tensor, owner(group)).numel();
    if (count > 0) rows.push_back(memory.narrow(0, begin + first_element, count));
  }
  return rows;
}

// Begins the first level: rank j of the group gets the rows of owners that are rank j of theirs.
void GradientSum::send_in_group(int64_t bucket) {
  auto sent = std::make_unique<Sent>();
  sent->bucket = bucket;
  const auto size = static_cast<size_t>(ranks_.size());
  device::TensorLists to(size), from(size);
  int64_t begin = 0;  // position in the receive buffer
  for (int64_t mate = 0; mate < group_size_; ++mate) {
    const auto r = static_cast<size_t>(group() * group_size_ + mate);
    if (r == static_cast<size_t>(rank())) continue;
    for (int64_t g = 0; contributes() && g < num_groups(); ++g) {
      for (const auto& [tensor, first_element] : whole_.of(bucket).members) {
        at::Tensor rows = scratch_of(tensor, static_cast<int>(g * group_size_ + mate));
        if (rows.size(0) > 0) to[r].push_back(std::move(rows));
      }
    }
    if (!contributes_[r]) continue;
    for (int64_t g = 0; g < num_groups(); ++g)
      std::ranges::move(column(bucket, receive_, begin, g), std::back_inserter(from[r]));
    begin += column_elements(bucket);
  }
  sent->received = from;
  sent->exchange = ranks_.start_exchange(std::move(to), std::move(from));
  sent_ = std::move(sent);
}

// Ends the first level, adds up the group's rows, and begins the second level: each owner gets its rows of each group.
void GradientSum::send_sums() {
  const at::NoGradGuard without_graph;
  const std::unique_ptr<Sent> sent = std::move(sent_);
  sent->exchange->wait();
  const int64_t bucket = sent->bucket;
  std::vector<std::vector<at::Tensor>> sums;
  for (int64_t g = 0; g < num_groups(); ++g) sums.push_back(column(bucket, group_sums_, 0, g));
  bool is_first = true;
  for (int64_t mate = 0; mate < group_size_; ++mate) {
    const auto r = static_cast<size_t>(group() * group_size_ + mate);
    if (!contributes_[r]) continue;
    auto received = sent->received[r].begin();
    for (int64_t g = 0; g < num_groups(); ++g) {
      auto sum = sums[static_cast<size_t>(g)].begin();
      for (const auto& [tensor, first_element] : whole_.of(bucket).members) {
        const at::Tensor own = scratch_of(tensor, owner(g));
        if (own.size(0) == 0) continue;
        const at::Tensor part = r == static_cast<size_t>(rank()) ? own.view({-1}) : *received++;
        is_first ? sum->copy_(part) : sum->add_(part);
        ++sum;
      }
    }
    is_first = false;
  }
  auto sent_sums = std::make_unique<SentSums>();
  sent_sums->bucket = bucket;
  sent_sums->received.resize(static_cast<size_t>(num_groups()));
  const auto size = static_cast<size_t>(ranks_.size());
  device::TensorLists to(size), from(size);
  int64_t begin = 0;  // position in the receive buffer
  for (int64_t g = 0; g < num_groups(); ++g) {
    std::vector<at::Tensor>& received = sent_sums->received[static_cast<size_t>(g)];
    if (g == group()) {
      received = sums[static_cast<size_t>(g)];
      continue;
    }
    const auto peer = static_cast<size_t>(owner(g));
    if (group_contributes(group())) to[peer] = sums[static_cast<size_t>(g)];
    if (!group_contributes(g)) continue;
    for (const auto& [tensor, first_element] : own_.of(bucket).members) {
      const int64_t count = scratch_of(tensor, rank()).numel();
      if (count > 0) received.push_back(receive_sums_.narrow(0, begin + first_element, count));
    }
    from[peer] = received;
    begin += own_.of(bucket).num_elements;
  }
  sent_sums->exchange = ranks_.start_exchange(std::move(to), std::move(from));
  sent_sums_ = std::move(sent_sums);
}

void GradientSum::add_sums() {
  const at::NoGradGuard without_graph;
  const std::unique_ptr<SentSums> sent = std::move(sent_sums_);  // it is waited for however this ends
  sent->exchange->wait();
  for (int64_t g = 0; g < num_groups(); ++g) {
    if (!group_contributes(g)) continue;
    auto received = sent->received[static_cast<size_t>(g)].begin();
    for (const auto& [tensor, first_element] : whole_.of(sent->bucket).members) {
      const at::Tensor own = scratch_of(tensor, rank());
      if (own.size(0) > 0) add_to_sum(tensor, (received++)->view(own.sizes()));
    }
  }
}

}  // namespace tandem::trainer
