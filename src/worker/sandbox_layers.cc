#include "worker/sandbox_layers.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>

namespace tandem::worker {

std::string what_is_open(const std::vector<std::string>& missing) {
  const auto lacks = [&](std::string_view layer) {
    return std::any_of(missing.begin(), missing.end(),
                       [&](const std::string& text) { return text.starts_with(layer); });
  };
  const bool no_namespaces = lacks("namespaces (");
  std::vector<std::string_view> open;
  if (no_namespaces && lacks("Landlock"))
    open.push_back("write your files, signal your processes, open terminals and devices");
  if (lacks("Landlock")) open.push_back("write into your named pipes");  // a read-only mount does not stop that
  if (no_namespaces || lacks("read-only mounts")) open.push_back("change modes and times of your files");
  if (no_namespaces || lacks("own scratch folder")) open.push_back("fill the disk");
  if (no_namespaces || lacks("limit of processes") || lacks("process namespace"))
    open.push_back("start any number of processes");
  if (no_namespaces || lacks("process namespace") || lacks("own /proc")) open.push_back("see other processes");
  if (lacks("namespaces of each grader")) open.push_back("see other graders");
  if (lacks("own /dev (") && lacks("Landlock")) open.push_back("open devices for reading");
  if (lacks("system call filter")) open.push_back("open sockets, type into terminals, hold memory that is not counted");
  if (open.empty()) open.push_back("do nothing more that we know of, with one layer fewer in its way");
  return fmt::format("{}", fmt::join(open, ", "));
}

}  // namespace tandem::worker
