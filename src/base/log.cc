// Writes whole lines to stderr, because threads and worker processes share the terminal.
#include "base/log.h"

#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "base/printable.h"
#include "base/quiet.h"

namespace tandem::base {
namespace {

constexpr size_t kMostEarlyLines = 1000;

struct LogState {
  std::mutex mutex;
  LogLevel level = LogLevel::kInfo;
  std::function<void(LogLevel, const std::string&)> sink;
  bool keeps_early_lines = true;
  std::vector<std::string> early_lines;
  std::function<void(const std::string&)> terminal;
  int64_t num_warnings = 0;
};

// The state is never destroyed: a thread may still log while the program ends.
LogState& state() {
  static LogState* const log = new LogState;
  return *log;
}

std::string_view prefix(LogLevel level) {
  switch (level) {
    case LogLevel::kInfo: return "";
    case LogLevel::kWarning: return "warning: ";
    case LogLevel::kError: return "error: ";
  }
  return "";
}

// Makes a message one line of plain characters, whatever a user's file, a reward function or a model put into it.
std::string to_line(LogLevel level, const std::string& message) {
  std::string line(prefix(level));
  for (const char c : printable(message)) {
    if (c == '\n') {
      line += "\\n";
    } else {
      line += c;
    }
  }
  return line;
}

void write_stderr(const std::string& line) {
  const std::string text = line + '\n';
  size_t written = 0;
  while (written < text.size()) {
    const ssize_t n = ::write(STDERR_FILENO, text.data() + written, text.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;  // a closed terminal must not end a run
    written += static_cast<size_t>(n);
  }
}

}  // namespace

void set_log_level(LogLevel level) {
  const std::lock_guard lock(state().mutex);
  state().level = level;
}

bool is_quiet() {
  const std::lock_guard lock(state().mutex);
  return state().level > LogLevel::kInfo;
}

void set_log_sink(std::function<void(LogLevel, const std::string& line)> sink) {
  const std::lock_guard lock(state().mutex);
  state().sink = std::move(sink);
}

std::vector<std::string> take_early_lines() {
  const std::lock_guard lock(state().mutex);
  state().keeps_early_lines = false;
  return std::exchange(state().early_lines, {});
}

void set_log_terminal(std::function<void(const std::string& line)> terminal) {
  const std::lock_guard lock(state().mutex);
  state().terminal = std::move(terminal);
}

void log_line(LogLevel level, const std::string& message) {
  LogState& log = state();
  const std::lock_guard lock(log.mutex);
  // A warning counts even when the level hides it: the run's summary mentions it.
  if (level == LogLevel::kWarning) ++log.num_warnings;
  const std::string line = to_line(level, message);
  if (level >= log.level) {
    if (log.terminal) {
      log.terminal(line);
    } else {
      write_stderr(line);
    }
  }
  if (log.sink) log.sink(level, line);
  if (log.keeps_early_lines && log.early_lines.size() < kMostEarlyLines) log.early_lines.push_back(line);
}

int64_t num_warnings() {
  const std::lock_guard lock(state().mutex);
  return state().num_warnings;
}

}  // namespace tandem::base
