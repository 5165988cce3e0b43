#include "cli/ranks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <optional>

#include "base/check.h"
#include "base/env.h"
#include "base/files.h"
#include "base/log.h"
#include "base/printable.h"
#include "cli/command_line.h"
#include "cli/restarts.h"
#include "config/other_trainers/unsupported_flags.h"
#include "mesh/launch/launcher.h"
#include "options/options.h"
#include "tandem/error.h"

namespace tandem::cli {

namespace {

struct LaunchOptions {
  int64_t nproc_per_node = 1, nnodes = 1, node_rank = 0;
  std::string master_addr = "127.0.0.1";
  int64_t master_port = 0;
  int64_t max_restarts = 0;
  bool end_with_stdin = false;

  void visit(options::Options& options);
  void check() const;
};

void LaunchOptions::visit(options::Options& options) {
  const char* const group = "launch";
  options.option(nproc_per_node, "nproc-per-node", group, "processes to start on this machine, one for each device")
      .at_least(1)
      .at_most(1024);
  options.option(nnodes, "nnodes", group, "machines; give the same command on each, but for --node-rank")
      .at_least(1)
      .at_most(4096);
  options.option(node_rank, "node-rank", group, "which of them this one is, from 0").at_least(0).at_most(4095);
  options.option(master_addr, "master-addr", group, "address of machine 0 by which the others reach it");
  options.option(master_port, "master-port", group, "port there; without effect on one machine")
      .at_least(0)
      .at_most(65535);
  options
      .option(max_restarts, "max-restarts", group,
              "how often all processes are started again after one has failed, from the last checkpoint in --save")
      .at_least(0)
      .at_most(1000000);
  options.option(
      end_with_stdin, "end-with-stdin", group,
      "for programs that start this one: when standard input ends, kill the processes, or let those save that "
      "were told to stop");
}

void LaunchOptions::check() const {
  TANDEM_USER_CHECK(node_rank < nnodes, fmt::format("--node-rank {}: with --nnodes {} they count from 0 to {}",
                                                    node_rank, nnodes, nnodes - 1));
  if (nnodes == 1) return;
  TANDEM_USER_CHECK(
      !master_addr.starts_with("127.") && master_addr != "localhost",
      fmt::format("--master-addr {}: other machines do not reach it; give an address of machine 0", master_addr));
  TANDEM_USER_CHECK(master_port > 0, "--master-port: give a free port of machine 0, the same on all machines");
  TANDEM_USER_CHECK(
      max_restarts == 0,
      "--max-restarts: is for one machine; of several, the scheduler that started them starts them again");
}

int say_end(const mesh::LaunchEnd& end) {
  if (end.failed) std::fprintf(stderr, "tandem: error: %s\n", base::printable(end.message).c_str());
  return end.code;
}

// Returns the plan of the launch. The last `workers` processes of it are rollout workers.
mesh::LaunchPlan plan_of(const RankedRun& run, const std::vector<std::string>& arguments, int64_t processes,
                         int64_t workers) {
  mesh::LaunchPlan plan;
  plan.command = {"/proc/self/exe", run.verb};
  plan.shown_as = "tandem";
  plan.command.insert(plan.command.end(), arguments.begin(), arguments.end());
  plan.ranks_per_host = static_cast<int>(processes);
  plan.num_workers = static_cast<int>(workers);
  plan.timeout_s = run.mesh.timeout_s();
  return plan;
}

int run_with_restarts(const LaunchOptions& launch, const RankedRun& run, const std::vector<std::string>& arguments) {
  const std::string saved_before = saved_state(run.save);
  std::vector<std::string> words = arguments;
  for (int64_t restarts = 0;; ++restarts) {
    const int64_t count = launch.nproc_per_node;
    const int64_t num_trainers = run.placement.num_trainers_among(launch.node_rank * count, count);
    mesh::LaunchPlan plan = plan_of(run, words, count, count - num_trainers);
    plan.num_hosts = static_cast<int>(launch.nnodes);
    plan.host = static_cast<int>(launch.node_rank);
    plan.master_address = launch.master_addr;
    plan.master_port = static_cast<int>(launch.master_port);
    plan.ends_with_stdin = launch.end_with_stdin;
    const mesh::LaunchEnd end = mesh::launch(plan);
    // After a restart, a mistake of the user's would be the same mistake.
    const bool is_over = !end.failed || end.was_told_to_stop || end.code == kExitUser;
    if (is_over || restarts == launch.max_restarts) return say_end(end);
    base::log_warning("{}; restart {} of {}", end.message, restarts + 1, launch.max_restarts);
    words = restarted(arguments, run.save, run.checkpoints, saved_before);
  }
}

// Runs one engine that joins a run which was started elsewhere.
int launch_engine(const LaunchOptions& launch, const RankedRun& run, const std::vector<std::string>& arguments) {
  const int64_t size = run.mesh.tensor_model_parallel_size;
  TANDEM_USER_CHECK(
      launch.nnodes == 1 && launch.nproc_per_node == size,
      fmt::format("--nnodes {} --nproc-per-node {}: an engine that joins a run has {} on one machine "
                  "(--tensor-model-parallel-size); start each engine by itself",
                  launch.nnodes, launch.nproc_per_node, size == 1 ? "one process" : fmt::format("{} processes", size)));
  TANDEM_USER_CHECK(launch.max_restarts == 0,
                    "--max-restarts: is for a run; an engine that has failed joins again by the "
                    "same command");
  run.check();
  mesh::LaunchPlan plan = plan_of(run, arguments, size, 0);
  plan.ends_with_stdin = launch.end_with_stdin;
  return say_end(mesh::launch(plan));
}

template <typename Config>
RankedRun read_run(const std::string& reader, const char* verb, const std::vector<std::string>& arguments) {
  Config config;
  bool ignored = false;
  options::Options options(base::home_directory());
  config.visit(options);
  options.option(ignored, "dry-run", "general", "");
  options.option(ignored, "quiet", "general", "");
  declare_other_names(options, verb);
  TANDEM_USER_CHECK(options.parse(config::without_harmless_flags(arguments)) == options::ParsedAction::kRun,
                    fmt::format("{}: --help and --print-config start nothing; give them to tandem {}", reader, verb));
  return ranked_run(config);
}

template <typename Config>
RankedRun run_of(const char* verb, const Config& config, int64_t num_workers) {
  return {.verb = verb,
          .mesh = config.mesh,
          .placement = {.num_hosts = config.mesh.actor_num_nodes,
                        .trainers_per_host = config.mesh.actor_num_gpus_per_node,
                        .num_workers = num_workers,
                        .per_engine = config.mesh.tensor_model_parallel_size,
                        .joins = config.mesh.joins()},
          .device = config.model.device,
          .save = config.output.save,
          .checkpoints = config.checkpoints,
          .check = [config] { config.check(); }};
}

}  // namespace

RankedRun ranked_run(const config::TrainConfig& config) {
  return run_of("train", config, config.mesh.num_workers(config.colocate));
}

RankedRun ranked_run(const config::SftConfig& config) { return run_of("sft", config, /*num_workers=*/0); }

bool is_ranked_verb(const std::string& word) { return word == "train" || word == "sft"; }

RankedRun read_ranked_run(const std::string& reader, const std::string& verb,
                          const std::vector<std::string>& arguments) {
  return verb == "sft" ? read_run<config::SftConfig>(reader, "sft", arguments)
                       : read_run<config::TrainConfig>(reader, "train", arguments);
}

std::optional<int> start_ranks(const RankedRun& run, const config::RunMode& mode, const mesh::Launch& launch,
                               const std::vector<std::string>& arguments) {
  const config::MeshOptions& mesh = run.mesh;
  mesh.check_ranks(run.device);
  const int64_t num_workers = launch.placement.num_workers;
  if (launch.placement.joins) {  // a single additional rollout worker
    if (launch.is_launched || mesh.tensor_model_parallel_size == 1) return std::nullopt;
    return say_end(mesh::launch(plan_of(run, arguments, mesh.tensor_model_parallel_size, 0)));
  }
  if (launch.is_launched) {
    const mesh::LaunchVariables& launched = launch.processes;
    TANDEM_USER_CHECK(
        launched.size == run.num_processes() &&
            (num_workers > 0 || launched.local_size == mesh.actor_num_gpus_per_node),
        fmt::format("--actor-num-nodes {} x --actor-num-gpus-per-node {}{}: {} {} {} started, {} of them on this "
                    "machine ({}); give --actor-num-nodes and --actor-num-gpus-per-node as they were started",
                    mesh.actor_num_nodes, mesh.actor_num_gpus_per_node,
                    num_workers > 0 ? fmt::format(" + --rollout-num-gpus {}", num_workers) : "", launched.size,
                    launched.size == 1 ? "process" : "processes", launched.size == 1 ? "was" : "were",
                    launched.local_size, launched.source));
    launch.placement.check_host(launched.first_here(), launched.local_size, launched.source);
    return std::nullopt;
  }
  if (run.num_processes() == 1 || mode.dry_run) return std::nullopt;
  TANDEM_USER_CHECK(mesh.actor_num_nodes == 1,
                    fmt::format("--actor-num-nodes {}: start the processes on each machine: srun, torchrun, mpirun or "
                                "tandem launch (docs/MANY_DEVICES.md)",
                                mesh.actor_num_nodes));
  run.check();
  return say_end(mesh::launch(plan_of(run, arguments, run.num_processes(), num_workers)));
}

void check_fits_alone(const mesh::Launch& launch) {
  TANDEM_USER_CHECK(launch.processes.size == 1,
                    "--fit: changes the flags of a run of one process; for several, take the change that the refusal "
                    "without --fit names, and give it to all");
}

int launch_by_hand(const Verb& verb, const std::vector<std::string>& arguments) {
  const auto dashes = std::find(arguments.begin(), arguments.end(), "--");
  const auto stray = std::find_if(arguments.begin(), dashes, is_ranked_verb);
  TANDEM_USER_CHECK(
      dashes != arguments.end() || stray == arguments.end(),
      fmt::format("launch: {0} and its flags come after --: tandem launch --nproc-per-node 2 -- {0} ...", *stray));
  LaunchOptions launch;
  options::Options options;
  launch.visit(options);
  const options::ParsedAction action = options.parse({arguments.begin(), dashes});
  if (was_answered(action, options, "tandem launch [options] -- train|sft [options of it]", verb.description)) return 0;
  launch.check();
  TANDEM_USER_CHECK(arguments.end() - dashes > 1 && is_ranked_verb(dashes[1]),
                    "launch: what it is to start comes after its options: tandem launch --nproc-per-node 2 -- train "
                    "..., or sft");
  const std::string& started = dashes[1];
  std::vector<std::string> words(dashes + 2, arguments.end());
  RankedRun run = read_ranked_run("launch", started, words);
  if (run.mesh.joins()) return launch_engine(launch, run, words);
  const int64_t num_workers = run.placement.num_workers;
  const int64_t num_trainers = launch.nnodes * launch.nproc_per_node - num_workers;
  if (run.mesh.num_ranks() == 1 && num_trainers > 1) {  // the launch gives the number
    const int64_t per_node = std::min(launch.nproc_per_node, num_trainers);
    words.insert(words.end(), {"--actor-num-nodes", std::to_string(num_trainers / per_node),
                               "--actor-num-gpus-per-node", std::to_string(per_node)});
    run = read_ranked_run("launch", started, words);
  }
  run.check();
  const config::MeshOptions& mesh = run.mesh;
  TANDEM_USER_CHECK(
      num_workers > 0 ||
          (mesh.actor_num_nodes == launch.nnodes && mesh.actor_num_gpus_per_node == launch.nproc_per_node),
      fmt::format("--nnodes {} --nproc-per-node {}: {} has --actor-num-nodes {} --actor-num-gpus-per-node {}; leave "
                  "those two out",
                  launch.nnodes, launch.nproc_per_node, started, mesh.actor_num_nodes, mesh.actor_num_gpus_per_node));
  TANDEM_USER_CHECK(mesh.num_ranks() == num_trainers,
                    fmt::format("--nnodes {} --nproc-per-node {}: are {} processes, and {} has --actor-num-nodes {} "
                                "x --actor-num-gpus-per-node {} + --rollout-num-gpus {}; start as many",
                                launch.nnodes, launch.nproc_per_node, launch.nnodes * launch.nproc_per_node, started,
                                mesh.actor_num_nodes, mesh.actor_num_gpus_per_node, num_workers));
  for (int64_t node = 0; node < launch.nnodes; ++node) {
    run.placement.check_host(node * launch.nproc_per_node, launch.nproc_per_node,
                             fmt::format("--nnodes {} --nproc-per-node {}", launch.nnodes, launch.nproc_per_node));
  }
  return run_with_restarts(launch, run, words);
}

}  // namespace tandem::cli
