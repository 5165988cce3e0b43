#include "run/trackers.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <initializer_list>
#include <random>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/files.h"
#include "base/log.h"
#include "text/trackers.h"
#include "worker/worker_config.h"

namespace tandem::run {

namespace {

constexpr size_t kMaxIdBytes = 64;  // limit of Weights & Biases, which is below the others'

// Returns whether the text is letters and digits alone: the id is part of file names and addresses.
bool is_run_id(std::string_view text) {
  return !text.empty() && text.size() <= kMaxIdBytes && std::ranges::all_of(text, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_';
  });
}

// Returns whether an address is SCHEME://NAME:PASSWORD@HOST.
bool has_password(std::string_view address) {
  const size_t scheme = address.find("://");
  if (scheme == std::string_view::npos) return false;
  const std::string_view host = address.substr(scheme + 3, address.find('/', scheme + 3) - scheme - 3);
  const size_t at = host.rfind('@');
  return at != std::string_view::npos && host.substr(0, at).find(':') != std::string_view::npos;
}

// Draws an id. No result depends on it, so it need not come from the run's seed; two runs with one seed are two runs
// there.
std::string new_run_id() {
  constexpr std::string_view kLetters = "0123456789abcdefghijklmnopqrstuvwxyz";
  constexpr size_t kLength = 8;  // length of the ids that Weights & Biases' package makes
  std::random_device device;
  std::uniform_int_distribution<size_t> letter(0, kLetters.size() - 1);
  std::string id;
  for (size_t i = 0; i < kLength; ++i) id += kLetters[letter(device)];
  return id;
}

std::string kept_run_id(const std::string& path) {
  if (!base::file_exists(path)) return "";
  std::string id = base::read_file(path, kMaxIdBytes + 1);
  while (id.ends_with('\n')) id.pop_back();
  TANDEM_USER_CHECK(is_run_id(id), path + ": holds no id of a run; remove it, and the run gets a new one there");
  return id;
}

// Returns the id of the run in a tracker, and keeps it in the directory. `given` beats the one that is kept.
std::string run_id(const std::string& given, const std::string& path) {
  const std::string kept = kept_run_id(path);
  const std::string id = !given.empty() ? given : kept.empty() ? new_run_id() : kept;
  if (id != kept) base::write_file_durably(path, id + "\n");
  return id;
}

// Warns of flags that do nothing because the tracker is not used.
void warn_of_idle_flags(bool is_used, const std::string& use_flag,
                        std::initializer_list<std::pair<const char*, const std::string&>> flags) {
  if (is_used) return;
  for (const auto& [flag, value] : flags) {
    if (!value.empty()) base::log_warning("{} {}: does nothing without {}", flag, value, use_flag);
  }
}

}  // namespace

void check_trackers(const config::TrackerOptions& options) {
  const worker::WorkerConfig worker = worker::default_worker_config();
  warn_of_idle_flags(options.use_wandb, "--use-wandb",
                     {{"--wandb-mode", options.wandb.mode},
                      {"--wandb-project", options.wandb.project},
                      {"--wandb-team", options.wandb.team},
                      {"--wandb-group", options.wandb.group},
                      {"--wandb-run-id", options.wandb.run_id},
                      {"--wandb-dir", options.wandb.directory},
                      {"--wandb-host", options.wandb.host}});
  warn_of_idle_flags(options.use_trackio, "--use-trackio",
                     {{"--trackio-project", options.trackio.project},
                      {"--trackio-run-name", options.trackio.run_name},
                      {"--trackio-space-id", options.trackio.space_id},
                      {"--trackio-dir", options.trackio.directory}});
  if (options.use_wandb) {
    const std::string& id = options.wandb.run_id;
    TANDEM_USER_CHECK(id.empty() || is_run_id(id),
                      "--wandb-run-id: expects up to 64 letters, digits, - and _, as in the address of the run's page");
    text::check_tracker(worker, text::TrackerKind::kWandb, tracker_config(options.wandb));
  }
  if (options.use_trackio) text::check_tracker(worker, text::TrackerKind::kTrackio, tracker_config(options.trackio));
  TANDEM_USER_CHECK(!has_password(options.mlflow.tracking_uri),
                    "--mlflow-tracking-uri: a password on a command line is seen by all users of the machine; set "
                    "MLFLOW_TRACKING_PASSWORD, or the whole address as MLFLOW_TRACKING_URI");
  warn_of_idle_flags(options.use_mlflow, "--use-mlflow",
                     {{"--mlflow-tracking-uri", options.mlflow.tracking_uri},
                      {"--mlflow-experiment-name", options.mlflow.experiment_name},
                      {"--mlflow-run-name", options.mlflow.run_name}});
  if (options.use_mlflow) text::check_tracker(worker, text::TrackerKind::kMlflow, tracker_config(options.mlflow));
}

std::vector<text::SinkTarget> trackers(const config::TrackerOptions& options, const checkpoint::RunDirectory& directory,
                                       const base::Json& values) {
  std::vector<text::SinkTarget> targets;
  // `name` is the user's; `with_id` puts the id after it.
  const auto add = [&](text::TrackerKind kind, const base::Json& config, const std::string& given_id, std::string name,
                       bool with_id) {
    const std::string id = run_id(given_id, directory.tracker_run_id_file(text::tracker(kind).key));
    if (name.empty()) name = std::filesystem::absolute(directory.path()).filename().string();
    if (with_id) name += "_" + id;
    targets.push_back(
        text::tracker_target(worker::default_worker_config(),
                             {.kind = kind, .config = config, .run_id = id, .name = name, .options = values}));
  };
  if (options.use_wandb) {
    text::WandbConfig wandb = options.wandb;
    if (wandb.directory.empty()) wandb.directory = directory.path();
    add(text::TrackerKind::kWandb, tracker_config(wandb), wandb.run_id, wandb.group, !wandb.disable_random_suffix);
  }
  // trackio finds a run by its name alone, so the name holds the id.
  if (options.use_trackio)
    add(text::TrackerKind::kTrackio, tracker_config(options.trackio), "", options.trackio.run_name, true);
  if (options.use_mlflow)
    add(text::TrackerKind::kMlflow, tracker_config(options.mlflow), "", options.mlflow.run_name, false);
  return targets;
}

}  // namespace tandem::run
