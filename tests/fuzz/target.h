// Shared parts of the fuzz targets. A target is one file that defines LLVMFuzzerTestOneInput: it gives the bytes to a
// parser and asks for the parser's promises. libFuzzer drives it in the preset `fuzz`, replay.cc in the others.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "tandem/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace tandem::fuzz {

// Ends the process when a promise does not hold: the driver then keeps the input.
inline void require(bool holds, const char* promise, std::string_view detail = "") {
  if (holds) return;
  std::fprintf(stderr, "broken promise: %s: %.*s\n", promise, static_cast<int>(detail.size()), detail.data());
  std::abort();
}

// An error message is one line of bounded length that names its file first.
inline void require_message(std::string_view message, std::string_view file) {
  constexpr size_t kMaxBytes = 5000;  // a worker may say 4096
  require(message.starts_with(file), "a refusal begins with the file's name", message);
  require(message.find('\n') == std::string_view::npos, "a refusal is one line", message);
  require(message.size() <= kMaxBytes + file.size(), "a refusal is short", message);
}

// The same, with the mistake's place behind the name: FILE:LINE:COLUMN.
inline void require_placed_message(std::string_view message, std::string_view file) {
  require_message(message, file);
  std::string_view rest = message.substr(file.size());
  for (int i = 0; i < 2; ++i) {
    const size_t num_digits = rest.find_first_not_of("0123456789", 1) - 1;
    require(rest.starts_with(':') && num_digits >= 1 && num_digits < 20, "a refusal has LINE:COLUMN", message);
    rest.remove_prefix(1 + num_digits);
  }
}

// Whether `action` came to its end. A UserError is handed to `check_message`; whatever else is thrown ends the process.
template <typename Action, typename CheckMessage>
bool accepts(Action action, CheckMessage check_message) {
  try {
    action();
    return true;
  } catch (const UserError& error) {
    check_message(std::string_view(error.what()));
    return false;
  }
}

// A file without a disk, for parsers that take a path.
class MemoryFile {
 public:
  MemoryFile() : fd_(::memfd_create("fuzz", MFD_CLOEXEC)), path_("/proc/self/fd/" + std::to_string(fd_)) {
    require(fd_ >= 0, "a file in memory can be made");
  }
  ~MemoryFile() { ::close(fd_); }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  const std::string& path() const { return path_; }
  void write(std::string_view bytes) const {
    require(::ftruncate(fd_, 0) == 0, "a file in memory can be cut");
    const ssize_t written = ::pwrite(fd_, bytes.data(), bytes.size(), 0);
    require(written == static_cast<ssize_t>(bytes.size()), "a file in memory can be written");
  }

 private:
  int fd_;
  std::string path_;
};

inline std::string_view text_of(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

}  // namespace tandem::fuzz
