// One append-only file of limited size, to which the output of several worker processes goes.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

namespace tandem::worker {

// The file is thread-safe. At the limit a last line says that more is dropped, and so does a warning. An empty path
// keeps nothing.
class OutputFile {
 public:
  // EnvironmentError when the file cannot be written.
  OutputFile(const std::string& path, int64_t max_bytes);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  void write(std::string_view text);

 private:
  const std::string path_;
  const int64_t max_bytes_;
  std::mutex mutex_;
  int fd_ = -1;
  int64_t left_bytes_ = 0;
};

}  // namespace tandem::worker
