// Internals that the functions of base/files.h share: messages for failed system calls, descriptors that close
// themselves, and temporary names that nobody can guess. Only src/base includes this file.
#pragma once

#include <sys/types.h>

#include <cerrno>
#include <cstddef>
#include <string>

#include "base/file_calls.h"

namespace tandem::base {

// These throw "PATH: cannot OPERATION: errno's text; remedy". A read fails with UserError if the path is wrong or may
// not be read, and with EnvironmentError for anything else (EIO, ESTALE, ETIMEDOUT), which may pass and says nothing
// about the file's content; a write fails with EnvironmentError.
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

// Owns a descriptor, which is closed even when its owner throws.
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

// Writes all bytes. Returns 0, or the errno of the failure; `num_written` then tells how many bytes were written.
int write_all(int fd, const char* data, size_t size, size_t* num_written = nullptr);

std::string parent_directory(const std::string& path);

// Makes the names in a directory durable.
void sync_directory(const std::string& path);

// Returns a name next to `path` that nobody can guess: it has 64 random bits. So another user who may write into the
// folder can neither occupy the name nor plant a link there that leads to a file of ours.
std::string temporary_name(const std::string& path);

// Creates a new file under such a name and opens it for writing; it never opens an existing file or the target of a
// link. Sets `path` to the name; returns -1 and sets errno on failure.
int create_temporary(const std::string& beside, std::string* path);

}  // namespace tandem::base
