// MemoryEstimate that the functions of base/files.h share: messages for failed system calls, descriptors that close
// themselves, and temporary names that nobody can foresee. Only src/base includes this file.
#pragma once

#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <string>

#include "base/file_calls.h"

namespace tandem::base {

// UserError and EnvironmentError "PATH: cannot OPERATION: what errno says; remedy".
[[noreturn]] void fail_read(const std::string& path, const char* operation, int error);
[[noreturn]] void fail_write(const std::string& path, const char* operation, int error);

// Repeats a call that a signal interrupted.
template <typename Call>
auto retry_interrupted(Call call) {
  while (true) {
    const auto result = call();
    if (result != -1 || errno != EINTR) return result;
  }
}

// A descriptor that is closed when its owner throws.
class OwnedFd {
 public:
  explicit OwnedFd(int fd) : fd_(fd) {}
  ~OwnedFd();
  OwnedFd(const OwnedFd&) = delete;
  OwnedFd& operator=(const OwnedFd&) = delete;
  int get() const { return fd_; }
  int release();

 private:
  int fd_;
};

// Writes all bytes; the errno of the failure, or 0. `num_written` tells how far it came.
int write_all(int fd, const char* data, size_t size, size_t* num_written = nullptr);

std::string parent_directory(const std::string& path);

// Makes names in a directory durable.
void sync_directory(const std::string& path);

// A name beside `path` that nobody can foresee: 64 random bits. Whoever else may write into the folder can then put
// nothing in its way, and no link that leads to a file of ours.
std::string temporary_name(const std::string& path);

// Creates a file under such a name and opens it for writing: a file of our own, never one that is there and never what
// a link names. Sets `path` to the name; -1 and errno where it cannot.
int create_temporary(const std::string& beside, std::string* path);

}  // namespace tandem::base
