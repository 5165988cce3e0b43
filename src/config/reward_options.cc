#include "config/reward_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <iterator>
#include <span>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "base/message_text.h"
#include "base/size.h"
#include "reward/reward_rules.h"

namespace tandem::config {

namespace {

constexpr const char* kFunction = "--custom-rm-path FILE.py:function";

// Returns "exact, math, dapo, ... or random": the names without the prefix boxed_.
std::string short_rule_names() {
  std::string names;
  for (const reward::RewardRule& rule : reward::kRewardRules) {
    const bool is_last = &rule == &reward::kRewardRules.back();
    names += (names.empty() ? "" : is_last ? " or " : ", ") + std::string(rule.name);
  }
  return names;
}

const reward::RewardRule& rule_named(const std::string& name) {
  const reward::RewardRule* const rule = reward::find_rule(name);
  TANDEM_CHECK(rule != nullptr, "no reward is called", name);
  return *rule;
}

bool has_key(const std::string& rm_type, const std::string& key) {
  const std::span<const std::string_view> keys = rule_named(rm_type).keys;
  return std::ranges::find(keys, key) != keys.end();
}

// Returns "function" for "FILE.py:function".
std::string function_name(const std::string& path) { return path.substr(path.rfind(':') + 1); }

// Checks http://HOST:PORT/PATH. It refuses parts that would be misunderstood, or shown in files.
void check_url(const std::string& url) {
  const std::string remedy = "write http://HOST:PORT/PATH, or https://...";
  const size_t begin = url.find("://");
  const std::string scheme = url.substr(0, std::min(begin, url.size()));
  TANDEM_USER_CHECK(begin != std::string::npos && (scheme == "http" || scheme == "https"),
                    "--rm-url: the address does not begin with http:// or https://; " + remedy);
  const std::string rest = url.substr(begin + 3);
  const std::string host = rest.substr(0, rest.find_first_of("/?#"));
  TANDEM_USER_CHECK(host.find('@') == std::string::npos,
                    "--rm-url: holds a user name or password, which the files of the run would show; put a token into "
                    "the environment variable TANDEM_RM_TOKEN, which is sent as Authorization: Bearer");
  TANDEM_USER_CHECK(!host.empty() && host.front() != ':' && host.back() != ':',
                    "--rm-url: names no host, or no port behind the colon; " + remedy);
  const bool is_plain = std::ranges::all_of(url, [](unsigned char c) { return c > 0x20 && c < 0x7F; });
  TANDEM_USER_CHECK(is_plain && url.find('#') == std::string::npos,
                    "--rm-url: has white space, a # or a character that is not ASCII; write it as %XX");
}

// Refuses Tandem's own variables, which identify a rank and its secret: no reward needs them.
void check_env(const std::string& name) {
  const auto is_part = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
  const bool is_name = !name.empty() && std::ranges::all_of(name, is_part) && std::isdigit(name.front()) == 0;
  TANDEM_USER_CHECK(is_name,
                    fmt::format("--rm-env {}: give the name of a variable alone, such as DATA_DIR; its value is "
                                "the one that it has in the environment",
                                name));
  TANDEM_USER_CHECK(!name.starts_with("TANDEM_"),
                    fmt::format("--rm-env {}: is Tandem's own, which no reward code sees; leave it out", name));
}

double finite_number(const std::string& text) {
  double value = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool is_number = error == std::errc() && end == text.data() + text.size() && std::isfinite(value);
  TANDEM_USER_CHECK(is_number, "--rm-failure-reward", text + ": give lowest, drop or a finite number such as -1");
  return value;
}

}  // namespace

void RewardOptions::visit(options::Options& options) {
  const char* const group = "reward";
  options
      .option(rm_type, "rm-type", group,
              "built-in rewards, of which docs/REWARDS.md has a table: the label exactly, the label as a boxed or last "
              "number (math), ...; boxed_NAME looks at the last box of the response alone. Of several rewards, those "
              "of --custom-rm-path too, the weighted sum counts. metadata.rm_type of a line takes this one's place")
      .one_or_more()
      .one_of(reward::rule_names())
      .unsupported({"boxed_ifbench", "boxed_remote_rm"},
                   fmt::format("is known from slime and not in Tandem; use {} or {}, or {}", short_rule_names(),
                               reward::kRemoteRule, kFunction))
      .unsupported({"ifeval", "ifeval_*", "if_eval", "instruction_following"},
                   "is none of Tandem's names; ifbench checks the instructions of IFEval and of IFBench");
  options
      .option(custom_rm_path, "custom-rm-path", group,
              "Python functions that give rewards, FILE.py:function, in the TRL, verl or slime dialect each")
      .one_or_more()
      .path()
      .does_not_affect_results();
  options
      .option(
          rm_model, "rm-model", group,
          "Hugging Face directory of a reward model (Qwen3ForSequenceClassification, ...): a reward is its score of "
          "the conversation, by its own chat template and tokenizer. It is scored on the run's device once a rollout "
          "is sampled")
      .path();
  options
      .option(reward_weights, "reward-weights", group,
              "weight of each reward in the sum: those of --rm-type first, that of --rm-model last; unset: 1 each")
      .one_or_more()
      .finite();
  options
      .option(rm_url, "rm-url", group,
              "address of a program that computes rewards (remote_rm), http://HOST:PORT/PATH: each sample is one POST "
              "of {\"prompt\", \"response\", \"label\"}, answered with a number, or an object with --reward-key. Only "
              "the process that asks opens sockets for rewards")
      .does_not_affect_results();
  options
      .option(rm_retries, "rm-retries", group,
              "how often a request that --rm-url could not answer (no connection, HTTP 429 or 5xx) is made again, "
              "within --rm-timeout")
      .at_least(0)
      .at_most(100)
      .does_not_affect_results()
      .used_if([this] { return !rm_url.empty(); }, "--rm-url");
  options.option(reward_key, "reward-key", group, "number to take when a reward is a dict; unset: score");
  options
      .option(group_rm, "group-rm", group,
              "a slime function takes all samples of a group at once (TRL functions always do)")
      .used_if([this] { return !custom_rm_path.empty(); }, "--custom-rm-path");
  options.option(python, "rm-python", group, "interpreter of the reward code, 3.9 or newer; unset: Tandem's own")
      .path()
      .does_not_affect_results();
  options
      .option(env, "rm-env", group,
              "variables of the environment that reward code and generate functions see in the sandbox, beside the few "
              "that docs/REWARDS.md lists: NAME, one or more")
      .one_or_more()
      .does_not_affect_results();
  options
      .option(limits.num_processes, "rm-num-workers", group,
              "processes that compute rewards, for each reward of the sum; the one that asks --rm-url is always alone")
      .at_least(1)
      .at_most(base::kMaxCount)
      .at_most(256)
      .does_not_affect_results();
  options
      .option(limits.fork_each_call, "rm-fork-each-call", group,
              "make each call of --custom-rm-path in a fresh fork, so that nothing that a call leaves in its process "
              "meets the next one: for rewards that exec() what a model wrote")
      .does_not_affect_results()
      .used_if([this] { return !custom_rm_path.empty(); }, "--custom-rm-path");
  options
      .option(limits.max_calls, "rm-concurrency", group,
              "calls of an async reward function, or requests to --rm-url, that one process runs at once")
      .at_least(1)
      .at_most(base::kMaxCount)
      .at_most(4096)
      .does_not_affect_results()
      .used_if([this] { return !custom_rm_path.empty() || !rm_url.empty(); }, "--custom-rm-path or --rm-url");
  options
      .option(
          limits.deadline_s, "rm-timeout", group,
          "seconds that a call of the reward may take for each of its samples: it has one sample, or a group of them")
      .greater_than(0)
      .does_not_affect_results();
  options.option(limits.memory_bytes, "rm-memory-bytes", group, "memory limit of each process that computes rewards")
      .bytes()
      .at_least(64 << 20)
      .does_not_affect_results();
  options
      .option(
          sandbox, "rm-sandbox", group,
          "keep reward code from network, secrets and writing outside a scratch folder: auto (as far as this machine "
          "can), require (refuse a machine that cannot) or off")
      .one_of({"auto", "require", "off"})
      .does_not_affect_results();
  options
      .option(failure_reward, "rm-failure-reward", group,
              "what a sample gets whose reward raised, hung, crashed or was no number: lowest (of built-in rewards "
              "their lowest; of a function 0, or the lowest reward of its group if that is below 0), drop (the sample "
              "is left out) or a number. Faults of the machine always drop it")
      .default_was_new();
  options
      .option(pass_reward, "pass-reward", group,
              "reward by which pass@k judges a sample, by its name in rewards/NAME: an rm-type or a function's name; "
              "unset: the first")
      .does_not_affect_results();
  options
      .option(pass_threshold, "pass-threshold", group,
              "value from which on that reward, before its weight, lets a sample pass")
      .finite()
      .does_not_affect_results();
}

std::vector<std::string> RewardOptions::rm_types() const {
  if (!rm_type.empty() || !custom_rm_path.empty() || !rm_model.empty()) return rm_type;
  return {rm_url.empty() ? "" : std::string(reward::kRemoteRule)};
}

std::vector<RewardOptions::Source> RewardOptions::sources() const {
  std::vector<Source> sources;
  std::set<std::string> names;
  const auto add = [&](const std::string& name, const std::string& rule, const std::string& function,
                       bool is_model = false) {
    std::string own = name;
    for (int number = 2; !names.insert(own).second; ++number) own = fmt::format("{}_{}", name, number);
    const size_t index = sources.size();
    const double weight = index < reward_weights.size() ? reward_weights[index] : 1.0;
    sources.push_back(
        {.name = own, .rm_type = rule, .custom_rm_path = function, .weight = weight, .is_model = is_model});
  };
  for (const std::string& type : rm_types()) add(type.empty() ? "rm_type" : type, type, "");
  for (const std::string& path : custom_rm_path) add(function_name(path), "", path);
  if (!rm_model.empty()) add("rm_model", "", "", /*is_model=*/true);
  return sources;
}

std::string RewardOptions::sum_text() const {
  if (!is_sum()) return "";
  std::vector<std::string> terms;
  for (const Source& source : sources()) terms.push_back(fmt::format("{:g} x {}", source.weight, source.name));
  return fmt::format("rewards: {}", fmt::join(terms, " + "));
}

std::vector<std::string> RewardOptions::rules_of(const Source& source) const {
  std::vector<std::string> rules;
  if (!source.custom_rm_path.empty() || source.is_model) return rules;
  if (!source.rm_type.empty()) rules.push_back(source.rm_type);
  for (const std::string& type : line_types) {
    if (type != source.rm_type) rules.push_back(type);
  }
  return rules;
}

void RewardOptions::check() const {
  const std::vector<Source> all = sources();
  std::vector<std::string> names;
  for (const Source& source : all) names.push_back(source.name);
  TANDEM_USER_CHECK(reward_weights.empty() || reward_weights.size() == all.size(),
                    fmt::format("--reward-weights: {} given for {} ({}); give one for each, in this order",
                                base::counted(static_cast<int64_t>(reward_weights.size()), "weight"),
                                base::counted(static_cast<int64_t>(all.size()), "reward"), fmt::join(names, ", ")));
  for (const std::string& path : custom_rm_path) {
    TANDEM_USER_CHECK(!function_name(path).empty() && path.rfind(':') != std::string::npos && path.front() != ':',
                      fmt::format("--custom-rm-path {}: write it as FILE.py:FUNCTION", path));
  }
  const bool asks_service = std::ranges::find(rm_type, reward::kRemoteRule) != rm_type.end();
  TANDEM_USER_CHECK(!asks_service || !rm_url.empty(), "--rm-type remote_rm: needs --rm-url http://HOST:PORT/PATH");
  if (!rm_url.empty()) check_url(rm_url);
  check_key("--reward-key", reward_key);
  for (const std::string& name : env) check_env(name);
  TANDEM_USER_CHECK(
      pass_reward.empty() || std::ranges::find(names, pass_reward) != names.end(),
      fmt::format("--pass-reward {}: no reward has that name; give one of {}", pass_reward, fmt::join(names, ", ")));
  failure();
}

RewardOptions::Source RewardOptions::pass_source() const {
  std::vector<Source> all = sources();
  TANDEM_CHECK(!all.empty(), "nothing gives a reward");
  const auto named = std::ranges::find(all, pass_reward, &Source::name);
  return named == all.end() ? all.front() : *named;
}

PassRule RewardOptions::pass_rule() const { return {.reward = pass_source().name, .threshold = pass_threshold}; }

std::string PassRule::text() const { return fmt::format("{} >= {:g}", reward, threshold); }

std::string RewardOptions::pass_text() const {
  return sources().size() > 1 || pass_threshold != 1.0 ? pass_rule().text() : "";
}

void RewardOptions::check_some_pass() const {
  const std::optional<double> lowest = lowest_of(pass_source());
  if (!lowest) return;
  const PassRule rule = pass_rule();
  TANDEM_USER_CHECK(rule.passes(reward::kHighestReward),
                    fmt::format("--pass-threshold {:g}: {} is {:g} at most, so no sample could ever pass; give {:g} or "
                                "less",
                                rule.threshold, rule.reward, reward::kHighestReward, reward::kHighestReward));
  TANDEM_USER_CHECK(!reward_key.empty() || !rule.passes(*lowest),
                    fmt::format("--pass-threshold {:g}: {} is {:g} at least, so every sample would pass; give more",
                                rule.threshold, rule.reward, *lowest));
}

void RewardOptions::check_key(const std::string& flag, const std::string& key) const {
  if (rm_type.empty() || !custom_rm_path.empty() || key.empty()) return;
  if (std::ranges::find(rm_type, reward::kRemoteRule) != rm_type.end()) return;
  if (std::ranges::any_of(rm_type, [&](const std::string& type) { return has_key(type, key); })) return;
  const std::span<const std::string_view> keys = rule_named(rm_type.front()).keys;
  const std::string lacks = rm_type.size() > 1 ? "have no number of that name"
                            : keys.empty()     ? "gives one number, without keys"
                                               : fmt::format("has the numbers {}", fmt::join(keys, " and "));
  throw UserError(fmt::format("{} {}: {} {}; leave it out", flag, key, name(), lacks));
}

void RewardOptions::check_url_is_asked() const {
  if (rm_url.empty() || line_types.contains(std::string(reward::kRemoteRule))) return;
  const std::vector<std::string> types = rm_types();
  if (std::ranges::find(types, reward::kRemoteRule) != types.end()) return;
  TANDEM_USER_CHECK(
      !custom_rm_path.empty() && sandbox == "off",
      fmt::format("--rm-url: no reward asks it; add --rm-type remote_rm, or leave it out{}",
                  custom_rm_path.empty() ? "" : " (a function that asks it itself needs --rm-sandbox off)"));
}

std::string RewardOptions::name() const {
  std::string name;
  const std::vector<std::string> types = rm_types();
  if (types.size() == 1 && types.front().empty()) return "metadata.rm_type";
  const auto add = [&name](const std::string& flag, const std::string& values) {
    if (!values.empty()) name += fmt::format("{}{} {}", name.empty() ? "" : " ", flag, values);
  };
  add("--rm-type", fmt::format("{}", fmt::join(types, " ")));
  add("--custom-rm-path", fmt::format("{}", fmt::join(custom_rm_path, " ")));
  add("--rm-model", rm_model);
  return name;
}

std::optional<double> RewardOptions::lowest_of(const Source& source) const {
  std::optional<double> lowest;
  for (const std::string& rule : rules_of(source)) {
    if (rule == reward::kRemoteRule) return std::nullopt;
    lowest = std::min(lowest.value_or(reward::kHighestReward), rule_named(rule).lowest_reward);
  }
  return lowest;
}

std::optional<double> RewardOptions::lowest_reward() const {
  if (!reward_key.empty()) return std::nullopt;
  double sum = 0.0;
  for (const Source& source : sources()) {
    const std::optional<double> lowest = lowest_of(source);
    if (!lowest) return std::nullopt;
    sum += source.weight * (source.weight < 0.0 ? reward::kHighestReward : *lowest);
  }
  return sum;
}

FailureReward RewardOptions::failure() const {
  if (failure_reward == "drop") return {.drops = true, .reward = std::nullopt};
  if (failure_reward == "lowest") return {.drops = false, .reward = lowest_reward()};
  return {.drops = false, .reward = finite_number(failure_reward)};
}

DataOptions RewardOptions::data(DataOptions base) const {
  const std::vector<std::string> types = rm_types();
  if (types.empty()) return base;  // only functions: "rm_type" is theirs to read
  const auto label_is = [](reward::LabelKind kind) {
    return [kind](const std::string& type) {
      const reward::RewardRule* const rule = reward::find_rule(type);
      return rule != nullptr && rule->label == kind;
    };
  };
  const auto comparing = std::ranges::find_if(types, label_is(reward::LabelKind::kScalar));
  const auto testing = std::ranges::find_if(types, label_is(reward::LabelKind::kTests));
  base.lines.label_holds_tests = comparing == types.end();
  const auto needing = base.lines.label_holds_tests ? testing : comparing;
  if (needing != types.end()) base.lines.label_needed_by = "--rm-type " + *needing;
  data::LineRewards& rewards = base.lines.rewards;
  rewards.names = reward::rule_names();
  if (rm_url.empty()) {
    std::erase(rewards.names, reward::kRemoteRule);
    rewards.hint = "; remote_rm needs --rm-url";
  }
  std::ranges::copy_if(rewards.names, std::back_inserter(rewards.need_label), label_is(reward::LabelKind::kScalar));
  std::ranges::copy_if(rewards.names, std::back_inserter(rewards.need_tests), label_is(reward::LabelKind::kTests));
  if (types.front().empty()) {
    rewards.needed = fmt::format(
        "no reward is given, neither by a flag nor here (rm_type in the metadata of a line): give --rm-type {}, or {}; "
        "--rm-type none where a teacher alone is learnt from",
        short_rule_names(), kFunction);
  }
  if (types.size() > 1) {
    rewards.refused = fmt::format(
        "takes the place of --rm-type, and there are {} of it ({}); give one, or take rm_type out of the lines",
        types.size(), fmt::join(types, ", "));
  }
  return base;
}

}  // namespace tandem::config
