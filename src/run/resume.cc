#include "run/resume.h"

#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/checksum.h"
#include "base/files.h"
#include "base/log.h"
#include "rl/data_lines.h"
#include "weights/tensor_file.h"

namespace tandem::run {

namespace {

using base::Json;

// Visits the part of each HF tensor in each tensor of the trainer's state: f(name, rows of it).
template <typename F>
void for_each_part(const trainer::Trainer& trainer, const weights::Layout& layout, F f) {
  for (const auto& [name, tensor] : trainer.state()) {
    const size_t dot = name.find('.');  // "exp_avg.layers.0.qkv"
    for (const weights::Slice& slice : layout.find(name.substr(dot + 1)).slices) {
      f(fmt::format("{}.{}", name.substr(0, dot), slice.hf_name),
        tensor.narrow(0, slice.row_begin, slice.shape.front()));
    }
  }
}

// Fills a part from the checkpoint. One that lies on a device is read through a few MiB of host memory.
void read_part(const Checkpoint& checkpoint, const std::string& name, const at::Tensor& part) {
  const auto read_into = [&](const at::Tensor& host, int64_t first_row) {
    std::vector<int64_t> begin(static_cast<size_t>(part.dim()), 0);
    begin.front() = first_row;
    checkpoint.read(name, "F32", begin, host.sizes().vec(),
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
    const at::Tensor host = at::empty(rows.sizes(), at::kFloat);
    read_into(host, begin);
    rows.copy_(host);
  }
}

const Json& member(const Json& json, const char* name, const std::string& file) {
  const auto found = json.is_object() ? json.find(name) : json.end();
  TANDEM_USER_CHECK(json.is_object() && found != json.end(), fmt::format("{}: {} is missing", file, name));
  return *found;
}

int64_t count(const Json& json, const char* name, const std::string& file) {
  const Json& value = member(json, name, file);
  TANDEM_USER_CHECK(value.is_number_integer() && value.get<int64_t>() >= 0,
                    fmt::format("{}: {} must be a whole number, 0 or more", file, name));
  return value.get<int64_t>();
}

// Of data, reward function, model configuration and tokenizer.
std::map<std::string, std::string> input_checksums(const std::string& model_directory, const std::string& prompt_file,
                                                   const std::string& custom_rm_path) {
  std::map<std::string, std::string> result;
  if (!prompt_file.empty()) result["the file of --prompt-data"] = base::file_checksum(prompt_file);
  const std::string reward_file = custom_rm_path.substr(0, custom_rm_path.rfind(':'));
  if (!reward_file.empty()) result["the file of --custom-rm-path"] = base::file_checksum(reward_file);
  for (const char* name :
       {"config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"}) {
    const std::string path = fmt::format("{}/{}", model_directory, name);
    if (base::file_exists(path)) result[fmt::format("{} of --hf-checkpoint", name)] = base::file_checksum(path);
  }
  return result;
}

// UserError naming each that differs, with both values, unless `allowed`.
void check_same_numbers(const std::map<std::string, std::string>& saved, const std::map<std::string, std::string>& now,
                        bool allowed) {
  std::vector<std::string> differences;
  const auto say = [&](const std::string& name, const std::string& before, const std::string& after) {
    const std::string flag = name.find(' ') == std::string::npos ? "--" + name : name;
    differences.push_back(fmt::format("{} was {} and is {}", flag, before, after));
  };
  for (const auto& [name, value] : saved) {
    const auto found = now.find(name);
    if (found == now.end() || found->second != value) say(name, value, found == now.end() ? "absent" : found->second);
  }
  for (const auto& [name, value] : now) {
    if (!saved.contains(name)) say(name, "absent", value);
  }
  if (differences.empty()) return;
  const std::string what = fmt::format("--load: the run would go on differently: {}", fmt::join(differences, "; "));
  TANDEM_USER_CHECK(allowed, what + "; give them as they were, or --allow-changed-config");
  base::log_warning("{} (--allow-changed-config)", what);
}

}  // namespace

Json RunState::to_json() const {
  Json json = Json::object();
  json["step"] = step;
  json["optimizer_updates"] = optimizer.updates;
  json["optimizer_steps"] = optimizer.steps;
  json["skipped_in_a_row"] = skipped_in_a_row;
  json["failed_in_a_row"] = failed_in_a_row;
  json["evaluation_due"] = evaluation_due;
  json["weight_version"] = weight_version;
  json["epoch"] = cursor.epoch;
  json["offset"] = cursor.offset;
  json["file_bytes"] = file_bytes;
  json["numbers"] = numbers;
  return json;
}

RunState RunState::from_json(const Json& json, const std::string& file) {
  RunState state;
  state.step = count(json, "step", file);
  state.optimizer = {.updates = count(json, "optimizer_updates", file), .steps = count(json, "optimizer_steps", file)};
  state.skipped_in_a_row = count(json, "skipped_in_a_row", file);
  state.failed_in_a_row = count(json, "failed_in_a_row", file);
  const auto due = json.find("evaluation_due");  // absent before it was saved
  state.evaluation_due = due != json.end() && *due == true;
  state.weight_version = static_cast<uint64_t>(count(json, "weight_version", file));
  state.cursor = {.epoch = count(json, "epoch", file), .offset = count(json, "offset", file)};
  const Json& files = member(json, "file_bytes", file);
  const Json& numbers = member(json, "numbers", file);
  TANDEM_USER_CHECK(files.is_object() && numbers.is_object(), file + ": file_bytes and numbers must be objects");
  for (const auto& [name, value] : files.items()) state.file_bytes[name] = count(files, name.c_str(), file);
  for (const auto& [name, value] : numbers.items()) {
    TANDEM_USER_CHECK(value.is_string(), fmt::format("{}: numbers: {} must be a string", file, name));
    state.numbers[name] = value.get<std::string>();
  }
  return state;
}

std::vector<weights::TensorBytes> optimizer_tensors(const trainer::Trainer& trainer, const weights::Layout& layout) {
  std::vector<weights::TensorBytes> tensors;
  for_each_part(trainer, layout, [&](const std::string& name, const at::Tensor& part) {
    tensors.push_back(weights::tensor_bytes(name, part));
  });
  return tensors;
}

void restore(const Checkpoint& checkpoint, const RunState& state, trainer::Trainer& trainer,
             weights::WeightStore& store) {
  for_each_part(trainer, store.layout(),
                [&](const std::string& name, const at::Tensor& part) { read_part(checkpoint, name, part); });
  trainer.restore(state.optimizer);
  store.set_version(state.weight_version);
}

std::map<std::string, std::string> run_numbers(const RunMode& mode, const Session& session,
                                               const trainer::TrainerConfig& trainer, const std::string& prompt_data,
                                               const std::string& custom_rm_path) {
  std::map<std::string, std::string> result = mode.numbers;
  result["the kernels"] = session.ops().name();
  result["optimizer steps until --min-lr"] =
      trainer.lr_decay_style == "constant" ? "any" : std::to_string(trainer.lr_decay_steps);
  result.merge(input_checksums(session.directory(), rl::parse_data_path(prompt_data).file, custom_rm_path));
  return result;
}

RunState read_state(const Checkpoint& checkpoint) {
  return RunState::from_json(checkpoint.state(), checkpoint.directory() + "/state.json");
}

void check_goes_on(const Checkpoint& checkpoint, const std::map<std::string, std::string>& numbers, bool allow_changes,
                   int64_t num_records) {
  const RunState saved = read_state(checkpoint);
  check_same_numbers(saved.numbers, numbers, allow_changes);
  TANDEM_USER_CHECK(saved.cursor.offset < num_records,
                    fmt::format("--load: record {} of --prompt-data comes next and there are {}; give the data of the "
                                "run",
                                saved.cursor.offset, num_records));
}

}  // namespace tandem::run
