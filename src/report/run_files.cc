#include "report/run_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <system_error>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "base/message_text.h"
#include "report/line_reader.h"
#include "report/step_line.h"

namespace tandem::report {

namespace {

using base::Json;

constexpr int64_t kTailBytes = int64_t{8} << 20;  // of memory_timeline.jsonl; a step has some thousand events
constexpr int64_t kLogTailBytes = int64_t{64} << 10;
constexpr int64_t kMaxConfigBytes = int64_t{1} << 20;
constexpr size_t kMaxNameBytes = 120;

bool is_regular(const std::string& path) {
  std::error_code unknown;
  return std::filesystem::is_regular_file(path, unknown);
}

// Returns the end of a file, from the beginning of a line.
std::string tail_of(const std::string& path, int64_t max_bytes) {
  const base::ReadableFile file(path);
  const int64_t begin = std::max<int64_t>(0, file.size() - max_bytes);
  std::string text(static_cast<size_t>(file.size() - begin), '\0');
  file.read_at(begin, std::as_writable_bytes(std::span(text)));
  if (begin > 0) text.erase(0, std::min(text.size(), text.find('\n') + 1));
  return text;
}

double number_at(const Json& record, const char* name) {
  const auto found = record.find(name);
  if (found == record.end()) return 0.0;
  const std::optional<double> value = metric_value(*found);
  return value && std::isfinite(*value) ? *value : 0.0;
}

// Places records on the axes. A step of the optimizer is written before the record of its rollout, which alone tells
// how many steps the rollout had.
class Placing {
 public:
  Placing(std::vector<Position>& positions, bool has_rollouts) : positions_(positions), has_rollouts_(has_rollouts) {}

  void add(std::string_view kind, double step, const Json& record) {
    const double time_s = number_at(record, "time_s");
    if (time_s < last_time_s_) resumed_s_ += last_time_s_;  // each process of a run counts from 0
    last_time_s_ = time_s;
    now_.seconds = resumed_s_ + time_s;
    if (kind == "rollout") {
      const double num_ranks = std::max(1.0, number_at(record, "perf/rollout_ranks"));
      now_.tokens +=
          number_at(record, "perf/tokens_per_gpu_per_sec") * number_at(record, "perf/rollout_time") * num_ranks;
      place_pending(step, static_cast<double>(positions_.size() - first_pending_));
      now_.rollouts = step + 1;
    } else if (kind == "eval") {
      now_.rollouts = std::max(now_.rollouts, step);
    } else if (kind == "train" && !has_rollouts_) {
      now_.tokens += number_at(record, "perf/actor_train_tok_per_s") * number_at(record, "perf/actor_train_time");
      now_.rollouts = step + 1;
    }
    if (kind != "train" || !has_rollouts_) finish(now_.rollouts);
    positions_.push_back(now_);
    if (kind != "train" || !has_rollouts_) first_pending_ = positions_.size();
  }

  // Handles steps of a rollout that a run did not finish.
  void end() {
    place_pending(now_.rollouts, std::max(steps_per_rollout_, static_cast<double>(positions_.size() - first_pending_)));
  }

 private:
  void place_pending(double rollout, double num_steps) {
    const size_t first = first_pending_;
    for (size_t i = first; i < positions_.size(); ++i) {
      positions_[i].rollouts = rollout + static_cast<double>(i - first + 1) / num_steps;
      positions_[i].tokens = now_.tokens;
    }
    if (positions_.size() > first) steps_per_rollout_ = static_cast<double>(positions_.size() - first);
    first_pending_ = positions_.size();
  }
  // If an evaluation comes among unfinished steps, those were of a rollout that was given up.
  void finish(double rollout) {
    if (first_pending_ < positions_.size()) place_pending(rollout, std::max(1.0, steps_per_rollout_));
  }

