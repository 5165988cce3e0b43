#include "config/dynamic_sampling_options.h"

#include <fmt/format.h>

#include <string_view>

#include "base/check.h"
#include "base/size.h"

namespace tandem::config {

namespace {

constexpr std::string_view kNonzeroStd = "nonzero_std";
constexpr std::string_view kSlimeFilters = "slime.rollout.filter_hub.dynamic_sampling_filters.";
constexpr std::string_view kSlimeNonzeroStd = "check_reward_nonzero_std";

}  // namespace

void DynamicSamplingOptions::visit(options::Options& options) {
  const char* const group = "loop";
  options
      .option(filter_path, "dynamic-sampling-filter-path", group,
              "train on groups that this filter keeps, and sample on until --rollout-batch-size are kept: nonzero_std "
              "(rewards of the group differ) or a Python function FILE.py:function in slime's dialect; unset: all")
      .path()
      .does_not_affect_results();  // a checkpoint remembers the filter itself: checkpoint/result_inputs.h
  options
      .option(
          max_sampled_groups, "max-sampled-groups", group,
          "groups that a filter may look at for one rollout; unset: until a whole pass over the data, and ten times "
          "--rollout-batch-size, are dropped in a row")
      .at_least(1)
      .at_most(base::kMaxCount);
  options
      .option(on_too_few_groups, "on-too-few-groups", group,
              "when a filter has kept fewer than --rollout-batch-size groups and may look at no more: train on those "
              "that it kept, or stop with exit code 2, as a run that has none always does")
      .one_of({"train", "stop"})
      .does_not_affect_results();
}

bool DynamicSamplingOptions::is_built_in() const {
  return filter_path == kNonzeroStd || filter_path == std::string(kSlimeFilters) + std::string(kSlimeNonzeroStd);
}

std::string DynamicSamplingOptions::name() const { return is_built_in() ? std::string(kNonzeroStd) : filter_path; }

void DynamicSamplingOptions::check(int64_t rollout_batch_size) const {
  TANDEM_USER_CHECK(is_on() || !max_sampled_groups,
                    fmt::format("--max-sampled-groups {}: needs --dynamic-sampling-filter-path; without a filter a "
                                "rollout samples --rollout-batch-size groups",
                                max_sampled_groups.value_or(0)));
  TANDEM_USER_CHECK(max_sampled_groups.value_or(rollout_batch_size) >= rollout_batch_size,
                    fmt::format("--max-sampled-groups {}: a rollout needs --rollout-batch-size {} groups; give as many "
                                "or more",
                                max_sampled_groups.value_or(0), rollout_batch_size));
  if (!is_on() || is_built_in()) return;
  const size_t colon = filter_path.rfind(':');
  const bool is_function = colon != std::string::npos && colon > 0 && colon + 1 < filter_path.size();
  TANDEM_USER_CHECK(
      is_function,
      fmt::format("--dynamic-sampling-filter-path {}: {}; give nonzero_std, or FILE.py:function", filter_path,
                  filter_path.starts_with(kSlimeFilters)
                      ? fmt::format("of slime's filters only {} is built in", kSlimeNonzeroStd)
                      : "is no filter that is built in, and names no function of a file"));
}

}  // namespace tandem::config
