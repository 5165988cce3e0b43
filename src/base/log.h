// What the program says on stderr: one line a message, and a count of warnings that the run's summary shows.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace tandem::base {

enum class LogLevel : uint8_t { kInfo, kWarning, kError };

void set_log_level(LogLevel level);
// Where lines go besides stderr (a run's log file); empty: nowhere else.
void set_log_sink(std::function<void(LogLevel, const std::string& line)> sink);
// Writes a finished line (without '\n') in place of plain stderr: a live progress line clears itself, prints, redraws.
// Empty: plain stderr again. Both functions are called under the log's lock, so they must not log.
void set_log_terminal(std::function<void(const std::string& line)> terminal);
// The default level is kInfo. A '\n' within a message is written as "\n", what a terminal would obey as printable().
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
