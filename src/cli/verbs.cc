#include "cli/verbs.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <system_error>
#include <type_traits>
#include <vector>

#include "base/env.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/sha256.h"
#include "base/utf8.h"
#include "bench/bench.h"
#include "cli/command_line.h"
#include "cli/placement.h"
#include "cli/ranks.h"
#include "config/other_trainers/other_trainers.h"
#include "config/other_trainers/unsupported_flags.h"
#include "device_check/device_check.h"
#include "mesh/launch/launch.h"
#include "mesh/launch/launcher_link.h"
#include "options/options.h"
#include "plan/plan.h"
#include "run/verbs.h"
#include "scorer/serve_scores.h"
#include "session/read_model.h"
#include "tandem/error.h"

namespace tandem::cli {

namespace {

// Returns the values of all options as user code may see them: paths as they are, secrets of the environment as
// "[NAME]".
base::Json without_secrets(base::Json values) {
  const base::Redaction redaction;
  const auto hide = [&](base::Json& value) {
    if (value.is_string()) value = redaction.hide_secrets(value.get_ref<const std::string&>());
  };
  for (base::Json& value : values) {
    hide(value);
    if (!value.is_array()) continue;
    for (base::Json& element : value) hide(element);
  }
  return values;
}

// Returns the files that --config names.
std::vector<std::string> config_files(const std::vector<std::string>& arguments) {
  constexpr std::string_view kFlag = "--config", kWithValue = "--config=";
  std::vector<std::string> files;
  for (size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].starts_with(kWithValue)) files.push_back(arguments[i].substr(kWithValue.size()));
    if (arguments[i] == kFlag && i + 1 < arguments.size()) files.push_back(arguments[i + 1]);
  }
  return files;
}

// Adds the texts whose fingerprints a checkpoint would remember, by fingerprint.
void add_texts(const options::Options& options, std::map<std::string, std::string>& texts) {
  const base::Redaction redaction;
  const std::string home = base::home_directory();
  const base::Json values = options.values();
  for (const auto& [name, fingerprint] : options.result_options()) {
    if (!base::is_fingerprint(fingerprint)) continue;
    const base::Json& value = values[name];
    std::vector<std::string> words, short_words;
    if (value.is_string()) words.push_back(value);
    if (value.is_array()) words = value.get<std::vector<std::string>>();
    for (const std::string& word : words) short_words.push_back(base::shorten_home(word, home));
    for (const auto& some : {words, short_words}) {
      const std::string text = fmt::format("{}", fmt::join(some, " "));
      if (base::fingerprint(name, text) == fingerprint) texts[fingerprint] = redaction.hide_secrets(text);
    }
  }
}

// Adds the texts of the run that --load names, as its config.toml has them.
template <typename Config>
void add_texts_of_run(const std::string& run, std::map<std::string, std::string>& texts) {
  const std::string path = run + "/config.toml";
  if (run.empty() || !base::file_exists(path)) return;
  Config config;
  options::Options options(base::home_directory());
  config.visit(options);
  try {
    options.parse({"--config", path});
  } catch (const UserError&) {  // it was edited, or is of another version: what could be read is shown all the same
  }
  add_texts(options, texts);
}

// Returns the folder in which the relative paths of a run's config.toml begin (options/toml.cc); "" if that folder
// has no name in UTF-8.
std::string working_directory_text() {
  std::error_code error;
  const std::string path = std::filesystem::current_path(error).string();
  if (error || !base::is_utf8(path)) return "";
  const std::string shown = base::shorten_home(path, base::home_directory());
  return fmt::format("\n# where the relative paths begin\nworking-directory = {}\n", base::dump_json(shown));
}

// Runs with --fit: a run that its memory plan refuses is started again with the change that the refusal names, as if it
// had been typed, so that config.toml, fingerprints and messages are those of the changed run. It adds --no-fit, so
// that a second refusal is final.
int run_fitting(const Verb& verb, const config::TrainConfig& config, const config::RunMode& mode,
                const mesh::Launch& launch, std::vector<std::string> arguments) {
  check_fits_alone(launch);
  try {
    return run::train(config, mode, launch);
  } catch (const plan::DoesNotFit& refused) {
    if (refused.flags().empty()) throw;
    base::log_info("--fit: {}; it runs with {}", refused.needs(), refused.cheapest_change());
    std::istringstream words(refused.flags());
    for (std::string word; words >> word;) arguments.push_back(word);
    arguments.emplace_back("--no-fit");
  }
  return verb.run(verb, arguments);
}

template <typename Config>
bool has_option(const std::string& name) {
  Config config;
  options::Options options;
  config.visit(options);
  const base::Json values = options.values();
  const bool is_negated = name.starts_with("no-") && values.contains(name.substr(3));
  return is_negated ? values[name.substr(3)].is_boolean() : values.contains(name);
}

// Gives the options of an engine what the user left to the device.
template <typename Config>
void fill_in(Config& config) {
  if constexpr (requires { config.rollout.limits; }) {
    config.rollout.fill_in(config.model.device);
  } else if constexpr (requires { config.train; }) {
    fill_in(config.train);
  }
}

