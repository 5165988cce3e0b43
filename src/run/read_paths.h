// Lists the files and folders that a verb reads, and refuses to remove or replace one of them. No torch.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/run_directory.h"
#include "config/run_mode.h"
#include "config/sft_config.h"
#include "config/train_config.h"
#include "config/verb_configs.h"

namespace tandem::run {

struct ReadPath {
  std::string flag;  // the flag that names it, for messages
  std::string path;  // file or folder, without the slice of data or the name of a function
};

// Return what the flags name: models, with the base of one that is an adapter, data and Python files. Throw UserError
// where --eval-config is wrong.
std::vector<ReadPath> read_paths(const config::TrainConfig& config);
std::vector<ReadPath> read_paths(const config::SftConfig& config);
std::vector<ReadPath> read_paths(const config::EvalConfig& config);
std::vector<ReadPath> read_paths(const config::GenerateConfig& config);
std::vector<ReadPath> read_paths(const config::ScoreConfig& config);

// Throws UserError if the run that begins in the directory would first remove one of them, with an earlier run.
void check_keeps(const checkpoint::RunDirectory& directory, const std::vector<ReadPath>& read);

// Throws as report::check_output does unless the file can be written without loss of one of them or of the files of
// --config.
void check_output(const std::string& output, const std::vector<ReadPath>& read, const config::RunMode& mode);

}  // namespace tandem::run
