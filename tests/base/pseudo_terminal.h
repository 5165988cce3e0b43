// Runs a program in a terminal of its own, as a person sees and stops it.
#pragma once

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"

namespace tandem::base {

class PseudoTerminal {
 public:
  // `child` runs in another process, whose standard streams are a terminal of `columns` columns; it returns its exit
  // code.
  PseudoTerminal(int columns, const std::function<int()>& child) {
    const winsize size = {.ws_row = 24, .ws_col = static_cast<uint16_t>(columns), .ws_xpixel = 0, .ws_ypixel = 0};
    pid_ = forkpty(&fd_, nullptr, nullptr, &size);
    if (pid_ == 0) _exit(child());
  }
  ~PseudoTerminal() {
    if (!is_over_) {
      kill(pid_, SIGKILL);
      wait();
    }
    hang_up();
  }
  PseudoTerminal(const PseudoTerminal&) = delete;
  PseudoTerminal& operator=(const PseudoTerminal&) = delete;

  void type(std::string_view keys) const { [[maybe_unused]] const ssize_t sent = write(fd_, keys.data(), keys.size()); }
  void press_ctrl_c() const { type("\x03"); }
  // Closes the window: the process gets SIGHUP, and its later writes fail.
  void hang_up() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }

  // Returns whether `text` arrives within that time, after the text that earlier calls waited for.
  bool shows(std::string_view text, double seconds = 60.0) {
    const Clock::time_point begin = Clock::now();
    while (true) {
      const size_t at = bytes_.find(text, seen_);
      if (at != std::string::npos) {
        seen_ = at + text.size();
        return true;
      }
      if (seconds_since(begin) > seconds || !receive(0.05)) return false;
    }
  }

  // Returns its exit code, or minus the signal that ended it.
  int wait() {
    while (fd_ >= 0 && receive(60.0)) {
    }
    int status = 0;
    while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    is_over_ = true;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }

  const std::string& bytes() const { return bytes_; }

  // Returns the final lines of a screen of any width. The last one is the cursor's.
  std::vector<std::string> screen() const {
    std::vector<std::string> lines(1);
    size_t column = 0;
    for (size_t i = 0; i < bytes_.size(); ++i) {
      if (bytes_.compare(i, 3, "\033[K") == 0) {
        lines.back().resize(std::min(lines.back().size(), column));
        i += 2;
      } else if (bytes_[i] == '\r') {
        column = 0;
      } else if (bytes_[i] == '\n') {
        lines.emplace_back();
      } else {
        lines.back().resize(std::max(lines.back().size(), column + 1), ' ');
        lines.back()[column++] = bytes_[i];
      }
    }
    return lines;
  }

 private:
  // Returns false at the end of the output.
  bool receive(double seconds) {
    pollfd polled = {fd_, POLLIN, 0};
    if (poll(&polled, 1, static_cast<int>(seconds * 1000)) <= 0) return seconds < 1.0;
    char buffer[4096];
    const ssize_t received = read(fd_, buffer, sizeof buffer);
    if (received <= 0) return false;
    bytes_.append(buffer, static_cast<size_t>(received));
    return true;
  }

  int fd_ = -1;
  pid_t pid_ = -1;
  bool is_over_ = false;
  std::string bytes_;
  size_t seen_ = 0;
};

}  // namespace tandem::base
