#include "text/wandb.h"

#include <fmt/format.h>

#include "base/check.h"
#include "worker/child_process.h"

namespace tandem::text {

namespace {

constexpr const char* kWorker = "wandb_sink";
// The last call waits for what is on its way to the server. A run that is over should not wait much longer for that.
constexpr double kFinishSeconds = 30.0;

worker::WorkerConfig worker_config(worker::WorkerConfig config) {
  config.sandboxed = false;  // it talks to a server and starts a program of its own, and runs no code of the user's
  config.writable.reset();
  config.variables = {"WANDB_*",      "HTTP_PROXY",         "HTTPS_PROXY",     "ALL_PROXY",      "NO_PROXY",
                      "http_proxy",   "https_proxy",        "all_proxy",       "no_proxy",       "SSL_CERT_FILE",
                      "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "NETRC"};
  return config;
}

}  // namespace

SinkTarget wandb_target(const worker::WorkerConfig& config, const WandbRun& run) {
  const WandbConfig& wandb = run.config;
  return {.name = "Weights & Biases (--wandb-mode offline needs no server)",
          .what = fmt::format("Weights & Biases, run {}", wandb.run_id),
          .worker = kWorker,
          .config = worker_config(config),
          .open = {{"mode", wandb.mode},
                   {"project", wandb.project},
                   {"team", wandb.team},
                   {"group", wandb.group},
                   {"host", wandb.host},
                   {"run_id", wandb.run_id},
                   {"directory", wandb.directory},
                   {"name", run.name},
                   {"options", run.options}},
          .finish_s = kFinishSeconds};
}

void check_wandb(const worker::WorkerConfig& config, const WandbConfig& wandb) {
  try {
    worker::ChildProcess child(worker_config(config), kWorker);
    child.call("check", {{"mode", wandb.mode}, {"host", wandb.host}}, config.deadline_s);
  } catch (const worker::WorkerError& error) {
    throw EnvironmentError(fmt::format("--use-wandb: cannot start Weights & Biases: {}", error.what()));
  }
}

}  // namespace tandem::text
