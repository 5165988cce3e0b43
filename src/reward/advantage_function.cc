#include "reward/advantage_function.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "base/check.h"
#include "base/log.h"
#include "base/message_text.h"
#include "reward/failure_class.h"
#include "worker/message.h"
#include "worker/worker_pool.h"

namespace tandem::reward {
namespace {

using base::Json;
using worker::kMaxReasonBytes;

constexpr const char* kAdvantageFlag = "--custom-advantage-path";
// A message holds the groups of about so many tokens, each of which takes some 30 bytes of JSON.
constexpr size_t kTokensOfMessage = size_t{1} << 20;
// Taking in groups and giving out numbers runs none of the user's code.
constexpr double kMessageS = 60.0;
constexpr size_t kMaxStateBytes = size_t{8} << 20;  // as in python/tandem_worker/advantage.py; it writes ASCII

void require_advantages(bool holds) {
  if (!holds) throw worker::BadReply("answered with something other than advantages");
}

size_t tokens_of(const AdvantageGroup& group) {
  size_t count = 1;
  for (const AdvantageShape& sample : group.samples) count += sample.num_tokens;
  return count;
}

// Returns the end of the groups from `first` on that go into one message: one, or as many as have few enough tokens.
size_t end_of_message(const std::vector<AdvantageGroup>& groups, size_t first) {
  size_t end = first + 1, tokens = tokens_of(groups[first]);
  while (end < groups.size() && tokens + tokens_of(groups[end]) <= kTokensOfMessage) tokens += tokens_of(groups[end++]);
  return end;
}

double finite_number(const Json& value) {
  require_advantages(value.is_number());
  const auto number = value.get<double>();
  require_advantages(std::isfinite(number));
  return number;
}

SampleAdvantages sample_advantages(const Json& value, const AdvantageShape& shape) {
  if (value.is_null()) return std::nullopt;
  if (!value.is_array()) return std::vector{finite_number(value)};
  require_advantages(value.size() == shape.num_tokens || value.size() == shape.num_turns);
  std::vector<double> numbers;
  for (const Json& number : value) numbers.push_back(finite_number(number));
  return numbers;
}

std::vector<SampleAdvantages> group_advantages(const Json& values, const AdvantageGroup& group) {
  require_advantages(values.is_array() && values.size() == group.samples.size());
  std::vector<SampleAdvantages> result;
  for (size_t i = 0; i < group.samples.size(); ++i) result.push_back(sample_advantages(values[i], group.samples[i]));
  return result;
}

AdvantageResult failure(std::string reason_class, const std::string& reason) {
  AdvantageResult result;
  result.failed = true;
  result.reason_class = std::move(reason_class);
  result.reason = base::one_line(reason, kMaxReasonBytes);
  return result;
}

AdvantageResult failure_of(const Json& reply) {
  constexpr std::array<std::string_view, 5> kClasses = {"exception", "memory", "not_finite", "wrong_type",
                                                        "wrong_count"};
  require_advantages(reply.at("failed").is_string() && reply.contains("reason") && reply.at("reason").is_string());
  const auto reason_class = reply.at("failed").get<std::string>();
  require_advantages(std::ranges::find(kClasses, reason_class) != kClasses.end());
  return failure(reason_class, reply.at("reason").get<std::string>());
}

}  // namespace

struct AdvantageFunction::Impl {
  explicit Impl(const AdvantageConfig& given) : config(given), pool(pool_config()) {}

  worker::WorkerPoolConfig pool_config() const {
    worker::WorkerPoolConfig result;
    result.mode = "advantage";
    result.code = config;
    result.code.code_flag = kAdvantageFlag;
    result.code.code_path = config.function;
    result.load_arguments = {
        {"function", config.function}, {"metadata_key", config.metadata_key}, {"arguments", config.arguments}};
    result.num_processes = 1;
    result.memory_bytes = config.memory_bytes;
    result.what_runs = fmt::format("the function of {}", kAdvantageFlag);
    result.who_runs = fmt::format("the process of {}", kAdvantageFlag);
    result.warn_of_leftovers = [](const std::string&) {};  // a process makes one call, and ends
    return result;
  }

  AdvantageResult computed(uint64_t rollout, const std::vector<AdvantageGroup>& groups, const std::string& state) {
    worker::Worker& worker = pool.worker(0);
    double deadline_s = 0.0;
    for (size_t first = 0; first < groups.size();) {
      const size_t end = end_of_message(groups, first);
      Json messages = Json::array();
      for (; first < end; ++first) {
        messages.push_back(groups[first].message());
        deadline_s += config.deadline_s * static_cast<double>(groups[first].samples.size());
      }
      worker.call("add", {{"groups", std::move(messages)}}, kMessageS);
    }
    const Json reply = worker.call("compute", {{"rollout", rollout}, {"state", state}}, deadline_s);
    require_advantages(reply.is_object());
    if (reply.contains("failed")) return failure_of(reply);
    AdvantageResult result;
    require_advantages(reply.contains("state") && reply.at("state").is_string());
    result.state = reply.at("state").get<std::string>();
    require_advantages(result.state.size() <= kMaxStateBytes);
    for (size_t first = 0; first < groups.size();) {
      const size_t end = end_of_message(groups, first);
      const Json values = worker.call("fetch", {{"first", first}, {"count", end - first}}, kMessageS);
      require_advantages(values.is_array() && values.size() == end - first);
      for (const Json& of_group : values) result.groups.push_back(group_advantages(of_group, groups[first++]));
    }
    return result;
  }

  AdvantageConfig config;
  worker::WorkerPool pool;
};

AdvantageFunction::AdvantageFunction(const AdvantageConfig& config) {
  TANDEM_CHECK(config.deadline_s > 0 && !config.function.empty(), config.deadline_s);
  impl_ = std::make_unique<Impl>(config);
  impl_->pool.start();
}

AdvantageFunction::~AdvantageFunction() = default;

AdvantageResult AdvantageFunction::call(uint64_t rollout, const std::vector<AdvantageGroup>& groups,
                                        const std::string& state) {
  worker::Worker& worker = impl_->pool.worker(0);
  try {
    worker.make_ready();
  } catch (const std::runtime_error& error) {
    return failure("not_started", std::string("a process could not start: ") + error.what());
  }
  AdvantageResult result;
  try {
    result = impl_->computed(rollout, groups, state);
  } catch (const worker::ChildLost& lost) {
    result = failure(reason_class(lost.cause()), lost.what());
  } catch (const UserError& refused) {  // a message that cannot be sent
    result = failure("exception", refused.what());
  } catch (const std::runtime_error&) {  // user code wrote the answer
    result = failure("died", "the process answered with something other than advantages");
  } catch (const Json::exception&) {
    result = failure("died", "the process answered with something other than advantages");
  }
  worker.retire();
  worker.rest(/*is_spent=*/true);
  return result;
}

}  // namespace tandem::reward
