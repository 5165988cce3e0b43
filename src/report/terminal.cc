#include "report/terminal.h"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>

#include "base/printable.h"

namespace tandem::report {

namespace {
// Ten redraws a second look continuous and cost nothing.
constexpr std::chrono::milliseconds kLiveInterval{100};
constexpr size_t kMaxLineColumns = 100;
}  // namespace

std::string progress_bar(double done, double total, int width) {
  const double fraction = total > 0 ? std::clamp(done / total, 0.0, 1.0) : 0.0;
  const int filled = static_cast<int>(std::floor(fraction * width));
  return "[" + std::string(static_cast<size_t>(filled), '#') + std::string(static_cast<size_t>(width - filled), '-') +
         "]";
}

std::string wrapped(const std::string& text, size_t columns) {
  constexpr std::string_view kGap = "  ", kIndent = "    ";
  if (text.size() <= columns || text.find('\n') != std::string::npos) return text;
  std::string result;
  size_t column = 0;
  bool is_fresh = true;  // the line is empty
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(kGap, begin), text.size());
    const std::string_view part = std::string_view(text).substr(begin, end - begin);
    if (!is_fresh && column + kGap.size() + part.size() > columns) {
      result += "\n";
      result += kIndent;
      column = kIndent.size();
    } else if (!is_fresh) {
      result += kGap;
      column += kGap.size();
    }
    result += part;
    column += part.size();
    is_fresh = false;
    begin = std::min(text.find_first_not_of(' ', end), text.size());
  }
  return result;
}

std::string clock_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::clamp(seconds, 0.0, 1e9));
  const int64_t hours = whole / 3600, minutes = whole / 60 % 60;
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60);
  return fmt::format("{}:{:02}", minutes, whole % 60);
}

Terminal::Terminal(std::FILE* stream, bool is_terminal, int columns)
    : stream_(stream),
      is_terminal_(is_terminal),
      columns_(static_cast<size_t>(std::max(columns, 20))),
      line_columns_(is_terminal ? std::min(columns_, kMaxLineColumns) : kMaxLineColumns) {}

Terminal::~Terminal() { clear_live(); }

bool Terminal::wants_live() const {
  const std::lock_guard lock(mutex_);
  return is_terminal_ && std::chrono::steady_clock::now() - last_live_ >= kLiveInterval;
}

void Terminal::live(const std::string& text) {
  if (!wants_live()) return;
  const std::lock_guard lock(mutex_);
  last_live_ = std::chrono::steady_clock::now();
  // The cursor returns to the line's start, so that output of other programs begins there and not after the bar.
  std::fprintf(stream_, "\r%s\033[K\r", base::printable(text).substr(0, columns_ - 1).c_str());
  std::fflush(stream_);
  live_shown_ = true;
}

void Terminal::erase() {
  if (!live_shown_) return;
  std::fputs("\r\033[K", stream_);
  std::fflush(stream_);
  live_shown_ = false;
}

void Terminal::clear_live() {
  const std::lock_guard lock(mutex_);
  erase();
}

void Terminal::line(const std::string& text) {
  const std::lock_guard lock(mutex_);
  erase();
  std::fprintf(stream_, "%s\n", base::printable(text).c_str());
  std::fflush(stream_);
}

void Terminal::message(const std::string& text) {
  const std::lock_guard lock(mutex_);
  erase();
  std::fprintf(stderr, "%s\n", text.c_str());
}

Terminal standard_terminal() {
  winsize size = {};
  const bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return Terminal(stdout, isatty(STDOUT_FILENO) == 1, known ? size.ws_col : 80);
}

}  // namespace tandem::report
