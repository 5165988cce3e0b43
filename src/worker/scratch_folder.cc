#include "worker/scratch_folder.h"

#include <stdlib.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/check.h"
#include "base/env.h"
#include "base/log.h"

namespace tandem::worker {

namespace fs = std::filesystem;

ScratchFolder::ScratchFolder() {
  const std::string parent = base::temporary_directory();
  path_ = fs::absolute(parent + "/tandem-graders-XXXXXX").string();
  TANDEM_ENV_CHECK(::mkdtemp(path_.data()) != nullptr, parent + ": no scratch folder for graders:",
                   std::string(std::strerror(errno)) + "; set TMPDIR to a folder that can be written");
}

ScratchFolder::~ScratchFolder() {
  ::rmdir((path_ + "/scratch").c_str());  // rooms mount theirs there; it stays where those processes were killed
  if (::rmdir(path_.c_str()) == 0 || errno == ENOENT) return;
  base::log_warning("{}: the graders' scratch folder is not removed yet: {}; if it stays, remove it by hand", path_,
                    std::strerror(errno));
}

}  // namespace tandem::worker
