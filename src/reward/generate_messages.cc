#include "reward/generate_messages.h"

#include <algorithm>
#include <array>
#include <limits>
#include <string>
#include <string_view>

#include "base/message_text.h"
#include "base/utf8_stream.h"
#include "worker/message.h"

namespace tandem::reward {
namespace {

using base::Json;
using worker::kMaxReasonBytes;

// python/tandem_worker/generator.py has the same bound, and refuses more with a reason; UTF-8 may take four times the
// characters.
constexpr size_t kMaxLeftBytes = size_t{4} << 16;

void require(bool holds) {
  if (!holds) throw worker::BadReply("answered with something other than what a generate function does");
}

const Json& member(const Json& object, const char* name) {
  require(object.is_object());
  const auto found = object.find(name);
  require(found != object.end());
  return *found;
}

const Json& array_of(const Json& object, const char* name) {
  const Json& value = member(object, name);
  require(value.is_array());
  return value;
}

uint64_t number_of(const Json& object, const char* name) {
  const Json& value = member(object, name);
  require(value.is_number_unsigned());
  return value.get<uint64_t>();
}

bool flag_of(const Json& object, const char* name) {
  const Json& value = member(object, name);
  require(value.is_boolean());
  return value.get<bool>();
}

std::string line_of(const Json& object, const char* name) {
  const Json& value = member(object, name);
  require(value.is_string() && value.get_ref<const std::string&>().size() <= kMaxReasonBytes);
  return base::one_line(value.get_ref<const std::string&>(), kMaxReasonBytes);
}

const Json& small_object(const Json& object, const char* name) {
  const Json& value = member(object, name);
  require(value.is_object() && base::dump_json(value).size() <= kMaxLeftBytes);
  return value;
}

std::vector<int32_t> tokens_of(const Json& object, const char* name) {
  std::vector<int32_t> tokens;
  for (const Json& value : array_of(object, name)) {
    require(value.is_number_unsigned() && value.get<uint64_t>() <= std::numeric_limits<int32_t>::max());
    tokens.push_back(value.get<int32_t>());
  }
  return tokens;
}

EngineCall call_of(const Json& asked) {
  EngineCall call;
  call.call = number_of(asked, "call");
  call.input_ids = tokens_of(asked, "input_ids");
  call.sampling = small_object(asked, "sampling_params");
  return call;
}

std::vector<uint8_t> mask_of(const std::string& text) {
  std::vector<uint8_t> mask;
  mask.reserve(text.size());
  for (const char c : text) {
    require(c == '0' || c == '1');
    mask.push_back(c == '1' ? 1 : 0);
  }
  return mask;
}

std::vector<int64_t> begins_of(const Json& ended, uint64_t length) {
  std::vector<int64_t> begins;
  for (const Json& value : array_of(ended, "sequence_begins")) {
    require(value.is_number_unsigned() && value.get<uint64_t>() < length);
    require(begins.empty() || value.get<int64_t>() > begins.back());
    begins.push_back(value.get<int64_t>());
  }
  return begins;
}

int64_t count_of(const Json& counts, const char* name) {
  const uint64_t value = number_of(counts, name);
  require(value <= std::numeric_limits<int32_t>::max());
  return static_cast<int64_t>(value);
}

void read_endpoint_counts(const Json& ended, Generated& result) {
  const Json& endpoint = member(ended, "endpoint");
  result.endpoint_answers = count_of(endpoint, "answers");
  result.endpoint_restarts = count_of(endpoint, "restarts");
  result.endpoint_untrained = count_of(endpoint, "untrained");
  result.endpoint_refused = count_of(endpoint, "refused");
}

Generated result_of_function(const Json& ended) {
  Generated result;
  result.tokens = tokens_of(ended, "tokens");
  const uint64_t length = number_of(ended, "response_length");
  require(length <= result.tokens.size());
  result.response_length = static_cast<int64_t>(length);
  result.sequence_begins = begins_of(ended, length);
  const Json& mask = member(ended, "loss_mask");
  require(mask.is_string() || mask.is_null());
  if (mask.is_string()) {
    result.loss_mask = mask_of(mask.get_ref<const std::string&>());
    require(result.loss_mask.size() == length);
  }
  constexpr std::array<std::string_view, 4> kStatuses = {"", "completed", "truncated", "aborted"};
  result.status = line_of(ended, "status");
  require(std::find(kStatuses.begin(), kStatuses.end(), result.status) != kStatuses.end());
  result.metadata = small_object(ended, "metadata");
  result.attributes = small_object(ended, "attributes");
  return result;
}

GeneratorReply::Ended ended_of(const Json& entry) {
  GeneratorReply::Ended ended;
  ended.run = number_of(entry, "run");
  if (!entry.contains("failure")) ended.result = result_of_function(entry);
  read_endpoint_counts(entry, ended.result);  // of a sample that failed too
  if (!entry.contains("failure")) return ended;
  ended.result.failure = line_of(entry, "failure");
  require(!ended.result.failure.empty());
  ended.hung = flag_of(entry, "hung");
  ended.out_of_memory = flag_of(entry, "out_of_memory");
  return ended;
}

}  // namespace

Json to_json(const GenerateRequest& request, uint64_t run) {
  return {{"run", run},
          {"sample",
           {{"group_id", request.group_id},
            {"sample_id", request.sample_id},
            {"prompt", request.prompt},
            {"prompt_text", base::utf8_text(request.prompt_text)},
            {"prompt_tokens", request.prompt_tokens},
            {"label", request.label},
            {"metadata", request.metadata.is_object() ? request.metadata : Json::object()}}},
          {"sampling_params", request.sampling},
          {"max_context_tokens", request.max_context_tokens},
          {"evaluation", request.is_evaluation}};
}

Json to_json(const EngineAnswer& answer, uint64_t run, uint64_t call) {
  if (!answer.error.empty()) return {{"run", run}, {"call", call}, {"error", answer.error}};
  return {{"run", run},
          {"call", call},
          {"tokens", answer.tokens},
          {"log_probs", answer.logprobs},
          {"finish_reason", answer.finish_reason}};
}

GeneratorReply reply_of(const Json& message) {
  GeneratorReply reply;
  for (const Json& asked : array_of(message, "asked")) reply.asked.push_back({number_of(asked, "run"), call_of(asked)});
  for (const Json& ended : array_of(message, "ended")) reply.ended.push_back(ended_of(ended));
  reply.all_wait = flag_of(message, "all_wait");
  return reply;
}

}  // namespace tandem::reward