  std::vector<Position>& positions_;
  const bool has_rollouts_;
  Position now_;
  size_t first_pending_ = 0;  // first since the last record of a rollout
  double steps_per_rollout_ = 1.0, last_time_s_ = 0.0, resumed_s_ = 0.0;
};

void read_metrics(const std::string& path, RunFiles& run) {
  TANDEM_USER_CHECK(
      is_regular(path),
      fmt::format("{}: the run has no records (no metrics.jsonl); look again after its first rollout", run.path));
  LineReader reader(path);
  BadLines bad;
  Placing placing(run.positions, run.has_rollouts);
  std::string line;
  while (reader.next(line)) {
    const Json record = parsed_line(line);
    if (!record.is_object() || record.empty()) {
      bad.add(reader.number());
      continue;
    }
    // The first key is the axis that the record counts on: "rollout/step".
    const std::string& axis = record.begin().key();
    const std::optional<double> step = metric_value(record.begin().value());
    if (!axis.ends_with("/step") || !step || !std::isfinite(*step)) {
      bad.add(reader.number());
      continue;
    }
    placing.add(std::string_view(axis).substr(0, axis.size() - 5), *step, record);
    const auto at = static_cast<uint32_t>(run.positions.size() - 1);
    for (const auto& [name, value] : record.items()) {
      if (name == axis || name == "time_s") continue;
      const std::optional<double> number = metric_value(value);
      if (!number) continue;
      Curve& curve = run.curves[name];
      curve.at.push_back(at);
      curve.values.push_back(without_rounding(name, *number));
    }
  }
  placing.end();
  bad.say("metrics.jsonl", reader, run.left_out);
  TANDEM_USER_CHECK(!run.positions.empty(),
                    fmt::format("{}: the run has no records (metrics.jsonl has none); look again after its first "
                                "rollout",
                                run.path));
}

void read_config(const std::string& path, RunFiles& run) {
  if (!is_regular(path)) {
    run.left_out.emplace_back("config.toml is missing, so the options of the run are not known.");
    return;
  }
  run.config_text = tail_of(path, kMaxConfigBytes);
  std::string_view rest = run.config_text;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    const size_t equals = line.find(" = ");
    if (equals != std::string_view::npos && !line.starts_with('#'))
      run.config[std::string(line.substr(0, equals))] = line.substr(equals + 3);
  }
}

void read_memory(const std::string& path, RunFiles& run) {
  if (!is_regular(path)) return;
  const std::string text = tail_of(path, kTailBytes);
  std::string_view rest = text;
  Json last;
  while (!rest.empty()) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    const bool is_whole = line.size() < rest.size();
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (!is_whole || !line.starts_with("{\"event\":\"step\"")) continue;
    if (Json record = parsed_line(std::string(line)); record.is_object()) last = std::move(record);
  }
  if (!last.is_object() || !last.contains("phases") || !last["phases"].is_object()) return;
  const auto bytes_at = [](const Json& object, const std::string& name) -> int64_t {
    const auto found = object.find(name);
    return found != object.end() && found->is_number_integer() ? found->get<int64_t>() : 0;
  };
  for (const auto& [phase, of_phase] : last["phases"].items()) {
    if (!of_phase.is_object()) continue;
    const Json most = of_phase.value("most", Json::object()), planned = of_phase.value("planned", Json::object());
    std::set<std::string> seen;
    for (const Json& by_tag : {planned, most}) {
      if (!by_tag.is_object()) continue;
      for (const auto& [tag, bytes] : by_tag.items()) {
        if (seen.insert(tag).second) run.memory.push_back({phase, tag, bytes_at(most, tag), bytes_at(planned, tag)});
      }
    }
    run.memory.push_back({phase, "", bytes_at(of_phase, "most_at_once"), bytes_at(of_phase, "planned_at_once")});
  }
}

// Drops metrics whose names are too long to read.
void drop_long_names(RunFiles& run) {
  const size_t num_long =
      std::erase_if(run.curves, [](const auto& named) { return named.first.size() > kMaxNameBytes; });
  if (num_long > 0)
    run.left_out.push_back(fmt::format("{} whose name is longer than {} bytes {} left out.",
                                       base::counted(static_cast<int64_t>(num_long), "metric"), kMaxNameBytes,
                                       num_long == 1 ? "is" : "are"));
}

}  // namespace

RunFiles read_run(const std::string& path, size_t num_runs) {
  RunFiles run;
  run.path = base::without_trailing_slashes(path);
  base::check_directory(run.path, path, "name the --save directory of a run");
  TANDEM_USER_CHECK(base::file_exists(run.path + "/config.toml") || base::file_exists(run.path + "/metrics.jsonl"),
                    fmt::format("{}: holds no run (no config.toml and no metrics.jsonl); name the --save directory of "
                                "a run",
                                path));
  read_config(run.path + "/config.toml", run);
  // A supervised run has no such option; without its options, its records decide.
  run.has_rollouts = run.config.empty() || run.config.contains("n-samples-per-prompt");
  read_metrics(run.path + "/metrics.jsonl", run);
  drop_long_names(run);
  read_memory(run.path + "/memory_timeline.jsonl", run);
  run.samples = read_samples(run.path + "/samples", num_runs, run.left_out);
  if (is_regular(run.path + "/log.txt")) {
    run.log_tail = tail_of(run.path + "/log.txt", kLogTailBytes);
    if (base::ReadableFile(run.path + "/log.txt").size() > kLogTailBytes)
      run.left_out.push_back(fmt::format("Of log.txt the last {} KiB are shown.", kLogTailBytes >> 10));
  }
  return run;
}

}  // namespace tandem::report
