#include "run/wandb_run.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <random>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/files.h"

namespace tandem::run {

namespace {

constexpr size_t kMaxIdBytes = 64;  // limit of Weights & Biases

// Returns whether the text is letters and digits alone: the id is part of file names and addresses.
bool is_run_id(std::string_view text) {
  return !text.empty() && text.size() <= kMaxIdBytes && std::ranges::all_of(text, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_';
  });
}

// Draws an id. No result depends on it, so it need not come from the run's seed; two runs with one seed are two runs
// there.
std::string new_run_id() {
  constexpr std::string_view kLetters = "0123456789abcdefghijklmnopqrstuvwxyz";
  constexpr size_t kLength = 8;  // length of the ids that the package makes
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
  TANDEM_USER_CHECK(is_run_id(id), path + ": holds no id of a run; remove it, or give --wandb-run-id");
  return id;
}

}  // namespace

void check_wandb(const config::OutputOptions& options) {
  if (!options.use_wandb) return;
  const std::string& id = options.wandb.run_id;
  TANDEM_USER_CHECK(id.empty() || is_run_id(id),
                    "--wandb-run-id: expects up to 64 letters, digits, - and _, as in the address of the run's page");
  text::check_wandb(worker::default_worker_config(), options.wandb);
}

std::optional<text::WandbRun> wandb_run(const config::OutputOptions& options, const checkpoint::RunDirectory& directory,
                                        const base::Json& values) {
  if (!options.use_wandb) return std::nullopt;
  text::WandbRun run{.config = options.wandb, .name = options.wandb.group, .options = values};
  const std::string path = directory.wandb_run_id_file(), kept = kept_run_id(path);
  std::string& id = run.config.run_id;
  if (id.empty()) id = kept.empty() ? new_run_id() : kept;
  if (id != kept) base::write_file_durably(path, id + "\n");
  if (run.config.directory.empty()) run.config.directory = directory.path();
  if (run.name.empty()) run.name = std::filesystem::absolute(directory.path()).filename().string();
  if (!options.wandb.disable_random_suffix) run.name += "_" + id;
  return run;
}

}  // namespace tandem::run
