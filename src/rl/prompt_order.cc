#include "rl/prompt_order.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/rng.h"
#include "base/size.h"

namespace tandem::rl {
namespace {

// Keeps the shuffle's random stream apart from the samples', which count from 0 under the same seed.
constexpr uint64_t kShuffleStream = uint64_t{1} << 63;

}  // namespace

std::vector<int64_t> shuffled_indices(int64_t size, uint64_t seed, int64_t epoch) {
  std::vector<int64_t> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  const uint64_t stream = kShuffleStream | static_cast<uint64_t>(epoch);
  for (int64_t i = size - 1; i > 0; --i) {
    const double u = base::uniform(seed, stream, static_cast<uint64_t>(i));
    const auto j = std::min(i, static_cast<int64_t>(u * static_cast<double>(i + 1)));
    std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(j)]);
  }
  return order;
}

PromptOrder::PromptOrder(int64_t size, bool shuffle, uint64_t seed) : size_(size), shuffle_(shuffle), seed_(seed) {
  TANDEM_CHECK(size > 0, size);
}

int64_t PromptOrder::next() {
  if (shuffle_ && order_epoch_ != cursor_.epoch) {
    order_ = shuffled_indices(size_, seed_, cursor_.epoch);
    order_epoch_ = cursor_.epoch;
  }
  const int64_t index = shuffle_ ? order_[static_cast<size_t>(cursor_.offset)] : cursor_.offset;
  if (++cursor_.offset == size_) cursor_ = {.epoch = base::Size(cursor_.epoch) + 1, .offset = 0};
  return index;
}

int64_t PromptOrder::num_taken() const { return base::Size(cursor_.epoch) * size_ + cursor_.offset; }

void PromptOrder::set_cursor(const PromptCursor& cursor) {
  TANDEM_CHECK(cursor.epoch >= 0 && cursor.offset >= 0 && cursor.offset < size_, cursor.epoch, cursor.offset, size_);
  cursor_ = cursor;
}

}  // namespace tandem::rl
