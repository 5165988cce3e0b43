// The inputs that the results of a run depend on, and whether a run with others may resume from a checkpoint. No torch.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoints.h"
#include "trainer/schedule.h"

namespace tandem::checkpoint {

// Names weights that a run reads and does not train, so that its checkpoints lack them.
struct FrozenWeights {
  std::string kind;  // "reference", "adapter", "teacher" or "reward model"; "": the base of an adapter that is trained
  std::string flag;  // the flag that names them
  std::string directory;
  std::string checksum = "";  // what a process that scores has said of its weights, which are not read here then
};

// Holds everything that the results of a run depend on. A resumed run compares it with the values that its checkpoint
// remembers.
struct ResultInputs {
  std::map<std::string, std::string> flags;         // RunMode::result_options
  std::string kernels;                              // device::Ops::name()
  const trainer::Schedule& schedule;                // compared by the end of the learning rate's decay
  std::string model_directory;                      // compared by checksums of its configuration and tokenizer
  std::vector<FrozenWeights> frozen = {};           // compared by checksums of their files and of config.json
  std::map<std::string, std::string> adapter = {};  // what an adapter computes with (session::adapter_inputs())
  std::vector<std::string> prompt_data;             // compared by checksums of these files
  std::vector<int32_t> text_prefix;                 // tokens that --add-special-tokens puts before texts; empty: none
  std::vector<std::string> custom_rm_paths;         // FILE.py:function each, compared by checksums of the files
  std::string group_filter = {};                    // name, or FILE.py:function; "": none
  std::string generate_function = {};               // FILE.py:function, or ""
  std::string advantage_function = {};              // FILE.py:function, or ""
  // Set where groups are in flight between two rollouts, whose samples depend on how many, and on whether they are
  // sampled in phases or while the run trains.
  std::optional<int64_t> groups_in_flight = {};
  bool samples_while_training = false;
  // The definitions, by name, that this version computes otherwise than earlier ones did under the same flags, if the
  // run depends on them: a checkpoint of an earlier version lacks the entry.
  std::map<std::string, std::string> definitions = {};
};
std::map<std::string, std::string> result_inputs(ResultInputs inputs);
// Returns whether an entry of result_inputs() comes from a file, which each rank opens by itself, and not from a flag:
// "config.json of --hf-checkpoint", "the adapter's scale".
bool is_from_file(const std::string& input);

// Throws UserError if the run that saved the checkpoint is of another command than the one that has these flags
// (RunMode::result_options).
void check_same_command(const Checkpoint& checkpoint, const std::map<std::string, std::string>& flags);

// Checks that a run with these inputs and this many records of data may resume from the checkpoint. Throws UserError
// with each flag or input that differs and both its values; with `allow_changes` that is only a warning. A flag that
// the checkpoint does not name came with a later version, and its value was that of `values_where_absent` (RunMode's).
// Weights of ResultInputs::frozen that the checkpoint does not name are not compared, except those of a base; nor is
// what it does not name of ResultInputs::adapter; nor are a reference's weights, once the checkpoint holds it. `texts`
// has what may be shown of free texts, by their fingerprints; of others, only the change is reported.
void check_can_resume(const Checkpoint& checkpoint, const std::map<std::string, std::string>& result_inputs,
                      const std::map<std::string, std::string>& values_where_absent,
                      const std::map<std::string, std::string>& texts, bool allow_changes, int64_t num_records);

}  // namespace tandem::checkpoint
