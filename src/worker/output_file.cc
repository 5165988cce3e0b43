#include "worker/output_file.h"

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/check.h"
#include "base/log.h"
#include "base/message_text.h"

namespace tandem::worker {
namespace {

// A full disk must not stop a reward: what cannot be written is dropped, as what is beyond the limit is.
void write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno != EINTR) return;
    if (written > 0) text.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace

OutputFile::OutputFile(const std::string& path, int64_t max_bytes)
    : path_(path), max_bytes_(max_bytes), left_bytes_(max_bytes) {
  if (path.empty()) return;
  fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0644);
  TANDEM_ENV_CHECK(fd_ >= 0, path + ": cannot be opened for the output of reward functions:", std::strerror(errno));
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
}

void OutputFile::write(std::string_view text) {
  {
    const std::lock_guard lock(mutex_);
    if (fd_ < 0 || left_bytes_ <= 0) return;
    const auto kept_bytes = std::min(static_cast<int64_t>(text.size()), left_bytes_);
    write_all(fd_, text.substr(0, static_cast<size_t>(kept_bytes)));
    left_bytes_ -= kept_bytes;
    if (left_bytes_ > 0) return;
    write_all(fd_, "\n[the limit of this file is reached; later output is dropped]\n");
  }
  base::log_warning(
      "{}: your functions have printed {} bytes into it, which is the limit, so what they print from now on is "
      "dropped, "
      "and tracebacks of failures with it: let them print less",
      path_, base::with_commas(max_bytes_));
}

}  // namespace tandem::worker