// Handles every verb alike: declares its options, reads them, and prints or runs.
template <typename Config, auto kRun>
int run_verb(const Verb& verb, const std::vector<std::string>& arguments) {
  Config config;
  config::RunMode mode;
  options::Options options(base::home_directory());
  config.visit(options);
  bool quiet = false;
  options.option(mode.dry_run, "dry-run", "general", "check everything, read the data, say what would happen, and stop")
      .does_not_affect_results();
  options
      .option(
          quiet, "quiet", "general",
          "show warnings and errors, and of what the command does its result alone: no progress, no line for each step")
      .does_not_affect_results();
  declare_other_names(options, verb.name);
  mode.values_where_absent = options.values_where_absent();
  const options::ParsedAction action = options.parse(config::without_harmless_flags(arguments));
  if (was_answered(action, options, fmt::format("tandem {}", verb.name), verb.description)) return 0;
  fill_in(config);
  base::set_log_level(quiet ? base::LogLevel::kWarning : base::LogLevel::kInfo);
  mode.config_text = base::Redaction().hide_secrets(options.text_to_repeat() + working_directory_text());
  mode.result_options = options.result_options();
  mode.config_files = config_files(arguments);
  mode.idle_flags = options.idle_texts();
  mode.values = without_secrets(options.values());
  if constexpr (requires { config.model.hf_checkpoint; }) {
    const auto is_bf16 = [](const std::string& word) { return word == "--bf16" || word == "--bf16=true"; };
    if (std::ranges::any_of(arguments, is_bf16)) session::check_bf16(config.model);
  }
  if constexpr (requires { config.checkpoints.load; }) {
    add_texts(options, mode.texts);
    add_texts_of_run<Config>(config.checkpoints.load, mode.texts);
  }
  if constexpr (requires { ranked_run(config); }) {  // a verb that several processes may run together
    const RankedRun run = ranked_run(config);
    const mesh::Launch launch = mesh::own_launch(run.placement);
    if (const std::optional<int> code = start_ranks(run, mode, launch, arguments)) return *code;
    const mesh::Heartbeat heartbeat(launch.processes.launcher_descriptor);
    if constexpr (std::is_same_v<Config, config::TrainConfig>) {
      if (config.memory.fit) return run_fitting(verb, config, mode, launch, arguments);
    }
    return kRun(config, mode, launch);
  } else {
    return kRun(config, mode);
  }
}

constexpr auto kVerbs = std::to_array<Verb>({
    {"train", "GRPO: sample, score, train, with trainer and engine on one copy of the weights",
     run_verb<config::TrainConfig, run::train>, true, has_option<config::TrainConfig>},
    {"sft", "supervised training on conversations, or on prompts with responses",
     run_verb<config::SftConfig, run::train_supervised>, true, has_option<config::SftConfig>},
    {"launch",
     "`tandem train` or `tandem sft` as several processes, one for each device, on this machine or on several",
     launch_by_hand, true},
    {"placement", "what a cluster has to reserve for a run of train or sft, as JSON: what python -m tandem.ray reads",
     print_placement},
    {"generate", "completions of each prompt of a file", run_verb<config::GenerateConfig, run::generate>, false,
     has_option<config::GenerateConfig>},
    {"engine", "completions for requests on standard input, a JSON object a line: what the Python API talks to",
     run_verb<config::EngineProcessConfig, run::answer_requests>, false, has_option<config::EngineProcessConfig>},
    {"score", "log-probs and entropies of given sequences", run_verb<config::ScoreConfig, run::score>, false,
     has_option<config::ScoreConfig>},
    {"scorer", "a process that only scores, for runs on other devices: the teacher of --opd-teacher-address",
     run_verb<config::ScorerConfig, scorer::serve_scores>, false, has_option<config::ScorerConfig>},
    {"eval", "mean reward and pass@k of a checkpoint", run_verb<config::EvalConfig, run::evaluate>, false,
     has_option<config::EvalConfig>},
    {"export", "what a run exported, or another checkpoint, as a plain Hugging Face directory",
     run_verb<config::ExportConfig, run::export_checkpoint>, false, has_option<config::ExportConfig>},
    {"plan", "the memory that `tandem train` would take, by what and when; loads nothing",
     run_verb<config::PlanConfig, run::print_plan>, false, has_option<config::PlanConfig>},
    {"view", "a run, or up to ten side by side, as one HTML page: curves, times, memory, samples",
     run_verb<config::ViewConfig, run::view>, false, has_option<config::ViewConfig>},
    {"bench", "how fast this machine samples and trains, and whether both agree; needs no file",
     run_verb<config::BenchConfig, bench::bench>, false, has_option<config::BenchConfig>},
    {"device", "which device a run would have; with --check, whether it keeps what exactness rests on",
     run_verb<config::DeviceConfig, device_check::check_device>, false, has_option<config::DeviceConfig>},
});

}  // namespace

std::span<const Verb> verbs() { return kVerbs; }

void declare_other_names(options::Options& options, const std::string& verb) {
  config::declare_other_trainers(options);
  options.known_to_other_commands([verb](const std::string& name) -> std::string {
    for (const Verb& other : kVerbs) {
      if (other.has_option == nullptr || other.name == verb || !other.has_option(name)) continue;
      return fmt::format("is a flag of `tandem {}` and not of `tandem {}`", other.name, verb);
    }
    return "";
  });
}

}  // namespace tandem::cli
