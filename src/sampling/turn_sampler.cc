#include "sampling/turn_sampler.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <utility>
#include <variant>

#include "base/check.h"
#include "base/message_text.h"

namespace tandem::sampling {

namespace {

// Bounds the calls of a sample: a function that asks without end, one token at a time, would never run out of its time.
constexpr int64_t kMaxCalls = 10'000;

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014), which spreads every bit over all.
uint64_t mixed(uint64_t x) {
  x += 0x9E3779B97F4A7C15U;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9U;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBU;
  return x ^ (x >> 31);
}

const char* finish_word(rl::FinishReason reason) {
  TANDEM_CHECK(reason != rl::FinishReason::kPaused, "a paused completion answers no call");
  return reason == rl::FinishReason::kStop ? "stop" : "length";
}

// Compares the parameters that change a token's log-probs, or the probability with which it is drawn.
bool samples_alike(const rl::SamplingParams& a, const rl::SamplingParams& b) {
  return a.temperature == b.temperature && a.top_p == b.top_p && a.top_k == b.top_k && a.min_p == b.min_p;
}

// Returns the line's metadata with a slime sample's own in it. A slime sample has, and may change, the object under
// metadata_key, or all of the metadata if there is no such object.
base::Json with_own_metadata(const base::Json& line, const std::string& metadata_key, const base::Json& own) {
  const auto found = line.is_object() ? line.find(metadata_key) : line.end();
  if (!line.is_object() || found == line.end() || !found->is_object()) return own;
  base::Json metadata = line;
  metadata[metadata_key] = own;
  return metadata;
}

// Refuses ids outside the vocabulary: the model has no row for them, whether they are trained on or not.
void check_ids(std::span<const int32_t> response, int64_t vocab) {
  for (size_t i = 0; i < response.size(); ++i) {
    TANDEM_USER_CHECK(
        response[i] >= 0 && response[i] < vocab,
        fmt::format("token {} of the response is {}, which is no token id of this model; ids are 0 to {}: "
                    "encode what tools say with tandem.rollout.tokenizer()",
                    i, response[i], vocab - 1));
  }
}

// A sequence of a sample: the prompt's first `num_prompt` tokens, and tokens [begin, end) of the completion.
struct SequenceRange {
  size_t num_prompt = 0;
  size_t begin = 0, end = 0;
};

std::vector<SequenceRange> sequences_of(const rl::Sample& sample, size_t num_prompt) {
  std::vector<SequenceRange> sequences = {{.num_prompt = num_prompt, .begin = 0, .end = sample.num_after_prompt()}};
  for (const int64_t begin : sample.sequence_begins) {
    if (sequences.size() > 1) sequences.back().end = static_cast<size_t>(begin);
    sequences.push_back({.num_prompt = 0, .begin = static_cast<size_t>(begin), .end = sample.completion.size()});
  }
  return sequences;
}

// Returns where the tokens of a sample are cut: a further sequence keeps two tokens at least, or none.
size_t end_of(const reward::Generated& made, size_t num_prompt, int64_t max_tokens) {
  size_t end = std::min(made.tokens.size(), static_cast<size_t>(max_tokens));
  for (size_t q = 0; q < made.sequence_begins.size(); ++q) {
    const int64_t begin = made.sequence_begins[q];
    const int64_t next = q + 1 < made.sequence_begins.size() ? made.sequence_begins[q + 1] : made.response_length;
    TANDEM_USER_CHECK(
        next - begin >= 2,
        fmt::format("sequence {} of the sample has {} token; one that does not continue the prompt begins "
                    "with tokens of its own, after which the engine sampled others",
                    q + 1, next - begin));
    if (num_prompt + static_cast<size_t>(begin) + 1 == end) --end;
  }
  TANDEM_USER_CHECK(end > num_prompt,
                    fmt::format("the sample has no room for a sequence of its own: prompt and response "
                                "may have {} tokens; raise --rollout-max-response-len",
                                max_tokens));
  return end;
}

// Returns the version of the weights that sampled a token; 0 if the completion does not say.
uint64_t version_of(const rl::Completion& completion, size_t token) {
  uint64_t version = 0;
  for (const rl::VersionSpan& span : completion.versions) {
    if (span.begin <= static_cast<int64_t>(token)) version = span.version;
  }
  return version;
}

rl::EndpointCounts endpoint_counts(const reward::Generated& made) {
  return {.answers = made.endpoint_answers,
          .restarts = made.endpoint_restarts,
          .untrained = made.endpoint_untrained,
          .refused = made.endpoint_refused};
}

}  // namespace

