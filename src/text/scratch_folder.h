// The one place where a run's graders may write: a new folder among the machine's temporary files, removed with all
// that is in it when this object goes.
#pragma once

#include <string>

namespace tandem::text {

class ScratchFolder {
 public:
  ScratchFolder();  // EnvironmentError when it cannot be made
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace tandem::text
