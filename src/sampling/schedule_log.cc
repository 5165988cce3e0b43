#include "sampling/schedule_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <sstream>

#include "base/check.h"
#include "base/json.h"

namespace tandem::sampling {

namespace {

using base::Json;

constexpr int64_t kMaxLogBytes = int64_t{8} << 30;

class LineReader {
 public:
  LineReader(const std::string& path, int64_t number, const Json& line) : path_(path), number_(number), line_(line) {}

  ScheduledRollout read() const {
    ScheduledRollout result;
    result.rollout = count(member(line_, "rollout"));
    result.taken = groups("take");
    result.dropped = groups("drop");
    const Json& samples = member(line_, "samples");
    check(samples.is_object(), "samples is no object");
    for (const auto& [name, spans] : samples.items()) {
      uint64_t id = 0;
      const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), id);
      check(error == std::errc() && end == name.data() + name.size(), "\"" + name + "\" is no sample's number");
      result.samples[id] = spans_of(spans);
    }
    return result;
  }

 private:
  void check(bool is_good, const std::string& what) const {
    TANDEM_USER_CHECK(is_good,
                      fmt::format("{}:{}: {}; it was changed by hand, or is no schedule.jsonl", path_, number_, what));
  }
  const Json& member(const Json& object, const char* name) const {
    check(object.is_object() && object.contains(name), fmt::format("has no \"{}\"", name));
    return object[name];
  }
  int64_t count(const Json& value) const {
    check(value.is_number_integer() && value >= 0 && value <= (int64_t{1} << 60),
          base::dump_json(value) + " is no count");
    return value.get<int64_t>();
  }
  std::vector<size_t> groups(const char* name) const {
    const Json& values = member(line_, name);
    check(values.is_array(), fmt::format("{} is no list", name));
    std::vector<size_t> result;
    for (const Json& value : values) result.push_back(static_cast<size_t>(count(value)));
    check(std::ranges::adjacent_find(result, std::greater_equal()) == result.end(),
          fmt::format("{} is not ascending", name));
    return result;
  }
  std::vector<ScheduledRollout::Span> spans_of(const Json& values) const {
    check(values.is_array(), "a sample's value is no list");
    std::vector<ScheduledRollout::Span> spans;
    for (const Json& value : values) {
      check(value.is_array() && value.size() == 2, "a sample has something else than [version, end]");
      const ScheduledRollout::Span span = {.version = static_cast<uint64_t>(count(value[0])), .end = count(value[1])};
      check(spans.empty() ? span.end > 0 : span.end > spans.back().end && span.version > spans.back().version,
            "a sample's versions and ends are not ascending");
      spans.push_back(span);
    }
    return spans;
  }

  const std::string& path_;
  const int64_t number_;
  const Json& line_;
};

}  // namespace

ScheduleLog::ScheduleLog(const std::string& path, int64_t n_samples_per_prompt)
    : n_(static_cast<uint64_t>(n_samples_per_prompt)) {
  std::string text = base::read_file(path, kMaxLogBytes);
  text.resize(text.rfind('\n') + 1);
  std::istringstream lines(text);
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.empty()) continue;
    ScheduledRollout read = LineReader(path, number, base::parse_json(line, fmt::format("{}:{}", path, number))).read();
    rollouts_.erase(rollouts_.lower_bound(read.rollout), rollouts_.end());
    rollouts_[read.rollout] = std::move(read);
  }
  for (const auto& [rollout, scheduled] : rollouts_) {
    for (const auto& [id, spans] : scheduled.samples) samples_[id] = &spans;
    for (const size_t group : scheduled.taken) {
      for (uint64_t i = 0; i < n_; ++i) {
        TANDEM_USER_CHECK(scheduled.samples.contains(group * n_ + i),
                          fmt::format("{}: rollout {} took group {}, and says nothing of sample {}; it was changed by "
                                      "hand, or is of another --n-samples-per-prompt",
                                      path, rollout, group, group * n_ + i));
      }
    }
  }
}

const ScheduledRollout* ScheduleLog::of(int64_t rollout) const {
  const auto found = rollouts_.find(rollout);
  return found == rollouts_.end() ? nullptr : &found->second;
}

std::vector<size_t> ScheduleLog::begun_by(uint64_t version, int64_t rollout) const {
  std::set<size_t> groups;
  for (auto it = rollouts_.lower_bound(rollout); it != rollouts_.end(); ++it) {
    for (const auto& [id, spans] : it->second.samples) {
      if (!spans.empty() && spans.front().version == version) groups.insert(static_cast<size_t>(id / n_));
    }
  }
  return {groups.begin(), groups.end()};
}

int64_t ScheduleLog::tokens_of(uint64_t sample_id, uint64_t version, int64_t num_tokens) const {
  const auto found = samples_.find(sample_id);
  if (found == samples_.end()) return 0;
  for (const ScheduledRollout::Span& span : *found->second) {
    if (span.version == version) return std::max<int64_t>(span.end - num_tokens, 0);
  }
  return 0;
}

std::string schedule_line(int64_t rollout_id, const Rollout& rollout) {
  Json line = {{"rollout", rollout_id}, {"take", Json::array()}, {"drop", rollout.in_flight.value().dropped}};
  Json samples = Json::object();
  for (const rl::Sample& sample : rollout.samples) {
    if (line["take"].empty() || line["take"].back() != sample.group_id) line["take"].push_back(sample.group_id);
    Json spans = Json::array();
    for (size_t i = 0; i < sample.versions.size(); ++i) {
      const int64_t end = i + 1 < sample.versions.size() ? sample.versions[i + 1].begin : std::ssize(sample.completion);
      spans.push_back({sample.versions[i].version, end});
    }
    samples[std::to_string(sample.sample_id)] = std::move(spans);
  }
  line["samples"] = std::move(samples);
  return base::dump_json(line);
}

}  // namespace tandem::sampling
