#include "checkpoint/resume.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <span>

#include "base/check.h"
#include "base/checksum.h"
#include "base/env.h"
#include "base/files.h"
#include "base/log.h"
#include "base/message_text.h"
#include "base/sha256.h"
#include "rl/data_lines.h"
#include "weights/checkpoint_files.h"
#include "weights/tensor_file.h"

namespace tandem::checkpoint {

namespace {

// A learning rate that decays is compared by this: the optimizer step at which it reaches --min-lr, or "any".
constexpr const char* kDecayEnd = "optimizer steps until --min-lr";

constexpr const char* kInFlight = "in_flight";  // a tensor of bytes

using base::Json;

// Describes a box of an HF tensor that this rank holds.
struct HeldBox {
  std::string name;                  // name in a checkpoint
  std::vector<int64_t> whole_shape;  // shape of the HF tensor
  std::vector<int64_t> begin;        // start of the box in it
  at::Tensor values;
  bool is_shared = false;  // every tensor rank holds it
};

// Visits the box of each HF tensor that the trainer's state holds a part of: its rows of the slice.
template <typename F>
void for_each_box(const trainer::Trainer& trainer, F f) {
  for (const auto& [kind, packed, tensor, row_begin] : trainer.state()) {
    for (const weights::Slice& slice : packed->slices) {
      const int64_t begin = std::max(slice.row_begin, row_begin);
      const int64_t end = std::min(slice.row_begin + slice.shape.front(), row_begin + tensor.size(0));
      if (begin >= end) continue;
      std::vector<int64_t> box_begin = slice.hf_begin();
      box_begin.front() += begin - slice.row_begin;
      f(HeldBox{.name = fmt::format("{}.{}", trainer::to_string(kind), slice.hf_name),
                .whole_shape = slice.hf_shape(),
                .begin = std::move(box_begin),
                .values = tensor.narrow(0, begin - row_begin, end - begin),
                .is_shared = packed->is_whole()});
    }
  }
}

// Does the same for the weights of a reference.
template <typename F>
void for_each_box(const weights::WeightStore& reference, F f) {
  for (const weights::PackedTensor& packed : reference.layout().tensors) {
    for (const weights::Slice& slice : packed.slices) {
      f(HeldBox{.name = "reference." + slice.hf_name,
                .whole_shape = slice.hf_shape(),
                .begin = slice.hf_begin(),
                .values = reference.slice(packed, slice),
                .is_shared = packed.is_whole()});
    }
  }
}

template <typename Holder>
std::vector<SavedTensor> saved_tensors(const Holder& holder, int tensor_rank) {
  std::vector<SavedTensor> tensors;
  for_each_box(holder, [&](const HeldBox& held) {
    if (held.is_shared && tensor_rank > 0) return;
    tensors.push_back(
        {.bytes = weights::tensor_bytes(held.name, held.values), .whole_shape = held.whole_shape, .begin = held.begin});
  });
  return tensors;
}

// Fills the box from the checkpoint. A box on a device is read through a few MiB of host memory.
void read_box(const Checkpoint& checkpoint, const HeldBox& held) {
  const at::Tensor& part = held.values;
  const auto read_into = [&](const at::Tensor& host, int64_t first_row) {
    std::vector<int64_t> begin = held.begin;
    begin.front() += first_row;
    checkpoint.read(held.name, weights::safetensors_dtype(part.scalar_type()), begin, host.sizes().vec(),
                    {static_cast<std::byte*>(host.data_ptr()), static_cast<size_t>(host.nbytes())});
  };
  if (part.is_cpu()) {
    read_into(part, 0);
    return;
  }
  const int64_t num_rows = part.size(0), row_bytes = static_cast<int64_t>(part.nbytes()) / num_rows;
  const int64_t step = std::max<int64_t>(1, weights::kStagingBytes / row_bytes);
  for (int64_t begin = 0; begin < num_rows; begin += step) {
    const at::Tensor rows = part.narrow(0, begin, std::min(step, num_rows - begin));
    const at::Tensor host = at::empty(rows.sizes(), rows.scalar_type());
    read_into(host, begin);
    rows.copy_(host);
  }
}

// Checkpoints of older versions contain this flag. The modules that a reward imports are not compared, and so the
// interpreter that they come from is not either.
constexpr const char* kFlagNoLongerCompared = "rm-python";

// No run counts so far, so sums and products of such numbers stay within 64 bits.
constexpr int64_t kMaxCount = int64_t{1} << 40;
constexpr int64_t kMaxFileBytes = int64_t{1} << 60;

const Json& member(const Json& json, const char* name, const std::string& file) {
  const auto found = json.is_object() ? json.find(name) : json.end();
  TANDEM_USER_CHECK(json.is_object() && found != json.end(), fmt::format("{}: {} is missing", file, name));
  return *found;
}

int64_t as_count(const Json& value, const std::string& name, const std::string& file, int64_t most) {
  // The parser makes a positive number unsigned.
  const bool fits = value.is_number_unsigned() && value.get<uint64_t>() <= static_cast<uint64_t>(most);
  TANDEM_USER_CHECK(fits,
                    fmt::format("{}: {} must be a whole number from 0 to {}; it was changed by hand: take another "
                                "checkpoint (--ckpt-step)",
                                file, base::one_line(name), most));
  return value.get<int64_t>();
}

int64_t count(const Json& json, const char* name, const std::string& file) {
  return as_count(member(json, name, file), name, file, kMaxCount);
}

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
    result[which + " of --prompt-data"] = base::file_checksum(rl::parse_data_path(prompt_data[i]).file);
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
  for (const char* name :
       {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}) {
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

// Returns "--lr was 0.001 and is 0.002". Texts may be secrets, so for them only the change is reported.
std::string difference(const std::string& name, const std::string* saved, const std::string* now) {
  const std::string flag = (name.find(' ') == std::string::npos ? "--" : "") + base::one_line(name);
  const bool is_text = saved != nullptr && now != nullptr && base::is_fingerprint(*now);
  if (is_text) return flag + " is not what it was";
  const auto shown = [](const std::string* value) {
    return value == nullptr ? "absent" : base::is_fingerprint(*value) ? "given" : base::one_line(*value);
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
                       const std::map<std::string, std::string>& where_absent, bool allowed) {
  std::vector<std::string> differences;
  for (const auto& [name, value] : saved) {
    if (name == kFlagNoLongerCompared) continue;
    const auto found = now.find(name);
    if (found == now.end() || !is_same(name, value, found->second))
      differences.push_back(difference(name, &value, found == now.end() ? nullptr : &found->second));
  }
  for (const auto& [name, value] : now) {
    if (saved.contains(name)) continue;
    const auto absent = where_absent.find(name);
    if (absent == where_absent.end() || absent->second != value)
      differences.push_back(difference(name, nullptr, &value));
  }
  if (differences.empty()) return;
  const std::string what = fmt::format("--load: the run would go on differently: {}", fmt::join(differences, "; "));
  TANDEM_USER_CHECK(allowed,
                    what + "; give them as they were" + decay_hint(saved, now) + ", or --allow-changed-config");
  base::log_warning("{} (--allow-changed-config)", what);
}

BestEvaluation best_of(const Json& json, const std::string& file) {
  const Json& metric = member(json, "metric", file);
  const Json& value = member(json, "value", file);
  TANDEM_USER_CHECK(metric.is_string() && value.is_number(),
                    file +
                        ": best must have a metric and a value; it was changed by hand: take another checkpoint "
                        "(--ckpt-step)");
  const auto judged_by = json.find("judged_by");  // absent before a flag chose the reward, and if it is ""
  const bool has_rule = judged_by != json.end() && judged_by->is_string();
  return {.metric = metric.get<std::string>(),
          .step = count(json, "step", file),
          .value = value.get<double>(),
          .judged_by = has_rule ? judged_by->get<std::string>() : ""};
}

}  // namespace

Json RunState::to_json() const {
  Json json = Json::object();
  json["step"] = step;
  json["optimizer_updates"] = optimizer.updates;
  json["optimizer_steps"] = optimizer.steps;
  json["skipped_in_a_row"] = skipped_in_a_row;
  json["failed_in_a_row"] = failed_in_a_row;
  json["ungraded_in_a_row"] = ungraded_in_a_row;
  if (rewards_differed_until) json["rewards_differed_until"] = *rewards_differed_until;
  json["evaluation_due"] = evaluation_due;
  json["weight_version"] = weight_version;
  if (reference_step > 0) json["reference_step"] = reference_step;
  json["epoch"] = cursor.epoch;
  json["offset"] = cursor.offset;
  if (best) {
    json["best"] = {{"metric", best->metric}, {"step", best->step}, {"value", best->value}};
    if (!best->judged_by.empty()) json["best"]["judged_by"] = best->judged_by;
  }
  json["file_bytes"] = file_bytes;
  json["numbers"] = result_inputs;
  return json;
}

RunState RunState::from_json(const Json& json, const std::string& file) {
  RunState state;
  state.step = count(json, "step", file);
  state.optimizer = {.updates = count(json, "optimizer_updates", file), .steps = count(json, "optimizer_steps", file)};
  state.skipped_in_a_row = count(json, "skipped_in_a_row", file);
  state.failed_in_a_row = count(json, "failed_in_a_row", file);
  const auto ungraded = json.find("ungraded_in_a_row");  // absent in checkpoints from before it was saved
  state.ungraded_in_a_row =
      ungraded == json.end() ? state.failed_in_a_row : as_count(*ungraded, "ungraded_in_a_row", file, kMaxCount);
  const auto differed = json.find("rewards_differed_until");  // absent before it was saved, and if none did
  if (differed != json.end())
    state.rewards_differed_until = as_count(*differed, "rewards_differed_until", file, state.step);
  const auto due = json.find("evaluation_due");  // absent in checkpoints from before it was saved
  state.evaluation_due = due != json.end() && *due == true;
  state.weight_version = static_cast<uint64_t>(count(json, "weight_version", file));
  const auto reference = json.find("reference_step");  // absent if the reference is not a copy made by the run
  if (reference != json.end()) state.reference_step = as_count(*reference, "reference_step", file, state.step);
  state.cursor = {.epoch = count(json, "epoch", file), .offset = count(json, "offset", file)};
  if (const auto best = json.find("best"); best != json.end()) state.best = best_of(*best, file);
  const Json& files = member(json, "file_bytes", file);
  const Json& numbers = member(json, "numbers", file);
  TANDEM_USER_CHECK(files.is_object() && numbers.is_object(), file + ": file_bytes and numbers must be objects");
  for (const auto& [name, value] : files.items()) {
    TANDEM_USER_CHECK(!name.starts_with('/') && name.find("..") == std::string::npos,
                      fmt::format("{}: file_bytes: {} lies outside the run", file, base::one_line(name)));
    state.file_bytes[name] = as_count(value, "file_bytes: " + name, file, kMaxFileBytes);
  }
  for (const auto& [name, value] : numbers.items()) {
    TANDEM_USER_CHECK(value.is_string(), fmt::format("{}: numbers: {} must be a string", file, base::one_line(name)));
    state.result_inputs[name] = value.get<std::string>();
  }
  return state;
}

std::vector<SavedTensor> optimizer_tensors(const trainer::Trainer& trainer, int tensor_rank) {
  return saved_tensors(trainer, tensor_rank);
}

std::vector<SavedTensor> reference_tensors(const weights::WeightStore& reference, int tensor_rank) {
  return saved_tensors(reference, tensor_rank);
}

void restore_reference(const Checkpoint& checkpoint, weights::WeightStore& reference) {
  for_each_box(reference, [&](const HeldBox& held) { read_box(checkpoint, held); });
}

void restore(const Checkpoint& checkpoint, const RunState& state, trainer::Trainer& trainer,
             weights::WeightStore& store) {
  for_each_box(trainer, [&](const HeldBox& held) { read_box(checkpoint, held); });
  trainer.restore(state.optimizer);
  store.set_version(state.weight_version);
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
  if (inputs.has_frozen_weights) {
    result["the weights of --hf-checkpoint"] = weights::weights_checksum(inputs.model_directory);
  }
  if (!inputs.group_filter.empty()) {
    result["the filter of --dynamic-sampling-filter-path"] = identity_of(inputs.group_filter);
  }
  if (!inputs.generate_function.empty()) {
    result["the function of --custom-generate-function-path"] = identity_of(inputs.generate_function);
  }
  if (inputs.groups_in_flight) {
    result["over-sampling-batch-size"] = std::to_string(*inputs.groups_in_flight);
    result["the mode of docs/ASYNC.md"] = inputs.samples_while_training ? "while the run trains" : "phases";
  }
  result.merge(inputs.definitions);
  return result;
}

SavedTensor in_flight_tensor(const std::string& in_flight) {
  const auto size = static_cast<int64_t>(in_flight.size());
  return {.bytes = {.name = kInFlight, .dtype = "U8", .shape = {size}, .bytes = std::as_bytes(std::span(in_flight))},
          .whole_shape = {size},
          .begin = {0}};
}

std::optional<std::string> in_flight_of(const Checkpoint& checkpoint) {
  const auto found = checkpoint.manifest().tensors.find(kInFlight);
  if (found == checkpoint.manifest().tensors.end()) return std::nullopt;
  const ManifestTensor& tensor = found->second;
  TANDEM_USER_CHECK(
      tensor.dtype == "U8" && tensor.shape.size() == 1,
      fmt::format("{}: the tensor {} is none of bytes: it was changed by hand", checkpoint.directory(), kInFlight));
  std::string bytes(static_cast<size_t>(tensor.shape[0]), '\0');
  checkpoint.read(kInFlight, "U8", {0}, tensor.shape, std::as_writable_bytes(std::span(bytes)));
  return bytes;
}

RunState read_state(const Checkpoint& checkpoint) {
  const std::string file = checkpoint.directory() + "/state.json";
  const RunState state = RunState::from_json(checkpoint.state(), file);
  TANDEM_USER_CHECK(state.step == checkpoint.step(),
                    fmt::format("{}: step is {}, and MANIFEST.json says {}; it was changed by hand: take another "
                                "checkpoint (--ckpt-step)",
                                file, state.step, checkpoint.step()));
  return state;
}

void check_can_resume(const Checkpoint& checkpoint, const std::map<std::string, std::string>& result_inputs,
                      const std::map<std::string, std::string>& values_where_absent, bool allow_changes,
                      int64_t num_records) {
  const RunState saved = read_state(checkpoint);
  check_same_inputs(saved.result_inputs, result_inputs, values_where_absent, allow_changes);
  TANDEM_USER_CHECK(saved.cursor.offset < num_records,
                    fmt::format("--load: record {} of --prompt-data comes next and there are {}; give the data of the "
                                "run",
                                saved.cursor.offset, num_records));
}

}  // namespace tandem::checkpoint
