#include "report/report.h"

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <ctime>

#include "base/json.h"
#include "base/log.h"
#include "base/message_text.h"
#include "base/printable.h"
#include "base/quiet.h"
#include "tandem/error.h"

namespace tandem::report {

namespace {

// A flush of a sink only helps readers, so it never holds a run up for longer.
constexpr double kSinkFlushSeconds = 5.0;
constexpr int kBarCells = 20;

std::string record(const std::string& kind, int64_t step, double seconds, const Metrics& metrics) {
  // Names are distinct, so the insertion does not search for each among those before it, as operator[] does; that takes
  // minutes with many thousand.
  base::Json line = base::Json::object();
  auto& members = line.get_ref<base::Json::object_t&>();
  members.emplace_back(kind + "/step", step);
  for (const auto& [name, value] : metrics) members.emplace_back(name, value);
  members.emplace_back("time_s", seconds);
  return base::dump_json(line);
}

// Returns "2026-11-24 02:15:08", the machine's local time.
std::string time_of_day() {
  const std::time_t now = std::time(nullptr);
  std::tm local = {};
  ::localtime_r(&now, &local);
  std::array<char, 32> text = {};
  std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%S", &local);
  return text.data();
}

}  // namespace

Report::Report(const Options& options) : keep_unwritten_(options.keep_unwritten), is_silent_(options.is_silent) {
  const auto open = [&](const std::string& path) {
    return path.empty() ? nullptr : std::make_unique<base::LineFile>(path, !options.append);
  };
  metrics_ = open(options.metrics_file);
  log_ = open(options.log_file);
  memory_ = open(options.memory_file);
  schedule_ = open(options.schedule_file);
  if (!options.tensorboard_folder.empty()) {
    tensorboard_ = std::make_unique<text::MetricSink>(
        text::tensorboard_target(worker::default_worker_config(), options.tensorboard_folder));
  }
  for (const text::SinkTarget& target : options.trackers)
    trackers_.push_back(std::make_unique<text::MetricSink>(target));
  // This comes last: if a file cannot be opened the constructor throws, and the log must not keep a pointer to a Report
  // that was never made.
  base::set_log_terminal([this](const std::string& line) {
    if (!is_silent_) terminal_.message(line);
  });
  if (!log_) return;
  const auto keep = [this](const std::string& line) {
    try {
      log_->write_or_keep_line(logged(line));
    } catch (const std::exception&) {
      // It must not throw out of the caller that logs, on whatever thread.
    }
  };
  for (const std::string& line : base::take_early_lines()) keep(line);
  base::set_log_sink([keep](base::LogLevel, const std::string& line) { keep(line); });
}

Report::Report() : Report(Options{}) {}

Report::~Report() {
  base::set_log_sink({});
  base::set_log_terminal({});
}

void Report::log(const std::string& kind, int64_t step, const Metrics& metrics) {
  Metrics counted = metrics;
  const int64_t num_kept = (metrics_ ? metrics_->num_kept() : 0) + (schedule_ ? schedule_->num_kept() : 0);
  if (num_kept > 0) counted["fault/unwritten_records"] = static_cast<double>(num_kept);
  for (const auto& tracker : trackers_) {
    if (const int64_t dropped = tracker->dropped(); dropped > 0)
      counted[tracker->dropped_metric()] = static_cast<double>(dropped);
  }
  if (metrics_) write(*metrics_, record(kind, step, seconds(), counted));
  if (tensorboard_) tensorboard_->write(step, counted);
  counted[kind + "/step"] = static_cast<double>(step);  // each kind of record counts on its own axis in a tracker
  for (const auto& tracker : trackers_) tracker->write(step, counted);
}

void Report::log_memory(const std::vector<std::string>& lines) {
  if (!memory_) return;
  for (const std::string& line : lines) write(*memory_, line);
}

void Report::log_schedule(const std::string& line) {
  if (!schedule_) return;
  write(*schedule_, line);
  if (schedule_->num_kept() == 0) schedule_->sync();
}

void Report::progress(const std::string& prefix, int64_t done, int64_t total, const std::string& unit) {
  if (is_silent_ || base::is_quiet() || !terminal_.wants_live()) return;
  if (total == 0) return terminal_.live(prefix);
  terminal_.live(fmt::format("{} {} {}/{} {}", prefix,
                             progress_bar(static_cast<double>(done), static_cast<double>(total), kBarCells),
                             base::with_commas(done), base::with_commas(total), unit));
}

void Report::print(const std::string& text) { write_line(text, !base::is_quiet()); }

void Report::print_result(const std::string& text) { write_line(text, /*is_shown=*/true); }

void Report::write_line(const std::string& text, bool is_shown) {
  if (is_silent_) return;
  const std::string lines = wrapped(base::printable(text), terminal_.line_columns());
  if (is_shown) terminal_.line(lines);
  if (log_) write(*log_, logged(lines));
}

std::string Report::logged(const std::string& lines) const {
  return fmt::format("{}  {}", time_of_day(), redaction_.apply(lines));
}

void Report::write(base::LineFile& file, const std::string& line) {
  if (!keep_unwritten_) {
    file.write_line(line);
    return;
  }
  const std::string error = file.write_or_keep_line(line);
  if (error.empty() || is_keeping_) return;
  is_keeping_ = true;
  base::log_warning("records are kept in memory until the disk takes them, and the run continues: {}", error);
}

void Report::sync() {
  if (metrics_) metrics_->sync();
  if (log_) log_->sync();
  if (memory_) memory_->sync();
  if (schedule_) schedule_->sync();
  if (tensorboard_) tensorboard_->flush(kSinkFlushSeconds);
  for (const auto& tracker : trackers_) tracker->flush(kSinkFlushSeconds);
}

std::string number_text(double value, int digits) {
  // From here on all digits before the point are shown.
  constexpr double kLarge = 1000.0, kTooLarge = 1e15;
  if (std::isnan(value)) return "nan";  // its sign has no meaning
  if (std::abs(value) < kLarge || !(std::abs(value) < kTooLarge)) return fmt::format("{:.{}g}", value, digits);
  return base::with_commas(std::llround(value));
}

std::string summary(const Metrics& metrics, const std::vector<std::pair<std::string, std::string>>& labels_and_names,
                    int digits) {
  std::string text;
  for (const auto& [label, name] : labels_and_names) {
    const auto found = metrics.find(name);
    if (found == metrics.end()) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : "  ", label, number_text(found->second, digits));
  }
  return text;
}

}  // namespace tandem::report
