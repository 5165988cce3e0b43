#include "data/prompt_order.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/rng.h"
#include "base/size.h"

namespace tandem::data {
namespace {

// This keeps the shuffles' random streams apart from the samples', which count from 0 under the same seed. The first
// file's are those of a run with one file; the others have their number in bits that no epoch reaches.
constexpr uint64_t kShuffleStream = uint64_t{1} << 63;
constexpr int kFileShift = 44;
// This stream draws files by weight: its counters are the numbers of the records in the run.
constexpr uint64_t kFileStream = uint64_t{3} << 62;

std::vector<int64_t> shuffled(int64_t size, uint64_t seed, uint64_t stream) {
  std::vector<int64_t> order(static_cast<size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  for (int64_t i = size - 1; i > 0; --i) {
    const double u = base::uniform(seed, stream, static_cast<uint64_t>(i));
    const auto j = std::min(i, static_cast<int64_t>(u * static_cast<double>(i + 1)));
    std::swap(order[static_cast<size_t>(i)], order[static_cast<size_t>(j)]);
  }
  return order;
}

}  // namespace

std::vector<int64_t> shuffled_indices(int64_t size, uint64_t seed, int64_t epoch) {
  return shuffled(size, seed, kShuffleStream | static_cast<uint64_t>(epoch));
}

PromptOrder::PromptOrder(std::vector<int64_t> file_sizes, std::vector<double> weights, bool shuffle, uint64_t seed)
    : shuffle_(shuffle), seed_(seed) {
  TANDEM_CHECK(weights.empty() || weights.size() == file_sizes.size(), weights.size(), file_sizes.size());
  for (const int64_t size : file_sizes) {
    TANDEM_CHECK(size > 0, size);
    if (!weights.empty()) files_.push_back({.begin = size_, .size = size, .order = {}});
    size_ += size;
  }
  if (weights.empty()) files_.push_back({.begin = 0, .size = size_, .order = {}});
  TANDEM_CHECK(size_ > 0, size_);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  double up_to = 0.0;
  for (const double weight : weights) {
    TANDEM_CHECK(weight > 0.0 && std::isfinite(sum), weight, sum);
    shares_.push_back((up_to += weight) / sum);
  }
}

// Returns the file that the record of that number in the run is drawn from.
size_t PromptOrder::drawn_file(int64_t number) const {
  if (shares_.empty()) return 0;
  const double u = base::uniform(seed_, kFileStream, static_cast<uint64_t>(number));
  const auto at = std::upper_bound(shares_.begin(), shares_.end(), u);
  return std::min(static_cast<size_t>(at - shares_.begin()), files_.size() - 1);  // sums are rounded
}

// Returns the next record of the file.
int64_t PromptOrder::record_of(size_t index) {
  File& file = files_[index];
  const int64_t epoch = file.num_taken / file.size, offset = file.num_taken % file.size;
  if (!shuffle_) return file.begin + offset;
  if (file.order_epoch != epoch) {
    file.order =
        shuffled(file.size, seed_, kShuffleStream | (uint64_t{index} << kFileShift) | static_cast<uint64_t>(epoch));
    file.order_epoch = epoch;
  }
  return file.begin + file.order[static_cast<size_t>(offset)];
}

int64_t PromptOrder::next() {
  const size_t file = drawn_file(num_taken());
  const int64_t index = record_of(file);
  ++files_[file].num_taken;
  if (++cursor_.offset == size_) cursor_ = {.epoch = base::Size(cursor_.epoch) + 1, .offset = 0};
  return index;
}

int64_t PromptOrder::num_taken() const { return base::Size(cursor_.epoch) * size_ + cursor_.offset; }

void PromptOrder::set_cursor(const PromptCursor& cursor) {
  TANDEM_CHECK(cursor.epoch >= 0 && cursor.offset >= 0 && cursor.offset < size_, cursor.epoch, cursor.offset, size_);
  int64_t from = num_taken();
  cursor_ = cursor;
  const int64_t to = num_taken();
  if (shares_.empty()) {
    files_.front().num_taken = to;
    return;
  }
  // This counts the records taken of each file with all draws between the two, which cost some 20 ns each.
  for (; from < to; ++from) ++files_[drawn_file(from)].num_taken;
  for (; from > to; --from) --files_[drawn_file(from - 1)].num_taken;
}

}  // namespace tandem::data
