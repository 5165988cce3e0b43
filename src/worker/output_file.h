// Where the output of several worker processes goes: one append-only file of limited size.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

namespace tandem::worker {

// Thread-safe. Beyond the limit a last line says that more was dropped. An empty path keeps nothing.
class OutputFile {
 public:
  // EnvironmentError when the file cannot be written.
  OutputFile(const std::string& path, int64_t max_bytes);
  ~OutputFile();
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  void write(std::string_view text);

 private:
  std::mutex mutex_;
  int fd_ = -1;
  int64_t left_bytes_ = 0;
};

}  // namespace tandem::worker