void PrefixHash::add(int32_t token) { value_ = mixed(value_ ^ mixed(static_cast<uint32_t>(token))); }

uint64_t PrefixHash::of(const std::vector<int32_t>& tokens) {
  PrefixHash hash;
  for (const int32_t token : tokens) hash.add(token);
  return hash.value();
}

base::Json sampling_json(const rl::SamplingParams& sampling, bool skip_special_tokens) {
  return {{"temperature", sampling.temperature},
          {"top_p", sampling.top_p},
          {"top_k", sampling.top_k},
          {"min_p", sampling.min_p},
          {"max_new_tokens", sampling.max_new_tokens},
          {"stop", sampling.stop},
          {"stop_token_ids", sampling.stop_token_ids},
          {"ignore_eos", sampling.ignore_eos},
          {"skip_special_tokens", skip_special_tokens}};
}

rl::SamplingParams sampling_of_call(const rl::SamplingParams& base, const base::Json& asked) {
  rl::SamplingParams sampling = base;
  try {
    sampling.temperature = asked.at("temperature").get<double>();
    sampling.top_p = asked.at("top_p").get<double>();
    sampling.top_k = asked.at("top_k").get<int64_t>();
    sampling.min_p = asked.at("min_p").get<double>();
    sampling.max_new_tokens = asked.at("max_new_tokens").get<int64_t>();
    sampling.stop = asked.at("stop").get<std::vector<std::string>>();
    sampling.stop_token_ids = asked.at("stop_token_ids").get<std::vector<int32_t>>();
    sampling.ignore_eos = asked.at("ignore_eos").get<bool>();
  } catch (const base::Json::exception&) {
    throw UserError("sampling_params: a value is missing or of another type");
  }
  if (sampling.top_k == 0) sampling.top_k = -1;
  return sampling;
}

