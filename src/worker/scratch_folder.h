// The one place where a run's graders may write: a new folder among the machine's temporary files. The graders'
// supervisors (python/tandem_worker/sandbox/keeper.py) remove what is in it, for user code may have made it deeper or
// fuller than we could bear. When they are gone, this object removes the empty folder, if it is still there.
#pragma once

#include <string>

namespace tandem::worker {

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

}  // namespace tandem::worker
