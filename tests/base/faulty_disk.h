// Disks that fail, for tests: they are tables of system calls (base/file_calls.h) around the real ones.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/file_calls.h"

namespace tandem::base {

// Pretends to sync: these tests do not depend on real syncs, which would take most of their time.
class UnsyncedFileCalls : public FileCalls {
 public:
  int fsync(int) override { return 0; }
};

// Refuses to write while it is full, whichever thread asks.
class FullAtTimes : public UnsyncedFileCalls {
 public:
  ssize_t write(int fd, const void* data, size_t size) override {
    if (!is_full) return UnsyncedFileCalls::write(fd, data, size);
    errno = ENOSPC;
    return -1;
  }
  std::atomic<bool> is_full = false;
};

// Fails to stat and to read each path that contains `part`, as a network file system does that has lost its server.
class UnreadablePaths : public UnsyncedFileCalls {
 public:
  UnreadablePaths(std::string part, int error) : part_(std::move(part)), error_(error) {}
  int stat(const char* path, struct stat* info) override {
    return !only_reads_fail && fails_at(path) ? -1 : UnsyncedFileCalls::stat(path, info);
  }
  ssize_t read(int fd, void* data, size_t size) override {
    return fails_at(path_of(fd)) ? -1 : UnsyncedFileCalls::read(fd, data, size);
  }
  ssize_t pread(int fd, void* data, size_t size, off_t offset) override {
    return fails_at(path_of(fd)) ? -1 : UnsyncedFileCalls::pread(fd, data, size, offset);
  }
  bool only_reads_fail = false;

 private:
  static std::string path_of(int fd) {
    return std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd)).string();
  }
  bool fails_at(const std::string& path) const {
    if (path.find(part_) == std::string::npos) return false;
    errno = error_;
    return true;
  }
  std::string part_;
  int error_;
};

// Counts the calls, and asks `at` what to do before the k-th (from 0).
class CountedFileCalls : public UnsyncedFileCalls {
 public:
  int open(const char* path, int flags, mode_t mode) override {
    return before("open") ? -1 : FileCalls::open(path, flags, mode);
  }
  ssize_t write(int fd, const void* data, size_t size) override;
  int fsync(int fd) override { return before("fsync") ? -1 : UnsyncedFileCalls::fsync(fd); }
  int ftruncate(int fd, off_t size) override { return before("ftruncate") ? -1 : FileCalls::ftruncate(fd, size); }
  // Linux closes the descriptor also when it reports an error.
  int close(int fd) override {
    const bool fails = before("close");
    const int error = errno, result = FileCalls::close(fd);
    errno = fails ? error : errno;
    return fails ? -1 : result;
  }
  int rename(const char* from, const char* to) override { return before("rename") ? -1 : FileCalls::rename(from, to); }
  int exchange(const char* a, const char* b) override { return before("exchange") ? -1 : FileCalls::exchange(a, b); }
  int symlink(const char* target, const char* path) override {
    return before("symlink") ? -1 : FileCalls::symlink(target, path);
  }
  int mkdir(const char* path, mode_t mode) override { return before("mkdir") ? -1 : FileCalls::mkdir(path, mode); }
  int unlink(const char* path) override { return before("unlink") ? -1 : FileCalls::unlink(path); }
  int rmdir(const char* path) override { return before("rmdir") ? -1 : FileCalls::rmdir(path); }

  int64_t num_calls() const { return num_calls_; }

 protected:
  // Returns true if the call must fail; errno then tells how.
  virtual bool fails(int64_t call, const char* name) = 0;
  // Returns the bytes of a failing write that still reach the file.
  virtual size_t torn(size_t size) = 0;

 private:
  bool before(const char* name) { return fails(num_calls_++, name); }
  int64_t num_calls_ = 0;
};

inline ssize_t CountedFileCalls::write(int fd, const void* data, size_t size) {
  if (!before("write")) return FileCalls::write(fd, data, size);
  const int error = errno;
  const size_t reached = torn(size);
  if (reached > 0) return FileCalls::write(fd, data, reached);  // a short write is no error yet
  errno = error;
  return -1;
}

// Fails the k-th call, once or from then on, with `error`; writes may first be short.
class FailingFileCalls : public CountedFileCalls {
 public:
  FailingFileCalls(int64_t k, int error, bool for_good, bool short_writes)
      : k_(k), error_(error), for_good_(for_good), short_writes_(short_writes) {}

 protected:
  bool fails(int64_t call, const char*) override {
    if (call != k_ && !(for_good_ && call > k_)) return false;
    errno = error_;
    return true;
  }
  size_t torn(size_t size) override {
    if (!short_writes_ || torn_) return 0;
    torn_ = true;
    return size / 2;
  }

 private:
  int64_t k_;
  int error_;
  bool for_good_, short_writes_, torn_ = false;
};

// Kills the process in the k-th call: before it happens, or, if it is a write, when half of it has happened.
class DyingFileCalls : public CountedFileCalls {
 public:
  explicit DyingFileCalls(int64_t k) : k_(k) {}

 protected:
  bool fails(int64_t call, const char* name) override {
    if (call != k_) return false;
    if (std::string(name) == "write") return true;
    ::raise(SIGKILL);
    return true;
  }
  size_t torn(size_t size) override { return dying_ ? 0 : (dying_ = true, size / 2); }

 public:
  ssize_t write(int fd, const void* data, size_t size) override {
    const ssize_t n = CountedFileCalls::write(fd, data, size);
    if (dying_) ::raise(SIGKILL);
    return n;
  }

 private:
  int64_t k_;
  bool dying_ = false;
};

}  // namespace tandem::base
