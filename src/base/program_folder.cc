#include "base/program_folder.h"

#include <filesystem>
#include <system_error>

namespace tandem::base {

std::string program_folder() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
}

}  // namespace tandem::base
