#include "session/user_output.h"

#include <filesystem>
#include <system_error>

#include "base/log.h"

namespace tandem::session {

std::string user_output_file(const std::string& of_run) {
  const std::filesystem::path file(of_run);
  std::error_code none;
  if (of_run.empty() || std::filesystem::is_directory(file.parent_path(), none)) return of_run;
  std::string own = std::filesystem::absolute(file.filename());
  base::log_warning("{}: is not to be seen on this machine; what reward code prints goes to {}",
                    file.parent_path().string(), own);
  return own;
}

}  // namespace tandem::session
