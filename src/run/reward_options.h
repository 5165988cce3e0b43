// What scores a completion.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/options.h"
#include "text/graders.h"

namespace tandem::run {

struct RewardOptions {
  std::optional<std::string> rm_type;
  std::string custom_rm_path;
  std::string reward_key;
  bool group_rm = false;
  int64_t num_workers = 2;
  double deadline_s = 30.0;
  int64_t memory_bytes = int64_t{2} << 30;
  std::string sandbox = "auto";

  void visit(base::Options& options);
  bool given() const { return rm_type.has_value() || !custom_rm_path.empty(); }
  // UserError unless exactly one of --rm-type and --custom-rm-path is given, or for a key that a built-in reward lacks.
  void check() const;
  void check_key(const std::string& flag, const std::string& key) const;
  // Loads --custom-rm-path once, so that a file that is missing or wrong is found before weights are read and folders
  // made. UserError.
  void try_out(const std::string& label_key, const std::string& hf_checkpoint) const;
  // `output_path`: where what user code prints goes; may be empty.
  text::GraderConfig graders(const std::string& label_key, const std::string& hf_checkpoint,
                             const std::string& output_path) const;
};

}  // namespace tandem::run
