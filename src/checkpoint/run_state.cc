#include "checkpoint/run_state.h"

#include <fmt/format.h>

#include "base/check.h"
#include "base/message_text.h"

namespace tandem::checkpoint {

namespace {

using base::Json;

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

BestEvaluation best_of(const Json& json, const std::string& file) {
  const Json& metric = member(json, "metric", file);
  const Json& value = member(json, "value", file);
  TANDEM_USER_CHECK(metric.is_string() && value.is_number(),
                    file +
                        ": best must have a metric and a value; it was changed by hand: take another checkpoint "
                        "(--ckpt-step)");
  // Each is absent where it is "", as it was before a flag chose it, or before it was recorded.
  const auto text = [&](const char* name) {
    const auto found = json.find(name);
    return found != json.end() && found->is_string() ? found->get<std::string>() : "";
  };
  return {.metric = metric.get<std::string>(),
          .step = count(json, "step", file),
          .value = value.get<double>(),
          .judged_by = text("judged_by"),
          .asked = text("asked")};
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
  if (!advantage_state.empty()) json["advantage_state"] = advantage_state;
  json["epoch"] = cursor.epoch;
  json["offset"] = cursor.offset;
  if (best) {
    json["best"] = {{"metric", best->metric}, {"step", best->step}, {"value", best->value}};
    if (!best->judged_by.empty()) json["best"]["judged_by"] = best->judged_by;
    if (!best->asked.empty()) json["best"]["asked"] = best->asked;
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
  if (const auto advantages = json.find("advantage_state"); advantages != json.end()) {
    TANDEM_USER_CHECK(advantages->is_string(), file + ": advantage_state must be a string");
    state.advantage_state = advantages->get<std::string>();
  }
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

RunState read_state(const Checkpoint& checkpoint) {
  const std::string file = checkpoint.directory() + "/state.json";
  const RunState state = RunState::from_json(checkpoint.state(), file);
  TANDEM_USER_CHECK(state.step == checkpoint.step(),
                    fmt::format("{}: step is {}, and MANIFEST.json says {}; it was changed by hand: take another "
                                "checkpoint (--ckpt-step)",
                                file, state.step, checkpoint.step()));
  return state;
}

}  // namespace tandem::checkpoint
