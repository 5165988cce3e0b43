#include "rollout/step_buckets.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>

#include "base/check.h"
#include "device/block.h"
#include "memory/arena_allocator.h"

namespace tandem::rollout {

namespace {

int64_t blocks_for(int64_t tokens) { return (tokens + device::kBlockTokens - 1) / device::kBlockTokens; }

}  // namespace

StepBuckets::StepBuckets(const device::Ops& ops, int64_t max_rows, int64_t num_kinds)
    : ops_(ops), max_rows_(std::min(max_rows, kLargestBucket)), num_kinds_(num_kinds) {}

bool StepBuckets::holds(int64_t context_tokens) const {
  return is_taken() && blocks_for(context_tokens) <= max_blocks_;
}

void StepBuckets::take(int64_t context_tokens) {
  TANDEM_CHECK(!is_taken());
  const int64_t max_blocks = std::max(max_blocks_, bucket_blocks(context_tokens));
  const bool same_places = max_blocks == max_blocks_;
  max_blocks_ = max_blocks;
  if (!same_places) lay_out();
  const memory::TagScope tag(memory::Tag::kGraphs, "step memory");
  memory_ = at::empty({places_.rbegin()->second.end}, at::TensorOptions(at::kByte).device(ops_.device()));
  auto* const address = reinterpret_cast<std::byte*>(memory_.mutable_data_ptr<uint8_t>());
  if (!same_places || address != address_) buckets_.clear();
  address_ = address;
}

void StepBuckets::release() {
  for (auto& [rows, bucket] : buckets_) {
    const StepShape& shape = bucket->tensors.shape;
    // Memory that prepare() allocated itself is freed, too.
    if (ops_.prepared_bytes(shape.num_rows, shape.num_sequences, shape.max_blocks) == 0) bucket->tensors.rows.clear();
  }
  memory_.reset();
}

void StepBuckets::drop_recordings() {
  for (auto& [rows, bucket] : buckets_) bucket->recording.reset();
}

void StepBuckets::lay_out() {
  places_ = lay_out_buckets(max_rows_, max_blocks_, num_kinds_, [this](const StepShape& shape) {
    return ops_.prepared_bytes(shape.num_rows, shape.num_sequences, shape.max_blocks);
  });
}

at::Tensor StepBuckets::part(int64_t begin, int64_t count, at::ScalarType dtype) const {
  const auto options = at::TensorOptions(dtype).device(ops_.device());
  return at::from_blob(
      address_ + begin, {count}, [](void*) {}, options, options.device());
}

StepBuckets::Bucket* StepBuckets::find(int64_t num_rows) {
  TANDEM_CHECK(is_taken());
  const auto place = places_.find(bucket_rows(num_rows));
  if (place == places_.end()) return nullptr;
  std::unique_ptr<Bucket>& bucket = buckets_[place->first];
  if (bucket == nullptr) {
    const StepShape shape = bucket_shape(place->first, max_blocks_, num_kinds_);
    bucket = std::make_unique<Bucket>(
        Bucket{.tensors = StepTensors(shape, part(place->second.input, shape.num_words(), at::kInt),
                                      part(place->second.results, 3 * shape.num_draws, at::kInt)),
               .recording = nullptr});
  }
  return bucket.get();
}

void StepBuckets::fill_rows(Bucket& bucket, const StepInput& input) const {
  std::vector<device::AttentionRows>& rows = bucket.tensors.rows;
  const BucketPlace& place = places_.at(bucket.tensors.shape.num_rows);
  for (size_t kind = 0; kind < place.rows.size(); ++kind) {
    device::AttentionRows fresh = attention_rows(input, kind);
    if (kind < rows.size()) {
      ops_.refill(rows[kind], fresh);
      continue;
    }
    const int64_t begin = place.rows[kind];
    const int64_t end = kind + 1 < place.rows.size() ? place.rows[kind + 1] : place.end;
    if (end > begin) fresh.memory = part(begin, end - begin, at::kByte);
    rows.push_back(ops_.prepare(fresh));
  }
}

void StepBuckets::run(Bucket& bucket, const std::function<void()>& work) const {
  if (!bucket.has_run) {
    work();  // it also loads and chooses everything that a recording must find ready
    bucket.has_run = true;
    return;
  }
  if (bucket.recording == nullptr) bucket.recording = ops_.record(work);
  bucket.recording->replay();
}

}  // namespace tandem::rollout
