#include "session/grader_setup.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/env.h"
#include "base/message_text.h"
#include "options/names.h"
#include "reward/reward_rules.h"

namespace tandem::session {

namespace {

std::string checked_token() {
  std::string token = base::reward_service_token();
  const bool is_plain = std::ranges::all_of(token, [](unsigned char c) { return c > 0x20 && c < 0x7F; });
  TANDEM_USER_CHECK(is_plain, "TANDEM_RM_TOKEN: has white space or a character that is not ASCII; set it to the token");
  return token;
}

reward::GraderConfig service_config(const config::RewardOptions& options, reward::GraderConfig base) {
  base.service =
      reward::RewardService{.url = options.rm_url, .token = checked_token(), .max_retries = options.rm_retries};
  base.python.clear();            // user code's interpreter; the service client runs in ours
  base.worker.variables.reset();  // user code's variables
  base.limits.num_processes =
      1;  // one process has as many requests in flight as it may; it waits, and computes nothing
  return base;
}

// Returns whether one of the rewards asks a service, or one that lines may ask for.
bool asks_service(const config::RewardOptions& options) {
  return std::ranges::any_of(options.sources(), [&](const config::RewardOptions::Source& source) {
    return std::ranges::count(options.rules_of(source), reward::kRemoteRule) > 0;
  });
}

reward::RewardSource source_config(const config::RewardOptions& options, const config::RewardOptions::Source& source,
                                   const reward::GraderConfig& base) {
  reward::RewardSource result;
  result.name = source.name;
  result.weight = source.weight;
  result.asks_service_first = source.rm_type == reward::kRemoteRule;
  if (source.is_model) return result;
  if (!source.custom_rm_path.empty()) {
    result.graders = base;
    result.graders->custom_rm_path = source.custom_rm_path;
    return result;
  }
  std::vector<std::string> rules = options.rules_of(source);
  if (std::erase(rules, reward::kRemoteRule) > 0) result.service = service_config(options, base);
  if (rules.empty()) return result;
  // Only functions have this key, so the dicts of built-in rewards are not asked for it.
  const bool has_key = std::ranges::any_of(rules, [&](const std::string& rule) {
    return std::ranges::count(reward::find_rule(rule)->keys, options.reward_key) > 0;
  });
  result.graders = base;
  result.graders->rm_types = std::move(rules);
  result.graders->limits.fork_each_call = false;  // built-in rewards run no code that a model wrote
  if (!has_key) result.graders->reward_key.clear();
  return result;
}

// A TRL function is given these next to the columns of the data; nothing else that it may name is given.
constexpr std::array<std::string_view, 3> kOfEveryLine = {"prompts", "completions", "completion_ids"};
constexpr size_t kMaxNames = 20;

void check_columns(const std::string& function, const std::vector<std::string>& needed, const std::string& label_key,
                   const std::vector<const PromptSet*>& data) {
  for (const PromptSet* set : data) {
    for (const std::string& name : needed) {
      if (has_column(*set, label_key, name)) continue;
      const std::set<std::string> columns = columns_of(*set, label_key);
      std::vector<std::string> names(kOfEveryLine.begin(), kOfEveryLine.end());
      names.insert(names.end(), columns.begin(), columns.end());
      const std::optional<std::string> nearest = options::nearest_name(name, names);
      const size_t num_more = names.size() - std::min(names.size(), kMaxNames);
      names.resize(names.size() - num_more);
      for (std::string& shown : names) shown = base::one_line(shown, 80);
      throw UserError(fmt::format("--custom-rm-path {}: there is no column {} in {}; there are {}{}{}", function, name,
                                  set->path, fmt::join(names, ", "),
                                  num_more > 0 ? fmt::format(" and {} more", num_more) : "",
                                  nearest ? fmt::format("; did you mean {}?", *nearest) : ""));
    }
  }
}

// The reward that grades a line: its own, or else the first of the source's.
std::string rule_of(const PromptLine& line, const reward::RewardSource& source) {
  if (!line.record.rm_type.empty()) return line.record.rm_type;
  return source.asks_service_first ? std::string(reward::kRemoteRule) : source.graders->rm_types.front();
}

bool checks_lines(const std::string& rule) {
  const reward::RewardRule* const found = reward::find_rule(rule);
  return found != nullptr && found->checks_lines;
}

constexpr size_t kLinesAtOnce = 1024;  // bounds the copies of lines that exist at once

// Has an empty response graded for each line whose reward checks lines, and refuses those whose grading fails.
void check_lines_of(const reward::RewardSource& source, const PromptSet& set, const Refuse& refuse) {
  if (!source.graders || source.graders->rm_types.empty()) return;  // the lines of a Python function are its own
  std::vector<size_t> lines;
  for (size_t i = 0; i < set.prompts.size(); ++i) {
    if (checks_lines(rule_of(set.prompts[i], source))) lines.push_back(i);
  }
  if (lines.empty()) return;
  reward::GraderConfig config = *source.graders;
  config.limits.num_processes = 1;
  config.warn_of_missing_layers = false;  // reported by the run's own graders
  reward::Graders graders(config);
  for (size_t begin = 0; begin < lines.size(); begin += kLinesAtOnce) {
    const size_t end = std::min(lines.size(), begin + kLinesAtOnce);
    std::map<size_t, std::string> faults;  // by index in `set`
    for (const size_t i : std::span(lines).subspan(begin, end - begin)) {
      const PromptLine& line = set.prompts[i];
      reward::GradeRequest request;
      request.group_id = request.sample_id = i;
      request.prompt = line.record.prompt;
      request.label = line.record.label;
      request.metadata = line.record.metadata;
      request.rm_type = line.record.rm_type;
      graders.submit({std::move(request)});
    }
    for (size_t num_graded = 0; num_graded < end - begin;) {
      for (reward::Grade& grade : graders.take_finished(1.0)) {
        ++num_graded;
        if (!grade.failed) continue;
        TANDEM_ENV_CHECK(!grade.gives_none(), "cannot check the lines of the data: " + grade.reason);
        faults.emplace(grade.sample_id, std::move(grade.reason));
      }
    }
    for (const auto& [i, reason] : faults) {
      const PromptLine& line = set.prompts[i];
      refuse(i, fmt::format("{}:{}: --rm-type {}: {}; mend or remove the line", data::parse_data_path(set.path).file,
                            line.record.line, rule_of(line, source), reason));
    }
  }
}

}  // namespace

RewardContext reward_context(const config::DataOptions& data, const config::RunMode& mode) {
  return {.label_key = data.lines.label_key, .metadata_key = data.lines.metadata_key, .arguments = mode.values};
}

reward::GraderConfig grader_config(const config::RewardOptions& options, const RewardContext& context) {
  reward::GraderConfig config;
  config.worker = worker::default_worker_config();
  for (const std::string& name : options.env) {
    TANDEM_USER_CHECK(base::is_set(name),
                      fmt::format("--rm-env {}: is not set in the environment; export it, or leave it out", name));
  }
  if (options.sandbox != "off") config.worker.variables = options.env;
  config.reward_key = options.reward_key;
  config.group_rm = options.group_rm;
  config.label_key = context.label_key;
  config.metadata_key = context.metadata_key;
  config.arguments = context.arguments;
  config.python = options.python;
  config.output_path = context.output_path;
  config.limits = options.limits;
  config.sandbox = options.sandbox == "off"       ? worker::Sandbox::kOff
                   : options.sandbox == "require" ? worker::Sandbox::kRequire
                                                  : worker::Sandbox::kAuto;
  return config;
}

reward::ScorerConfig scorer_config(const config::RewardOptions& options, const RewardContext& context) {
  reward::ScorerConfig config;
  config.shows_parts = options.is_sum();
  reward::GraderConfig base = grader_config(options, context);
  for (const config::RewardOptions::Source& source : options.sources()) {
    config.sources.push_back(source_config(options, source, base));
    base.warn_of_missing_layers = false;  // reported by the first
  }
  return config;
}

CheckLines line_check(const config::RewardOptions& options, const config::DataOptions& data) {
  return [options, data](const PromptSet& set, const Refuse& refuse) {
    config::RewardOptions own = options;
    own.line_types = rm_types_of(set);
    const RewardContext context = {.label_key = data.lines.label_key, .metadata_key = data.lines.metadata_key};
    for (const reward::RewardSource& source : scorer_config(own, context).sources) check_lines_of(source, set, refuse);
  };
}

void try_out_reward(const config::RewardOptions& options, const RewardContext& context,
                    const std::vector<const PromptSet*>& data) {
  RewardContext quiet = context;
  quiet.output_path.clear();
  for (reward::RewardSource& source : scorer_config(options, quiet).sources) {
    for (std::optional<reward::GraderConfig>* config : {&source.graders, &source.service}) {
      if (!*config) continue;
      // Other built-in rewards in our own interpreter are not tried out: nothing can be wrong with them.
      const bool reads_lines = std::ranges::any_of((*config)->rm_types, checks_lines);
      if (!(*config)->rm_types.empty() && options.python.empty() && !reads_lines) continue;
      (*config)->limits.num_processes = 1;
      (*config)->warn_of_missing_layers = false;  // reported by the run's own graders
      if ((*config)->service) (*config)->service->try_connection = true;
      const reward::Graders graders(**config);
      check_columns((*config)->custom_rm_path, graders.columns(), context.label_key, data);
    }
  }
}

void print_rewards(const config::RewardOptions& options, report::Report& report) {
  const std::string sum = options.sum_text();
  if (!sum.empty()) report.print(sum);
  const std::string pass = options.pass_text();
  if (!pass.empty()) report.print("pass@k counts samples with " + pass);
  if (!asks_service(options)) return;
  report.print(fmt::format(
      "remote_rm asks {}: the process that asks may open sockets, no other of this run can; what the service answers "
      "is no value, so another run, or one that resumes, need not have the same bits",
      base::one_line(options.rm_url.substr(0, options.rm_url.find('?')), 200)));
}

}  // namespace tandem::session