rl::Sample sample_of_turns(const reward::Generated& made, const rl::SharedPrompt& prompt, uint64_t group_id,
                           const std::vector<TurnRecord>& turns, int64_t max_tokens, int64_t vocab,
                           bool has_behavior_logprobs) {
  const size_t num_prompt = made.tokens.size() - static_cast<size_t>(made.response_length);
  TANDEM_USER_CHECK(made.response_length > 0,
                    "the function returned no response: sample.response_length is 0; return at least one token");
  const bool begins = num_prompt == prompt->tokens.size() &&
                      std::equal(prompt->tokens.begin(), prompt->tokens.end(), made.tokens.begin());
  TANDEM_USER_CHECK(begins, fmt::format("sample.tokens must be the {} tokens of the prompt and then the "
                                        "sample.response_length of the response, and {} other tokens come before the "
                                        "last {}; what the function adds to a prompt belongs into --prompt-data",
                                        prompt->tokens.size(), num_prompt, made.response_length));
  check_ids(std::span(made.tokens).subspan(num_prompt), vocab);
  rl::Sample sample;
  sample.group_id = group_id;
  sample.sample_id = made.sample_id;
  sample.prompt = prompt;
  sample.endpoint = endpoint_counts(made);
  const size_t end = end_of(made, num_prompt, max_tokens);
  const bool is_cut = end < made.tokens.size();
  sample.completion.assign(made.tokens.begin() + static_cast<std::ptrdiff_t>(num_prompt),
                           made.tokens.begin() + static_cast<std::ptrdiff_t>(end));
  const size_t length = sample.completion.size();
  for (const int64_t begin : made.sequence_begins)
    if (begin < std::ssize(sample.completion)) sample.sequence_begins.push_back(begin);
  sample.loss_mask = made.loss_mask;
  sample.loss_mask.resize(length, 1);
  sample.rollout_logprobs.assign(length, 0.0F);
  if (has_behavior_logprobs) sample.behavior_logprobs.assign(length, 0.0F);
  sample.num_turns = std::ssize(turns);

  std::vector<uint8_t> is_sampled(length, 0), begins_turn(length, 0);
  std::vector<uint64_t> versions(length, 0);
  const rl::Completion* last = nullptr;  // call that sampled the response's last token, so far
  for (const SequenceRange& sequence : sequences_of(sample, num_prompt)) {
    // The hashes of all prefixes find the call that sampled each token of the sequence.
    std::vector<uint64_t> hashes;  // hashes of the prompt, if it continues that, and its first i tokens
    PrefixHash hash;
    for (size_t p = 0; p < sequence.num_prompt; ++p) hash.add(made.tokens[p]);
    for (size_t i = sequence.begin; i <= sequence.end; ++i) {
      hashes.push_back(hash.value());
      if (i < sequence.end) hash.add(sample.completion[i]);
    }
    const size_t room = sequence.end - sequence.begin;
    for (const TurnRecord& turn : turns) {
      if (!turn.is_policy || turn.num_prefix < sequence.num_prompt || turn.num_prefix == 0) continue;
      const size_t offset = turn.num_prefix - sequence.num_prompt;
      if (offset >= room || hashes[offset] != turn.prefix) continue;
      const size_t begin = sequence.begin + offset;
      const rl::Completion& completion = turn.completion;
      begins_turn[begin] = 1;
      if (sample.versions.empty()) sample.versions = completion.versions;
      for (size_t i = 0; i < completion.tokens.size() && offset + i < room; ++i) {
        if (completion.tokens[i] != sample.completion[begin + i]) break;
        is_sampled[begin + i] = 1;
        versions[begin + i] = version_of(completion, i);
        sample.rollout_logprobs[begin + i] = completion.logprobs[i];
        if (has_behavior_logprobs) sample.behavior_logprobs[begin + i] = completion.behavior_logprobs[i];
        if (begin + i + 1 == length && i + 1 == completion.tokens.size()) last = &completion;
      }
    }
  }
  // Later calls may have newer weights than the first.
  std::vector<rl::VersionSpan> spans;
  for (size_t i = 0; i < length; ++i) {
    if (is_sampled[i] == 0 || (!spans.empty() && spans.back().version == versions[i])) continue;
    spans.push_back({.begin = spans.empty() ? 0 : static_cast<int64_t>(i), .version = versions[i]});
  }
  if (!spans.empty()) sample.versions = std::move(spans);
  for (size_t i = 0; i < length; ++i) {
    TANDEM_USER_CHECK(sample.loss_mask[i] == 0 || is_sampled[i] != 0,
                      fmt::format("token {} of the response (id {}) has loss_mask 1, and the engine did not sample it "
                                  "behind exactly the tokens before it, as the run samples; give tokens of tools 0, "
                                  "and keep those of the model as the engine returned them",
                                  i, sample.completion[i]));
  }
  for (size_t i = 0; i < length; ++i) {
    const bool begins_sequence = std::ranges::binary_search(sample.sequence_begins, static_cast<int64_t>(i));
    const bool goes_on =
        i > 0 && !begins_sequence && is_sampled[i] == is_sampled[i - 1] && (is_sampled[i] == 0 || begins_turn[i] == 0);
    if (!goes_on)
      sample.pieces.push_back({.begin = static_cast<int64_t>(i), .is_sampled = is_sampled[i] != 0, .text = {}});
  }
  if (!made.status.empty()) {
    sample.status = made.status == "truncated" ? rl::SampleStatus::kTruncated
                    : made.status == "aborted" ? rl::SampleStatus::kAborted
                                               : rl::SampleStatus::kCompleted;
  } else if (last != nullptr) {
    sample.status = status_of(last->finish_reason);
  }
  if (is_cut) sample.status = rl::SampleStatus::kTruncated;
  return sample;
}

TurnSampler::~TurnSampler() {
  for (const auto& [sample_id, session] : sessions_) {
    generators_.cancel(sample_id);
    engine_.release(sample_id);
  }
}

void TurnSampler::add(uint64_t key, rollout::GroupRequest request, const data::PromptRecord& record) {
  TANDEM_CHECK(request.begun.empty() && request.budgets.empty(), "a generate function makes whole samples");
  const auto num_prompt = std::ssize(request.prompt->tokens);
  const int64_t asked_context = request.sampling.max_context_tokens;
  const int64_t context = asked_context > 0 ? asked_context : settings_.context_tokens;
  Group group;
  group.group_id = request.group_id;
  group.prompt = request.prompt;
  group.record = &record;
  group.sampling = request.sampling;
  group.max_tokens = std::min(num_prompt + request.sampling.max_new_tokens, context);
  TANDEM_USER_CHECK(num_prompt < context, "the prompt of group", request.group_id, "has", num_prompt,
                    "tokens, which leaves no room for a completion in the context of", context,
                    "tokens: shorten or drop it");
  group.sampling.max_context_tokens = group.max_tokens;
  group.sample_ids = request.sample_ids;
  const base::Json sampling = sampling_json(request.sampling, settings_.skip_special_tokens);
  for (const uint64_t sample_id : request.sample_ids) {
    sessions_[sample_id].key = key;
    reward::GenerateRequest asked;
    asked.group_id = request.group_id;
    asked.sample_id = sample_id;
    asked.prompt = record.prompt;
    asked.prompt_text = request.prompt->text;
    asked.prompt_tokens = request.prompt->tokens;
    asked.label = record.label;
    asked.metadata = record.metadata;
    asked.sampling = sampling;
    asked.max_context_tokens = group.max_tokens;
    asked.is_evaluation = settings_.is_evaluation;
    generators_.begin(std::move(asked));
  }
  groups_.emplace(key, std::move(group));
}

