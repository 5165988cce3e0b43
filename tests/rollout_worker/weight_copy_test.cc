// A copy in a thread beside the one that samples: its end and its error are seen there, and it never outlives what it
// uses.
#include "rollout_worker/weight_copy.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <future>

#include "tandem/error.h"

namespace tandem::rollout_worker {
namespace {

std::optional<uint64_t> end_of(WeightCopy& copy) {
  const std::array<int, 1> news = {copy.descriptor()};
  base::wait_readable(news, 20.0);
  while (copy.is_running()) {
    if (const std::optional<uint64_t> version = copy.done()) return version;
  }
  return std::nullopt;
}

TEST(WeightCopy, SaysOnceThatItIsDone) {
  WeightCopy copy;
  for (const uint64_t version : {3, 4}) {
    std::promise<void> go_on;
    copy.start(version, [&] { go_on.get_future().wait(); });
    EXPECT_EQ(copy.done(), std::nullopt);
    EXPECT_THROW(copy.start(9, [] {}), EnvironmentError) << "one at a time";
    go_on.set_value();
    EXPECT_EQ(end_of(copy), version);
    EXPECT_EQ(copy.done(), std::nullopt);
  }
}

TEST(WeightCopy, ThrowsWhatEndedIt) {
  WeightCopy copy;
  copy.start(1, [] { throw EnvironmentError("the link is gone"); });
  EXPECT_THROW(end_of(copy), EnvironmentError);
  copy.start(2, [] {});
  EXPECT_EQ(end_of(copy), 2U) << "the error is of one copy alone";
}

TEST(WeightCopy, EndsBeforeWhatItUses) {
  std::atomic<bool> is_done = false;
  {
    WeightCopy copy;
    copy.start(1, [&] {
      usleep(100'000);
      is_done = true;
    });
  }
  EXPECT_TRUE(is_done);
}

}  // namespace
}  // namespace tandem::rollout_worker
