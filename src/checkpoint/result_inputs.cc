#include "checkpoint/result_inputs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/checksum.h"
#include "base/env.h"
#include "base/files.h"
#include "base/log.h"
#include "base/message_text.h"
#include "base/sha256.h"
#include "checkpoint/run_state.h"
#include "data/lines.h"
#include "weights/chat_templates.h"
#include "weights/checkpoint_files.h"

namespace tandem::checkpoint {

namespace {

// A learning rate that decays is compared by this: the optimizer step at which it reaches --min-lr, or "any".
constexpr const char* kDecayEnd = "optimizer steps until --min-lr";

// Checkpoints of older versions contain these flags. The modules that a reward imports are not compared, and so the
// interpreter that they come from is not either. The weights behind an address are compared, wherever they are.
constexpr std::array kFlagsNoLongerCompared = {"rm-python", "opd-teacher-address"};

// The flag by which the two commands whose runs have checkpoints are told apart: `tandem train` has saved it in every
// version, and `tandem sft` has no such flag.
constexpr const char* kFlagOfTrain = "rollout-batch-size";

// The entries of ResultInputs::frozen begin with this, except that of a base. Checkpoints of older versions lack them.
constexpr const char* kFrozenWeights = "the weights of the ";
constexpr const char* kReferenceWeights = "the weights of the reference ";
// So do those of the configuration beside such weights, which says what their forward computes.
constexpr const char* kFrozenConfig = "config.json of the ";
constexpr const char* kReferenceConfig = "config.json of the reference ";

// The entries of ResultInputs::adapter begin with this. Checkpoints of older versions lack them.
constexpr const char* kAdapter = "the adapter's ";

using Texts = std::map<std::string, std::string>;  // by fingerprint

// Returns a text that changes when the function does: for FILE.py:function the file's checksum and the function's name.
// A built-in name, which has no colon, stands for itself.
std::string identity_of(const std::string& function) {
  const size_t colon = function.rfind(':');
  if (colon == std::string::npos) return function;
  return base::file_checksum(function.substr(0, colon)) + function.substr(colon);
}

// Returns checksums of data, reward functions, model configuration and tokenizer.
std::map<std::string, std::string> input_checksums(const std::string& model_directory,
                                                   const std::vector<std::string>& prompt_data,
                                                   const std::vector<std::string>& custom_rm_paths) {
  std::map<std::string, std::string> result;
  for (size_t i = 0; i < prompt_data.size(); ++i) {
    const std::string which = i == 0 ? "the file" : fmt::format("file {}", i + 1);
    result[which + " of --prompt-data"] = base::file_checksum(data::parse_data_path(prompt_data[i]).file);
  }
  for (size_t i = 0; i < custom_rm_paths.size(); ++i) {
    const std::string& path = custom_rm_paths[i];
    const size_t colon = std::min(path.rfind(':'), path.size());
    const std::string which = i == 0 ? "" : fmt::format(" of function {}", i + 1);
    if (colon > 0)
      result[fmt::format("the file{} of --custom-rm-path", which)] = base::file_checksum(path.substr(0, colon));
    // The order matters, so each function is recorded with its place.
    if (custom_rm_paths.size() > 1) result[fmt::format("function {} of --custom-rm-path", i + 1)] = path.substr(colon);
  }
  std::vector<std::string> names = {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
                                    "chat_template.jinja"};
  std::ranges::move(weights::additional_templates(model_directory), std::back_inserter(names));
  for (const std::string& name : names) {
    const std::string path = fmt::format("{}/{}", model_directory, name);
    if (base::file_exists(path)) result[fmt::format("{} of --hf-checkpoint", name)] = base::file_checksum(path);
  }
  return result;
}

// Returns whether a flag or input is unchanged. A checkpoint from before texts were fingerprinted holds the text
// itself, with the home directory written out.
bool is_same(const std::string& name, const std::string& saved, const std::string& now) {
  if (saved == now) return true;
  if (!base::is_fingerprint(now) || base::is_fingerprint(saved)) return false;
  return base::fingerprint(name, saved) == now ||
         base::fingerprint(name, base::shorten_home(saved, base::home_directory())) == now;
}

// Returns "--lr was 0.001 and is 0.002". Texts may be secrets, so of those that `texts` lacks only the change is
// reported.
std::string difference(const std::string& name, const std::string* saved, const std::string* now, const Texts& texts) {
  const std::string flag = (name.find(' ') == std::string::npos ? "--" : "") + base::one_line(name);
  const auto text_of = [&](const std::string& value) -> std::optional<std::string> {
    const auto found = texts.find(base::is_fingerprint(value) ? value : base::fingerprint(name, value));
    if (found == texts.end()) return std::nullopt;
    return found->second.empty() ? "empty" : base::one_line(found->second);
  };
  const bool is_text = saved != nullptr && now != nullptr && base::is_fingerprint(*now);
  if (is_text) {
    const std::optional<std::string> before = *saved == "unset" ? *saved : text_of(*saved), after = text_of(*now);
    if (before && after && *before != *after) return fmt::format("{} was {} and is {}", flag, *before, *after);
    return flag + " is not what it was";
  }
  const auto shown = [&](const std::string* value) {
    if (value == nullptr) return std::string("absent");
    return base::is_fingerprint(*value) ? text_of(*value).value_or("given") : base::one_line(*value);
  };
  return fmt::format("{} was {} and is {}", flag, shown(saved), shown(now));
}

// Returns a hint for a decaying run that is made longer: its learning rate would end elsewhere, unless a flag names the
// step where it ended.
std::string decay_hint(const std::map<std::string, std::string>& saved, const std::map<std::string, std::string>& now) {
  const auto before = saved.find(kDecayEnd), after = now.find(kDecayEnd);
  if (before == saved.end() || after == now.end() || before->second == after->second || before->second == "any")
    return "";
  return fmt::format(" (--lr-decay-iters {} ends the decay where it ended)", base::one_line(before->second));
}

// Throws UserError with each input that differs and both its values, unless `allowed`.
void check_same_inputs(const std::map<std::string, std::string>& saved, const std::map<std::string, std::string>& now,
                       const std::map<std::string, std::string>& where_absent, const Texts& texts, bool allowed) {
  std::vector<std::string> differences;
  for (const auto& [name, value] : saved) {
    if (std::ranges::find(kFlagsNoLongerCompared, name) != kFlagsNoLongerCompared.end()) continue;
    const auto found = now.find(name);
    if (found == now.end() || !is_same(name, value, found->second))
      differences.push_back(difference(name, &value, found == now.end() ? nullptr : &found->second, texts));
  }
  for (const auto& [name, value] : now) {
    if (saved.contains(name)) continue;
    const auto absent = where_absent.find(name);
    if (absent == where_absent.end() || absent->second != value)
      differences.push_back(difference(name, nullptr, &value, texts));
  }
  if (differences.empty()) return;
  const std::string what = fmt::format("--load: the run would resume differently: {}", fmt::join(differences, "; "));
  TANDEM_USER_CHECK(allowed,
                    what + "; give them as they were" + decay_hint(saved, now) + ", or --allow-changed-config");
  base::log_warning("{} (--allow-changed-config)", what);
}

}  // namespace

void check_same_command(const Checkpoint& checkpoint, const std::map<std::string, std::string>& flags) {
  const auto command_of = [](const std::map<std::string, std::string>& inputs) {
    return inputs.contains(kFlagOfTrain) ? "train" : "sft";
  };
  const std::string before = command_of(read_state(checkpoint).result_inputs), after = command_of(flags);
  const std::filesystem::path run = std::filesystem::path(checkpoint.directory()).parent_path().parent_path();
  TANDEM_USER_CHECK(before == after,
                    fmt::format("--load: {} is of a run of `tandem {}`, which `tandem {}` cannot resume; give it to "
                                "`tandem {}`, or begin a new run with its weights (--hf-checkpoint {}/hf/latest)",
                                checkpoint.directory(), before, after, before, run.string()));
}

std::map<std::string, std::string> result_inputs(ResultInputs inputs) {
  std::map<std::string, std::string> result = std::move(inputs.flags);
  result["the kernels"] = inputs.kernels;
  result[kDecayEnd] = inputs.schedule.decay_style == "constant" ? "any" : std::to_string(inputs.schedule.decay_steps);
  result.merge(input_checksums(inputs.model_directory, inputs.prompt_data, inputs.custom_rm_paths));
  // It is recorded only if there are any, so that a run without them resumes from a checkpoint from before the flag.
  if (!inputs.text_prefix.empty()) {
    result["the tokens of --add-special-tokens"] = fmt::format("{}", fmt::join(inputs.text_prefix, " "));
  }
  for (const FrozenWeights& frozen : inputs.frozen) {
    const char* const file = frozen.kind == "adapter" ? weights::kAdapterFile : weights::kModelFile;
    const std::string name = frozen.kind.empty() ? fmt::format("the weights of {}", frozen.flag)
                                                 : fmt::format("{}{} {}", kFrozenWeights, frozen.kind, frozen.flag);
    result[name] = frozen.checksum.empty() ? weights::weights_checksum(frozen.directory, file) : frozen.checksum;
    const bool has_own_config = !frozen.directory.empty() && frozen.directory != inputs.model_directory;
    if (frozen.kind.empty() || frozen.kind == "adapter" || !has_own_config) continue;
    result[fmt::format("{}{} {}", kFrozenConfig, frozen.kind, frozen.flag)] =
        base::file_checksum(frozen.directory + "/config.json");
  }
  for (const auto& [name, value] : inputs.adapter) result[kAdapter + name] = value;
  if (!inputs.group_filter.empty()) {
    result["the filter of --dynamic-sampling-filter-path"] = identity_of(inputs.group_filter);
  }
  if (!inputs.generate_function.empty()) {
    result["the function of --custom-generate-function-path"] = identity_of(inputs.generate_function);
  }
  if (!inputs.advantage_function.empty()) {
    result["the function of --custom-advantage-path"] = identity_of(inputs.advantage_function);
  }
  if (inputs.groups_in_flight) {
    result["over-sampling-batch-size"] = std::to_string(*inputs.groups_in_flight);
    result["the mode of docs/ASYNC.md"] = inputs.samples_while_training ? "while the run trains" : "phases";
  }
  result.merge(inputs.definitions);
  return result;
}

bool is_from_file(const std::string& input) {
  return input.find(" --") != std::string::npos || input.starts_with(kAdapter);
}

void check_can_resume(const Checkpoint& checkpoint, const std::map<std::string, std::string>& result_inputs,
                      const std::map<std::string, std::string>& values_where_absent,
                      const std::map<std::string, std::string>& texts, bool allow_changes, int64_t num_records) {
  RunState saved = read_state(checkpoint);
  std::map<std::string, std::string> now = result_inputs;
  std::erase_if(now, [&](const auto& entry) {
    const bool may_lack = entry.first.starts_with(kFrozenWeights) || entry.first.starts_with(kFrozenConfig) ||
                          entry.first.starts_with(kAdapter);
    return may_lack && !saved.result_inputs.contains(entry.first);
  });
  if (saved.reference_step > 0) {  // the checkpoint holds the reference, which the policy has renewed since the start
    const auto is_of_reference = [](const auto& entry) {
      return entry.first.starts_with(kReferenceWeights) || entry.first.starts_with(kReferenceConfig);
    };
    std::erase_if(now, is_of_reference);
    std::erase_if(saved.result_inputs, is_of_reference);
  }
  check_same_inputs(saved.result_inputs, now, values_where_absent, texts, allow_changes);
  TANDEM_USER_CHECK(saved.cursor.offset < num_records,
                    fmt::format("--load: record {} of --prompt-data comes next and there are {}; give the data of the "
                                "run",
                                saved.cursor.offset, num_records));
}

}  // namespace tandem::checkpoint
