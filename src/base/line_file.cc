// Files that grow by whole lines, and the lock of the folder that they are in. They are declared in base/files.h.
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "base/check.h"
#include "base/file_parts.h"
#include "base/files.h"

namespace tandem::base {

namespace {

std::string held_text(const std::string& directory) {
  return directory + ": another run is writing here; wait for it, or end it first";
}

}  // namespace

DirectoryLock::DirectoryLock(const std::string& directory) : path_(directory + "/" + kName) {
  constexpr int kFlags = O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
  OwnedFd fd(retry_interrupted([&] { return ::open(path_.c_str(), kFlags, 0666); }));
  TANDEM_USER_CHECK(fd.get() >= 0 || errno != ELOOP,
                    path_ + ": is a symbolic link, and a run locks a file of its own; remove it");
  if (fd.get() < 0) fail_write(path_, "open", errno);
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) < 0) {
    TANDEM_ENV_CHECK(errno != EWOULDBLOCK, held_text(directory));
    fail_write(path_, "lock", errno);
  }
  fd_ = fd.release();
}

void DirectoryLock::check_free(const std::string& directory) {
  const std::string path = directory + "/" + kName;
  const OwnedFd fd(
      retry_interrupted([&] { return ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC); }));
  if (fd.get() < 0 || ::flock(fd.get(), LOCK_SH | LOCK_NB) == 0) return;
  TANDEM_ENV_CHECK(errno != EWOULDBLOCK, held_text(directory));
}

DirectoryLock::~DirectoryLock() { ::close(fd_); }

LineFile::LineFile(const std::string& path, bool truncate) : path_(path) {
  make_directories(parent_directory(path));
  const int flags = O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | (truncate ? O_TRUNC : 0);
  OwnedFd owner(retry_interrupted([&] { return file_calls().open(path.c_str(), flags, 0666); }));
  if (owner.get() < 0) fail_write(path, "open", errno);
  fd_ = owner.get();
  // A half line that a power cut left must not swallow the next one.
  const int64_t size_bytes = ::lseek(fd_, 0, SEEK_END);
  char last = '\n';
  if (size_bytes > 0 && ::pread(fd_, &last, 1, size_bytes - 1) == 1 && last != '\n') append("");
  owner.release();
}

LineFile::~LineFile() { file_calls().close(fd_); }

void LineFile::write_line(std::string_view line) {
  const std::scoped_lock lock(mutex_);
  write_kept();
  append(line);
}

void LineFile::append(std::string_view line) {
  std::string text(line);
  text += '\n';
  size_t num_written = 0;
  const int error = write_all(fd_, text.data(), text.size(), &num_written);
  if (error == 0) return;
  // This takes the half line back, so that the file stays readable. When that fails too, the first error is reported.
  struct stat info {};
  if (num_written > 0 && ::fstat(fd_, &info) == 0) {
    [[maybe_unused]] const int ignored = file_calls().ftruncate(fd_, info.st_size - static_cast<int64_t>(num_written));
  }
  fail_write(path_, "write", error);
}

void LineFile::write_kept() {
  while (!kept_.empty()) {
    append(kept_.front());
    kept_.pop_front();
  }
}

std::string LineFile::write_or_keep_line(std::string_view line) {
  const std::scoped_lock lock(mutex_);
  kept_.emplace_back(line);
  try {
    write_kept();
  } catch (const EnvironmentError& error) {
    return error.what();
  }
  return "";
}

int64_t LineFile::num_kept() const {
  const std::scoped_lock lock(mutex_);
  return static_cast<int64_t>(kept_.size());
}

void LineFile::sync() {
  const std::scoped_lock lock(mutex_);
  write_kept();
  // A pipe or a terminal has nothing to sync and returns EINVAL.
  if (retry_interrupted([&] { return file_calls().fsync(fd_); }) < 0 && errno != EINVAL)
    fail_write(path_, "sync", errno);
}

}  // namespace tandem::base
