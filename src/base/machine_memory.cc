#include "base/machine_memory.h"

#include <charconv>
#include <cstdlib>
#include <sstream>

#include "base/files.h"
#include "tandem/error.h"

namespace tandem::base {
namespace {

// Returns the text of a file; "" if it does not exist or cannot be read.
std::string text_of(const std::string& path) {
  try {
    return file_exists(path) ? read_file(path, int64_t{1} << 20) : "";
  } catch (const std::runtime_error&) {
    return "";
  }
}

// Returns the number that a text begins with; nullopt for "max" and for a number out of range.
std::optional<int64_t> leading_number(std::string_view text) {
  while (text.starts_with(' ') || text.starts_with('\t')) text.remove_prefix(1);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || value <= 0) return std::nullopt;
  return value;
}

// Returns the bytes of the line "NAME:   1234 kB".
std::optional<int64_t> kib_line(const std::string& text, const std::string& name) {
  const std::string key = name + ":";
  const size_t at = text.find(key);
  if (at == std::string::npos) return std::nullopt;
  const std::optional<int64_t> kib = leading_number(std::string_view(text).substr(at + key.size()));
  return kib ? std::optional<int64_t>(*kib * 1024) : std::nullopt;
}

// Lowers the result to the least limit of a group and its parents, since each of them applies.
void lower_to_limits(const std::string& mount, std::string group, const std::string& file, MachineMemory& memory) {
  while (true) {
    const std::optional<int64_t> limit = leading_number(text_of(mount + group + "/" + file));
    if (limit && (memory.bytes == 0 || *limit < memory.bytes)) memory = {.bytes = *limit, .limited_by = "cgroup"};
    const size_t slash = group.rfind('/');
    if (slash == std::string::npos) return;
    group.resize(slash);
  }
}

}  // namespace

std::optional<int64_t> meminfo_bytes(const std::string& name, const std::string& root) {
  return kib_line(text_of(root + "/proc/meminfo"), name);
}

int64_t unshared_process_bytes(const std::string& root) {
  const std::string text = text_of(root + "/proc/self/smaps_rollup");
  return kib_line(text, "Pss_Anon").value_or(0) + kib_line(text, "Pss_File").value_or(0);
}

int64_t ProcessMemory::unshared_bytes() {
  const std::string text = text_of(root_ + "/proc/self/status");
  const int64_t anonymous = kib_line(text, "RssAnon").value_or(0), of_files = kib_line(text, "RssFile").value_or(0);
  const bool are_counted =
      anonymous + of_files > 0 && anonymous_bytes_ + file_bytes_ > 0;  // now, and when it last asked
  const bool has_moved = std::abs(of_files - file_bytes_) >= int64_t{1} << 20 ||
                         std::abs(anonymous - anonymous_bytes_) >= int64_t{32} << 20;
  if (!are_counted || has_moved) {
    answer_bytes_ = unshared_process_bytes(root_);
    anonymous_bytes_ = anonymous;
    file_bytes_ = of_files;
    ++num_asked_;
  }
  return answer_bytes_ + anonymous - anonymous_bytes_;
}

MachineMemory machine_memory(const std::string& root) {
  MachineMemory memory;
  if (const std::optional<int64_t> total = meminfo_bytes("MemTotal", root))
    memory = {.bytes = *total, .limited_by = "MemTotal"};
  std::istringstream groups(text_of(root + "/proc/self/cgroup"));
  for (std::string line; std::getline(groups, line);) {  // "4:cpu,memory:/path", or "0::/path" in version 2
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = "," + line.substr(first + 1, second - first - 1) + ",",
                      group = line.substr(second + 1);
    if (controllers == ",,") lower_to_limits(root + "/sys/fs/cgroup", group, "memory.max", memory);
    if (controllers.find(",memory,") != std::string::npos) {
      lower_to_limits(root + "/sys/fs/cgroup/memory", group, "memory.limit_in_bytes", memory);
    }
  }
  return memory;
}

}  // namespace tandem::base
