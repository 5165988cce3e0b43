// Measures how large a running program is, over its life, and how far its rollouts are.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "base/files.h"

namespace tandem::cli {

struct Size {
  int64_t rss_bytes = 0;
  int64_t num_descriptors = 0;
};

struct Usual {
  int64_t rss_bytes = 0;        // the median
  int64_t num_descriptors = 0;  // the most common number
  int64_t fewest_descriptors = 0, most_descriptors = 0;
};

inline Size size_of(pid_t pid) {
  const std::string folder = "/proc/" + std::to_string(pid);
  Size size;
  int64_t pages = 0;
  std::ifstream(folder + "/statm") >> pages >> pages;
  size.rss_bytes = pages * sysconf(_SC_PAGESIZE);
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder + "/fd", error), end; !error && at != end; at.increment(error))
    ++size.num_descriptors;
  return size;
}

// Returns the usual size between two shares of the run. There are a few more descriptors while a checkpoint is written
// or a grader starts, which in a short run can be most of the time.
inline Usual usual(const std::vector<Size>& sizes, double begin, double end) {
  const auto at = [&](double share) {
    return sizes.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(sizes.size()));
  };
  const std::vector<Size> some(at(begin), at(end));
  if (some.empty()) return {};
  std::vector<int64_t> rss_bytes, descriptors;
  std::map<int64_t, int> num_times;
  for (const Size& size : some) {
    rss_bytes.push_back(size.rss_bytes);
    descriptors.push_back(size.num_descriptors);
    ++num_times[size.num_descriptors];
  }
  std::sort(rss_bytes.begin(), rss_bytes.end());
  const auto most = std::max_element(num_times.begin(), num_times.end(),
                                     [](const auto& a, const auto& b) { return a.second < b.second; });
  const auto [fewest, highest] = std::minmax_element(descriptors.begin(), descriptors.end());
  return {rss_bytes[rss_bytes.size() / 2], most->first, *fewest, *highest};
}

// Returns the newest rollout whose samples exist; -1 without any.
inline int64_t newest_samples(const std::string& run_path, int64_t num_rollouts) {
  for (int64_t k = num_rollouts - 1; k >= 0; --k) {
    char name[64];
    std::snprintf(name, sizeof(name), "/samples/rollout_%06ld.jsonl", k);
    if (base::file_exists(run_path + name)) return k;
  }
  return -1;
}

}  // namespace tandem::cli
