// Logs to stderr, one line per message, and counts the warnings for the run's summary.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace tandem::base {

enum class LogLevel : uint8_t { kInfo, kWarning, kError };

void set_log_level(LogLevel level);
// Sets where lines go besides stderr (a run's log file); empty means nowhere else.
void set_log_sink(std::function<void(LogLevel, const std::string& line)> sink);
// Returns the lines from before its first call, a thousand at most: what is found out about a run's flags is logged
// before the run has a file for it. Later calls return nothing.
std::vector<std::string> take_early_lines();
// Sets the function that writes a finished line (without '\n') in place of plain stderr: a live progress line clears
// itself, prints and redraws. Empty means plain stderr again. Both functions are called under the log's lock, so they
// must not log.
void set_log_terminal(std::function<void(const std::string& line)> terminal);
// The default level is kInfo. A '\n' within a message is written as "\n"; characters that a terminal would obey are
// escaped by printable().
void log_line(LogLevel level, const std::string& message);
int64_t num_warnings();

template <typename... Args>
void log_info(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kInfo, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_warning(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kWarning, fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
void log_error(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::kError, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace tandem::base