void TurnSampler::step() {
  take_events();
  if (engine_.num_unfinished_groups() > 0) TANDEM_CHECK(engine_.step(), "the engine has unfinished groups and no work");
  take_answers();
}

void TurnSampler::take_events() {
  for (reward::GeneratorEvent& event : generators_.take(0.0)) {
    if (auto* call = std::get_if<reward::EngineCall>(&event)) {
      ask_engine(std::move(*call));
    } else {
      finish(std::move(std::get<reward::Generated>(event)));
    }
  }
}

void TurnSampler::ask_engine(reward::EngineCall call) {
  Session& session = sessions_.at(call.sample_id);
  if (call.attempt < session.attempt) return;
  if (call.attempt > session.attempt) {  // the function began again, and so does all that it asked
    end_calls(session);
    const uint64_t key = session.key;
    session = Session();
    session.key = key;
    session.attempt = call.attempt;
  }
  const Group& group = groups_.at(session.key);
  const auto refuse = [&](const std::string& error) {
    generators_.answer(call.sample_id, call.attempt, call.call, {.error = error});
  };
  if (++session.num_calls > kMaxCalls) {
    return refuse(
        fmt::format("the function asks the engine for the {}th time; it may {} times", kMaxCalls + 1, kMaxCalls));
  }
  TurnRecord turn;
  turn.num_prefix = call.input_ids.size();
  turn.prefix = PrefixHash::of(call.input_ids);
  rl::SamplingParams sampling;
  try {
    TANDEM_USER_CHECK(!call.input_ids.empty(), "input_ids are empty; give the prompt's at least");
    sampling = sampling_of_call(group.sampling, call.sampling);
    TANDEM_USER_CHECK(sampling.max_new_tokens > 0,
                      fmt::format("max_new_tokens is {}, but must be positive", sampling.max_new_tokens));
  } catch (const UserError& error) {
    return refuse(error.what());
  }
  turn.is_policy = samples_alike(sampling, group.sampling);
  if (std::ssize(call.input_ids) >= group.max_tokens) {  // no room for another token
    session.turns.push_back(std::move(turn));
    return generators_.answer(call.sample_id, call.attempt, call.call, {.finish_reason = "length"});
  }
  // The first call with the prompt draws as a run without a function does. Every other beginning has draws of its own,
  // and so has every other call with the same beginning: numbers that depend on no clock.
  const int64_t occurrence = session.num_begun[turn.prefix]++;
  if (occurrence > 0 || call.input_ids != group.prompt->tokens) {
    sampling.seed = mixed(mixed(group.sampling.seed ^ turn.prefix) + static_cast<uint64_t>(occurrence));
  }
  rollout::GroupRequest request;
  request.group_id = ++last_call_;
  request.prompt = rl::make_prompt(std::move(call.input_ids));
  request.sample_ids = {call.sample_id};
  request.sampling = std::move(sampling);
  request.owner = rollout::PrefixOwner{.group_id = group.group_id, .sample_id = call.sample_id};
  try {
    engine_.add(std::move(request));
  } catch (const UserError& error) {
    return refuse(base::one_line(error.what(), 500));
  }
  session.in_engine.insert(last_call_);
  calls_[last_call_] = {
      .sample_id = call.sample_id, .attempt = call.attempt, .call = call.call, .turn = std::move(turn)};
}

void TurnSampler::take_answers() {
  while (std::ssize(calls_) > engine_.num_unfinished_groups()) {
    rl::Group group = engine_.next_finished().value();
    auto found = calls_.extract(group.group_id);
    TANDEM_CHECK(!found.empty(), "an answer to nobody's call", group.group_id);
    Call& call = found.mapped();
    const auto session = sessions_.find(call.sample_id);
    if (session == sessions_.end() || session->second.in_engine.erase(group.group_id) == 0) continue;  // was ended
    call.turn.completion = std::move(group.completions.front());
    const rl::Completion& completion = call.turn.completion;
    generators_.answer(call.sample_id, call.attempt, call.call,
                       {.error = "",
                        .tokens = completion.tokens,
                        .logprobs = completion.logprobs,
                        .finish_reason = finish_word(completion.finish_reason)});
    session->second.turns.push_back(std::move(call.turn));
  }
}

