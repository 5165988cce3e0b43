// Starts the ranks of a run one by one, as torchrun, Slurm and MPI do: no launcher of ours watches them.
#pragma once

#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "mesh/network.h"
#include "tests/cli/tiny_run.h"

namespace tandem::cli {

class StartedRanks {
 public:
  // Rank r is the program with the arguments words[r]. All are on one machine.
  explicit StartedRanks(const std::vector<Arguments>& words) {
    const int port = mesh::port_of(mesh::listen_at("127.0.0.1", 0));
    const std::string size = std::to_string(words.size());
    for (size_t rank = 0; rank < words.size(); ++rank) {
      const std::string number = std::to_string(rank);
      start(words[rank], {{"RANK", number},
                          {"WORLD_SIZE", size},
                          {"LOCAL_RANK", number},
                          {"LOCAL_WORLD_SIZE", size},
                          {"MASTER_ADDR", "127.0.0.1"},
                          {"MASTER_PORT", std::to_string(port)}});
    }
  }

  const Program& operator[](size_t rank) const { return *programs_.at(rank); }
  // Returns what the rank has written to stderr so far.
  std::string said(size_t rank) const { return base::read_file(errors_of(rank)); }

 private:
  std::string errors_of(size_t rank) const { return folder_ / ("err" + std::to_string(rank)); }
  void start(const Arguments& words, const std::vector<std::pair<const char*, std::string>>& variables) {
    for (const auto& [name, value] : variables) setenv(name, value.c_str(), 1);
    programs_.push_back(std::make_unique<Program>(words, 0, errors_of(programs_.size())));
    for (const auto& [name, value] : variables) unsetenv(name);
  }

  const base::TemporaryDirectory folder_;
  std::vector<std::unique_ptr<Program>> programs_;
};

}  // namespace tandem::cli
