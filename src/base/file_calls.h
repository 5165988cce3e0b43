// Holds the system calls that change a disk in one table: every change that base/files makes goes through it, and so do
// the calls that look at a file and read it. Tests replace the table (tests/base/faulty_disk.h) by one that fails or
// tears the k-th call, one that dies there, or one that remembers unsynced bytes and can lose them.
//
// Each function is the system call of its name: it returns -1 and sets errno on failure.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstddef>

namespace tandem::base {

class FileCalls {
 public:
  virtual ~FileCalls() = default;
  virtual int open(const char* path, int flags, mode_t mode);  // for writing or for syncing only
  virtual ssize_t write(int fd, const void* data, size_t size);
  virtual int fsync(int fd);
  virtual int ftruncate(int fd, off_t size);
  virtual int close(int fd);
  virtual int rename(const char* from, const char* to);
  virtual int exchange(const char* a, const char* b);  // renameat2 with RENAME_EXCHANGE
  virtual int symlink(const char* target, const char* path);
  virtual int mkdir(const char* path, mode_t mode);
  virtual int unlink(const char* path);
  virtual int rmdir(const char* path);
  virtual int stat(const char* path, struct stat* info);
  virtual ssize_t read(int fd, void* data, size_t size);
  virtual ssize_t pread(int fd, void* data, size_t size, off_t offset);
};

// Returns the table in use.
FileCalls& file_calls();

// Replaces the table for as long as this object lives. For tests, while no other thread works on files.
class ReplacedFileCalls {
 public:
  explicit ReplacedFileCalls(FileCalls& calls);
  ~ReplacedFileCalls();
  ReplacedFileCalls(const ReplacedFileCalls&) = delete;
  ReplacedFileCalls& operator=(const ReplacedFileCalls&) = delete;

 private:
  FileCalls* before_;
};

}  // namespace tandem::base
