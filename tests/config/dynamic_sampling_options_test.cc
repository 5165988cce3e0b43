// Filters of dynamic sampling are found under each of their names, and what is no filter is refused.
#include "config/dynamic_sampling_options.h"

#include <gtest/gtest.h>

#include <string>

#include "tests/base/thrown.h"

namespace tandem::config {
namespace {

const std::string kSlime = "slime.rollout.filter_hub.dynamic_sampling_filters.";

std::string refusal(const DynamicSamplingOptions& options) {
  return base::thrown_by([&] { options.check(/*rollout_batch_size=*/8); });
}

DynamicSamplingOptions filter(const std::string& path) { return {.filter_path = path}; }

// A checkpoint remembers the name, so a run may be resumed with the other spelling of the same filter.
TEST(DynamicSamplingOptions, TheBuiltInFilterHasOneNameHoweverItIsWritten) {
  for (const std::string& path : {std::string("nonzero_std"), kSlime + "check_reward_nonzero_std"}) {
    EXPECT_TRUE(filter(path).is_built_in()) << path;
    EXPECT_EQ(filter(path).name(), "nonzero_std");
    EXPECT_EQ(refusal(filter(path)), "");
  }
  EXPECT_FALSE(filter("").is_on());
  EXPECT_FALSE(filter("").is_built_in());
  EXPECT_EQ(filter("keep.py:keep").name(), "keep.py:keep");
}

TEST(DynamicSamplingOptions, WhatIsNoFilterIsRefused) {
  EXPECT_EQ(refusal(filter("keep.py:keep")), "");
  for (const char* path : {"keep", "keep.py", ":keep", "keep.py:"})
    EXPECT_NE(refusal(filter(path)).find("names no function of a file; give nonzero_std, or FILE.py:function"),
              std::string::npos)
        << path;
  EXPECT_NE(refusal(filter(kSlime + "other")).find("of slime's filters only check_reward_nonzero_std is built in"),
            std::string::npos);
}

TEST(DynamicSamplingOptions, ARolloutNeedsAsManyGroupsAsItTrainsOn) {
  EXPECT_EQ(refusal({.filter_path = "nonzero_std", .max_sampled_groups = 8}), "");
  EXPECT_TRUE(refusal({.filter_path = "nonzero_std", .max_sampled_groups = 7})
                  .starts_with("--max-sampled-groups 7: a rollout needs --rollout-batch-size 8 groups"));
  EXPECT_TRUE(refusal({.filter_path = "", .max_sampled_groups = 8})
                  .starts_with("--max-sampled-groups 8: needs --dynamic-sampling-filter-path"));
}

}  // namespace
}  // namespace tandem::config
