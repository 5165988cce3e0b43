// Shows one live line with a progress bar that is redrawn in place, and lines that stay. If the stream is not a
// terminal there is no live line, and every line is flushed when it is complete.
#pragma once

#include <chrono>
#include <cstdio>
#include <mutex>
#include <string>

namespace tandem::report {

// Returns "[######----]": `width` cells, filled by done / total.
std::string progress_bar(double done, double total, int width);

// Returns `text` in lines of at most `columns`, broken at two spaces; all but the first are indented. Text that cannot
// be broken, and text of several lines, stays as it is.
std::string wrapped(const std::string& text, size_t columns);

// Returns seconds as "0:07", "12:30" or "1:02:03".
std::string clock_text(double seconds);

// It is thread-safe: threads log while the loop draws.
class Terminal {
 public:
  // `stream` is borrowed. Live lines are cut to `columns`.
  Terminal(std::FILE* stream, bool is_terminal, int columns);
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  bool is_terminal() const { return is_terminal_; }
  // Returns the columns that a line may take without being broken by the terminal: at most 100, and 100 if its width is
  // unknown.
  size_t line_columns() const { return line_columns_; }
  // Returns true when enough time has passed that the next live() call draws, so that the caller can skip the
  // formatting.
  bool wants_live() const;
  void live(const std::string& text);
  void line(const std::string& text);
  // Writes a log line to stderr, after clearing the live line.
  void message(const std::string& text);
  void clear_live();

 private:
  void erase();

  mutable std::mutex mutex_;
  std::FILE* stream_;
  bool is_terminal_;
  size_t columns_, line_columns_;
  bool live_shown_ = false;
  std::chrono::steady_clock::time_point last_live_{};
};

// Returns standard output, with the width that the terminal reports.
Terminal standard_terminal();

}  // namespace tandem::report