void TurnSampler::finish(reward::Generated made) {
  const uint64_t sample_id = made.sample_id;
  Session& session = sessions_.at(sample_id);
  const uint64_t key = session.key;
  Group& group = groups_.at(key);
  if (made.attempt > session.attempt) session.turns.clear();  // these turns are of an attempt that was lost
  group.members[sample_id] = member_of(made, session, group);
  end_session(sample_id);
  if (group.members.size() < group.sample_ids.size()) return;
  groups::SampledLoan result;
  result.key = key;
  for (auto& [id, member] : group.members) result.members.push_back(std::move(member));
  finished_.push_back(std::move(result));
  groups_.erase(key);
}

groups::Member TurnSampler::member_of(const reward::Generated& made, Session& session, const Group& group) const {
  std::string failure = made.failure;
  if (failure.empty()) {
    try {
      groups::Member member;
      member.sample = sample_of_turns(made, group.prompt, group.group_id, session.turns, group.max_tokens,
                                      settings_.vocab, group.sampling.truncates());
      member.metadata = with_own_metadata(group.record->metadata, settings_.metadata_key, made.metadata);
      member.attributes = made.attributes;
      return member;
    } catch (const UserError& error) {
      failure = error.what();
    }
  }
  groups::Member member = failed_member(group, made.sample_id);
  member.failure = fmt::format("{}: {}", settings_.function, failure);
  member.machine_failed = made.machine_failed;
  member.sample.endpoint = endpoint_counts(made);
  return member;
}

// Returns a sample that failed. A sample must have at least one token; this one's is not trained on.
groups::Member TurnSampler::failed_member(const Group& group, uint64_t sample_id) {
  groups::Member member;
  rl::Sample& sample = member.sample;
  sample.group_id = group.group_id;
  sample.sample_id = sample_id;
  sample.prompt = group.prompt;
  sample.completion = {group.prompt->tokens.back()};
  sample.rollout_logprobs = {0.0F};
  if (group.sampling.truncates()) sample.behavior_logprobs = {0.0F};
  sample.loss_mask = {0};
  sample.status = rl::SampleStatus::kAborted;
  sample.remove = true;
  return member;
}

void TurnSampler::end_calls(Session& session) {
  for (const uint64_t call : std::exchange(session.in_engine, {})) engine_.abort(call);
}

void TurnSampler::end_session(uint64_t sample_id) {
  const auto session = sessions_.find(sample_id);
  end_calls(session->second);
  engine_.release(sample_id);
  sessions_.erase(session);
}

void TurnSampler::abort(uint64_t key) {
  const auto found = groups_.find(key);
  if (found == groups_.end()) {
    std::erase_if(finished_, [&](const groups::SampledLoan& loan) { return loan.key == key; });
    return;
  }
  const Group& group = found->second;
  for (const uint64_t sample_id : group.sample_ids) {
    if (group.members.contains(sample_id)) continue;
    generators_.cancel(sample_id);
    end_session(sample_id);
  }
  groups_.erase(found);
  take_answers();
}

void TurnSampler::abort_all() {
  while (!groups_.empty()) abort(groups_.begin()->first);
  finished_.clear();
}

// The state of a function that runs cannot be kept: it makes the sample from its beginning when the loan is lent again.
void TurnSampler::pause_all() {
  for (auto& [key, group] : groups_) {
    groups::SampledLoan& loan = finished_.emplace_back();
    loan.key = key;
    for (const uint64_t sample_id : group.sample_ids) {
      const auto made = group.members.find(sample_id);
      if (made != group.members.end()) {
        loan.members.push_back(std::move(made->second));
        continue;
      }
      generators_.cancel(sample_id);
      end_session(sample_id);
      groups::Member& member = loan.members.emplace_back();
      member.is_paused = true;
      member.sample.group_id = group.group_id;
      member.sample.sample_id = sample_id;
      member.sample.prompt = group.prompt;
    }
  }
  groups_.clear();
  take_answers();
}

std::vector<groups::SampledLoan> TurnSampler::take_finished() { return std::exchange(finished_, {}); }

}  // namespace tandem::sampling
