// Runs training on several ranks, and compares two runs.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "base/json.h"
#include "checkpoint/checkpoints.h"
#include "tests/cli/tiny_run.h"

namespace tandem::cli {

// Runs the program itself, because a launcher forks.
inline Captured run_program(const Arguments& arguments) {
  const base::TemporaryDirectory folder;
  Captured result;
  result.code = Program(arguments, 0, folder / "err", folder / "out").wait();
  result.out = base::read_file(folder / "out");
  result.err = base::read_file(folder / "err");
  return result;
}

inline Arguments with_ranks(const Arguments& arguments, int ranks) {
  return with_flag(with_flag(arguments, "--actor-num-gpus-per-node", std::to_string(ranks)), "--num-threads", "1");
}

// Returns whole tensors, whichever rank wrote which rows of them.
inline std::string optimizer_state(const std::string& run) {
  const checkpoint::Checkpoint checkpoint = checkpoint::Checkpoints(run).open(std::nullopt);
  std::string state;
  for (const auto& [name, tensor] : checkpoint.manifest().tensors) {
    int64_t count = 1;
    for (const int64_t size : tensor.shape) count *= size;
    std::vector<std::byte> bytes(static_cast<size_t>(count * weights::safetensors_dtype_bits(tensor.dtype) / 8));
    checkpoint.read(name, tensor.dtype, std::vector<int64_t>(tensor.shape.size(), 0), tensor.shape, bytes);
    state += name;
    state.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return state;
}

// Returns the metrics without the engines' counts, which depend on who sampled what.
inline std::string metrics_of(const std::string& run) {
  std::string text;
  std::istringstream lines(timeless_metrics(run));
  for (std::string line; std::getline(lines, line);) {
    base::Json record = base::parse_json(line, run);
    record.erase("rollout/prefix_cache_hit_rate");
    record.erase("rollout/preemptions");
    record.erase("rollout/spec_accept_rate");
    record.erase("rollout/spec_accept_length");
    text += base::dump_json(record) + "\n";
  }
  return text;
}

struct Results {
  std::string metrics, weights, optimizer, samples;

  explicit Results(const std::string& run)
      : metrics(metrics_of(run)), weights(weights_of(run)), optimizer(optimizer_state(run)) {
    if (!base::directory_exists(run + "/samples")) return;  // a supervised run samples nothing
    for (const std::string& name : base::list_directory(run + "/samples"))
      samples += name + base::read_file(run + "/samples/" + name);
  }
};

inline void expect_equal(const Results& got, const Results& want, const std::string& what) {
  EXPECT_EQ(got.metrics, want.metrics) << what;
  EXPECT_TRUE(got.samples == want.samples) << what << ": samples differ";
  EXPECT_TRUE(got.weights == want.weights) << what << ": weights differ";
  EXPECT_TRUE(got.optimizer == want.optimizer) << what << ": masters or moments differ";
}

}  // namespace tandem::cli
