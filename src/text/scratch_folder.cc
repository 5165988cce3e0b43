#include "text/scratch_folder.h"

#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "base/check.h"
#include "base/log.h"

namespace tandem::text {

namespace fs = std::filesystem;

ScratchFolder::ScratchFolder() {
  std::error_code error;
  fs::path parent = fs::temp_directory_path(error);
  if (error) parent = "/tmp";
  path_ = fs::absolute(parent / "tandem-graders-XXXXXX").string();
  TANDEM_ENV_CHECK(::mkdtemp(path_.data()) != nullptr, parent.string() + ": no scratch folder for graders:",
                   std::string(std::strerror(errno)) + "; set TMPDIR to a folder that can be written");
}

ScratchFolder::~ScratchFolder() {
  std::error_code error;
  // User code may have taken its own folders' permissions away, which stops removal for all but root.
  fs::permissions(path_, fs::perms::owner_all, fs::perm_options::add, error);
  for (fs::recursive_directory_iterator entry(path_, fs::directory_options::skip_permission_denied, error), end;
       !error && entry != end; entry.increment(error)) {
    std::error_code ignored;
    if (entry->is_directory(ignored) && !entry->is_symlink(ignored)) {
      fs::permissions(entry->path(), fs::perms::owner_all, fs::perm_options::add, ignored);
    }
  }
  fs::remove_all(path_, error);
  if (error) base::log_warning("{}: the graders' scratch folder cannot be removed: {}", path_, error.message());
}

}  // namespace tandem::text
