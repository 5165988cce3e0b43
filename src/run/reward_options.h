// What scores a completion.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/json.h"
#include "base/options.h"
#include "run/data_options.h"
#include "run/failure_reward.h"
#include "run/run_mode.h"
#include "text/graders.h"

namespace tandem::run {

// What a reward is told of the run that it scores for.
struct RewardContext {
  std::string label_key, metadata_key;
  base::Json arguments = base::Json::object();  // the values of all flags
  std::string output_path = "";                 // where what user code prints goes; may be empty
};
RewardContext reward_context(const DataOptions& data, const RunMode& mode);  // without an output path

struct RewardOptions {
  std::optional<std::string> rm_type;
  std::string custom_rm_path;
  std::string reward_key;
  bool group_rm = false;
  std::string python;
  int64_t num_workers = 2;
  int64_t concurrency = 64;
  double deadline_s = 30.0;
  int64_t memory_bytes = int64_t{2} << 30;
  std::string sandbox = "auto";
  std::string failure_reward = "lowest";

  void visit(base::Options& options);
  bool given() const { return rm_type.has_value() || !custom_rm_path.empty(); }
  // UserError unless exactly one of --rm-type and --custom-rm-path is given, for a key that a built-in reward lacks,
  // and for failure()'s.
  void check() const;
  void check_key(const std::string& flag, const std::string& key) const;
  // "--rm-type exact", "--custom-rm-path FILE.py:function": as the user gave it.
  std::string name() const;
  // The lowest reward that a built-in one gives; a function, or another number of a reward that is a dict, may be
  // anything.
  std::optional<double> lowest_reward() const;
  // What --rm-failure-reward comes to. UserError for a word that it is not.
  FailureReward failure() const;
  // `base`, whose lines must have the label that this reward compares with.
  DataOptions data(DataOptions base) const;
  // Loads --custom-rm-path, in --rm-python, once, so that a file or an interpreter that is missing or wrong is found
  // before weights are read and folders made. UserError.
  void try_out(const RewardContext& context) const;
  text::GraderConfig graders(const RewardContext& context) const;
};

}  // namespace tandem::run
