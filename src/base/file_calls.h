// The system calls that change a disk, as one table: all that base/files does to it goes through here. Tests put
// another table in its place (tests/base/faulty_disk.h): one that fails or tears the k-th call, one that dies there,
// one that remembers what was not synced and can lose it.
//
// Each function is the system call of its name: -1 and errno on failure.
#pragma once

#include <sys/types.h>

#include <cstddef>

namespace tandem::base {

class FileCalls {
 public:
  virtual ~FileCalls() = default;
  virtual int open(const char* path, int flags, mode_t mode);  // only to write, or to sync
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
};

// The table in use.
FileCalls& file_calls();

// Puts another table in use for as long as this lives; for tests, while no other thread works on files.
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
