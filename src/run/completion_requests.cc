#include "run/completion_requests.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/message_text.h"
#include "data/messages.h"
#include "options/mistakes.h"
#include "options/options.h"
#include "session/conversations.h"

namespace tandem::run {

namespace {

constexpr std::array<std::string_view, 3> kMembers = {"id", "prompts", "flags"};

void check_members(const base::Json& line) {
  TANDEM_USER_CHECK(line.is_object(), "the request is not a JSON object; write {\"prompts\": [\"text\"]}");
  for (const auto& [key, value] : line.items()) {
    TANDEM_USER_CHECK(std::find(kMembers.begin(), kMembers.end(), key) != kMembers.end(),
                      fmt::format("a request has no member '{}'; it has id, prompts and flags", base::one_line(key)));
  }
  TANDEM_USER_CHECK(line.contains("prompts") && line.at("prompts").is_array() && !line.at("prompts").empty(),
                    "prompts: expects a list of one prompt or more");
}

config::RolloutOptions read_flags(const base::Json& line, config::RolloutOptions sampling) {
  if (!line.contains("flags")) return sampling;
  const base::Json& flags = line.at("flags");
  TANDEM_USER_CHECK(flags.is_array(), "flags: expects a list of words, as they are typed");
  std::vector<std::string> words;
  for (const base::Json& flag : flags) {
    TANDEM_USER_CHECK(flag.is_string(), "flags: expects a list of words, as they are typed");
    words.push_back(flag.get<std::string>());
  }
  options::Options options;
  sampling.visit_sampling(options);
  try {
    TANDEM_USER_CHECK(options.parse(words) == options::ParsedAction::kRun,
                      "flags: --help and --print-config are for the command line");
  } catch (const options::OptionsError& error) {
    // All mistakes go into one line: an answer has no other place to list them in.
    throw UserError(fmt::format("{}", fmt::join(error.others(), "; ")));
  }
  return sampling;
}

std::vector<int32_t> read_tokens(const base::Json& prompt, const std::string& place, int64_t vocab) {
  TANDEM_USER_CHECK(prompt.size() == 1 && prompt.contains("tokens") && prompt.at("tokens").is_array(),
                    place + ": expects a text, a list of messages or {\"tokens\": [ids]}");
  std::vector<int32_t> tokens;
  for (const base::Json& id : prompt.at("tokens")) {
    TANDEM_USER_CHECK(id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() < vocab,
                      fmt::format("{}: {} is no token id of this model; ids are 0 to {}", place,
                                  base::one_line(base::dump_json(id)), vocab - 1));
    tokens.push_back(id.get<int32_t>());
  }
  return tokens;
}

// Checks the length before the tokenizer sees the text: a text of many megabytes takes more memory and time there than
// the process has.
void check_length(const std::string& text, const std::string& place, const RequestLimits& limits) {
  const int64_t most = limits.context_tokens * limits.max_token_bytes;
  TANDEM_USER_CHECK(std::ssize(text) <= most,
                    fmt::format("{}: the text has {} bytes, and the context of {} tokens, of at most {} bytes each, "
                                "holds no more than {}; shorten it",
                                place, text.size(), limits.context_tokens, limits.max_token_bytes, most));
}

base::Json messages_of(const base::Json& prompt, const std::string& name, const data::Place& place) {
  try {
    return data::read_messages(prompt, name, place);
  } catch (const UserError& error) {
    throw UserError(fmt::format("{}: {}", name, error.what()));  // a line has many prompts
  }
}

}  // namespace

base::Json request_id(const base::Json& line) {
  return line.is_object() && line.contains("id") ? line.at("id") : base::Json(nullptr);
}

CompletionRequest read_request(const base::Json& line, const data::Place& place, const config::RolloutOptions& sampling,
                               const config::DataOptions& data, const RequestLimits& limits, text::TextWorker& text) {
  check_members(line);
  CompletionRequest request{.id = request_id(line), .sampling = read_flags(line, sampling), .prompts = {}};
  const base::Json& prompts = line.at("prompts");
  const auto num_prompts = static_cast<int64_t>(prompts.size());
  const int64_t n = request.sampling.n_samples_per_prompt;
  TANDEM_USER_CHECK(
      n <= limits.num_samples / num_prompts,
      fmt::format(
          "a request may have {} completions, and this one asks for {} for each of {}: ask for fewer at a time, "
          "or start the engine with more --max-request-samples",
          limits.num_samples, n, base::counted(num_prompts, "prompt")));
  std::vector<std::vector<int32_t>> tokens(prompts.size());
  std::vector<session::Conversation> conversations;
  std::vector<size_t> with_text;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::string name = fmt::format("prompts[{}]", i);
    if (prompts[i].is_object()) {
      tokens[i] = read_tokens(prompts[i], name, limits.vocab);
      continue;
    }
    TANDEM_USER_CHECK(prompts[i].is_string() || prompts[i].is_array(),
                      name + ": expects a text, a list of messages or {\"tokens\": [ids]}");
    session::Conversation conversation;
    conversation.prompt = prompts[i].is_array() ? messages_of(prompts[i], name, place) : prompts[i];
    conversation.place = name;
    conversation.ending = session::ending_of(conversation.prompt);
    conversations.push_back(std::move(conversation));
    with_text.push_back(i);
  }
  constexpr size_t kAnySize = std::numeric_limits<size_t>::max();  // check_length() has the bound of the context
  std::vector<std::string> texts = session::render_prompts(data, text, conversations, kAnySize);
  for (size_t j = 0; j < with_text.size(); ++j) check_length(texts[j], conversations[j].place, limits);
  std::vector<std::vector<int32_t>> encoded = text.encode(texts);
  std::vector<std::string> text_of_prompt(prompts.size());
  for (size_t j = 0; j < with_text.size(); ++j) {
    const bool is_plain = !session::is_rendered(data, conversations[j].prompt);
    tokens[with_text[j]] =
        is_plain ? session::plain_text_tokens(data, text, std::move(encoded[j])) : std::move(encoded[j]);
    text_of_prompt[with_text[j]] = std::move(texts[j]);
  }
  for (size_t i = 0; i < prompts.size(); ++i) {
    TANDEM_USER_CHECK(!tokens[i].empty(), fmt::format("prompts[{}]: has no tokens", i));
    request.prompts.push_back({.record = {}, .prompt = rl::make_prompt(std::move(tokens[i]), text_of_prompt[i])});
  }
  return request;
}

base::Json completion_record(const rl::Sample& sample) {
  base::Json record = base::Json::object();
  record["text"] = sample.text;
  record["finish_reason"] = sample.status == rl::SampleStatus::kTruncated ? "length" : "stop";
  record["tokens"] = sample.completion;
  record["log_probs"] = sample.rollout_logprobs;
  if (!sample.behavior_logprobs.empty()) record["sampled_log_probs"] = sample.behavior_logprobs;
  return record;
}

}  // namespace tandem::run
