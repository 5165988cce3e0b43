#include "config/mesh_options.h"

#include <fmt/format.h>

#include <string>
#include <vector>

#include "base/check.h"
#include "base/host_port.h"
#include "base/size.h"
#include "device/backends.h"

namespace tandem::config {

namespace {

constexpr int64_t kMaxNodes = 4096, kMaxDevices = 1024, kMaxPort = 65535;
constexpr double kMaxMinutes = 7 * 24 * 60;
constexpr const char* kGroup = "many devices";

// The libraries that move tensors: those of modules first, then the host's.
std::vector<std::string> communicators() {
  std::vector<std::string> names;
  for (const device::BackendRow& row : device::backends()) names.insert(names.begin(), row.communicator);
  return names;
}

// "on cuda nccl; on cpu sockets": what moves tensors where no library is named, in the same order.
std::string unset_communicators() {
  std::string text;
  for (const device::BackendRow& row : device::backends()) {
    text = fmt::format("on {} {}{}", row.name, row.moves_tensors, text.empty() ? "" : "; " + text);
  }
  return text;
}

}  // namespace

void MeshOptions::visit_trainers(options::Options& options) {
  options.option(actor_num_nodes, "actor-num-nodes", kGroup, "machines that the run computes on")
      .at_least(1)
      .at_most(kMaxNodes)
      .does_not_affect_results();
  options
      .option(actor_num_gpus_per_node, "actor-num-gpus-per-node", kGroup,
              "devices that the run computes on in each machine, with a process each; on --device cpu: processes that "
              "share the cores")
      .at_least(1)
      .at_most(kMaxDevices)
      .does_not_affect_results();
  options
      .option(num_gpus_per_node, "num-gpus-per-node", kGroup,
              "another way to say --actor-num-gpus-per-node, for commands of other trainers; both have to agree")
      .at_least(1)
      .at_most(kMaxDevices)
      .does_not_affect_results();
  options
      .option(tensor_model_parallel_size, "tensor-model-parallel-size", kGroup,
              "devices of one machine that hold one copy of the model between them, a part of each matrix on each; for "
              "models that one device does not hold")
      .at_least(1)
      .at_most(kMaxDevices);
  options.option(sequence_parallel, "sequence-parallel", kGroup,
                 "in training, let the devices that hold one copy of the model share the tokens of hidden states and "
                 "norms between them: less memory for activations, and a little more to send; without effect where "
                 "--tensor-model-parallel-size is 1");
  options
      .option(
          timeout_minutes, "distributed-timeout-minutes", kGroup,
          "minutes that a process waits for others to join, for what another one computes or saves, and for a process "
          "or machine that is silent, before the run ends; it waits for samples as long as they take")
      .greater_than(0.0)
      .at_most(kMaxMinutes)
      .does_not_affect_results();
  options
      .option(backend, "distributed-backend", kGroup,
              "library that moves bytes between devices; unset: " + unset_communicators())
      .one_of(communicators())
      .or_empty()
      .does_not_affect_results();
  options
      .option(network_interface, "network-interface", kGroup,
              "network interface for what machines say to each other (eth0), or this machine's address there; unset: "
              "the one "
              "that reaches MASTER_ADDR")
      .does_not_affect_results();
  options
      .option(
          trust_network, "trust-network", kGroup,
          "say that nobody else is on the network between the machines: what they send is not encrypted, and without "
          "a secret (TANDEM_SECRET_FILE) who reaches their ports is believed")
      .does_not_affect_results();
  options
      .option(unchecked_ranks, "unchecked-ranks", kGroup,
              "train on several devices, or spread an engine over them, where nobody has reported such a run yet "
              "(--device npu)")
      .does_not_affect_results();
}

void MeshOptions::visit(options::Options& options) {
  visit_trainers(options);
  options
      .option(
          rollout_expert_parallel, "rollout-expert-parallel", kGroup,
          "with --colocate and a sparse model: let the devices of a machine, each of which holds all weights, compute "
          "each other's experts while they decode, so that each reads its share of them alone; results are the same")
      .does_not_affect_results();
  options
      .option(rollout_num_gpus, "rollout-num-gpus", kGroup,
              "without --colocate: devices that only sample, with a process each, beside those that train; 0: none "
              "starts with the run, and processes that sample join it while it runs (--rollout-listen)")
      .at_least(0)
      .at_most(kMaxDevices)
      .does_not_affect_results();
  options
      .option(
          rollout_num_gpus_per_engine, "rollout-num-gpus-per-engine", kGroup,
          "devices of one engine, for commands of other trainers; trainer and engine share their parts, so it has to "
          "agree with --tensor-model-parallel-size")
      .at_least(1)
      .at_most(kMaxDevices)
      .does_not_affect_results();
  options
      .option(rollout_join, "rollout-join", kGroup,
              "be one more process that only samples, for the run on this machine that is running with the same --save")
      .does_not_affect_results();
  options
      .option(rollout_join_address, "rollout-join-address", kGroup,
              "be one more process that only samples, for the run on another machine that listens at this HOST:PORT")
      .does_not_affect_results();
  options
      .option(rollout_listen, "rollout-listen", kGroup,
              "port of --network-interface at which processes that only sample may join the run from other machines; "
              "0: any free one, which the run says")
      .at_least(0)
      .at_most(kMaxPort)
      .does_not_affect_results();
  options
      .option(rollout_health_check_timeout, "rollout-health-check-timeout", kGroup,
              "seconds that a process which only samples may be silent while it has groups to sample; then others get "
              "them")
      .greater_than(0.0)
      .at_most(kMaxMinutes * 60.0)
      .does_not_affect_results();
  options
      .option(update_weight_buffer_size, "update-weight-buffer-size", kGroup,
              "bytes of new weights that are sent at a time to a process which only samples and cannot map this one's "
              "GPU memory")
      .bytes()
      .at_least(1)
      .at_most(base::kMaxBytes)
      .does_not_affect_results();
}

void MeshOptions::check(const std::string& device) const {
  TANDEM_USER_CHECK(
      !num_gpus_per_node || *num_gpus_per_node == actor_num_gpus_per_node,
      fmt::format("--num-gpus-per-node {} and --actor-num-gpus-per-node {}: all devices of a machine train; give both "
                  "the same, or leave the first one out",
                  num_gpus_per_node.value_or(0), actor_num_gpus_per_node));
  TANDEM_USER_CHECK(
      actor_num_gpus_per_node % tensor_model_parallel_size == 0,
      fmt::format("--tensor-model-parallel-size {}: a copy of the model lies on devices of one machine, and "
                  "--actor-num-gpus-per-node {} is no multiple of it; change one of the two",
                  tensor_model_parallel_size, actor_num_gpus_per_node));
  if (rollout_expert_parallel) check_expert_parallel(device);
  if (backend.empty()) return;
  const std::string own = device::backend_of(device::parse_device(device)).communicator;
  TANDEM_USER_CHECK(
      backend == own,
      fmt::format("--distributed-backend {}: does not move tensors of --device {}; leave it out", backend, device));
}

void MeshOptions::check_expert_parallel(const std::string& device) const {
  TANDEM_USER_CHECK(num_ranks() > 1,
                    "--rollout-expert-parallel: one device has nobody to share experts with; leave it out, or give "
                    "--actor-num-gpus-per-node");
  TANDEM_USER_CHECK(actor_num_nodes == 1,
                    fmt::format("--rollout-expert-parallel with --actor-num-nodes {}: experts are shared within one "
                                "machine; leave one of the two out",
                                actor_num_nodes));
  TANDEM_USER_CHECK(
      tensor_model_parallel_size == 1,
      fmt::format("--rollout-expert-parallel with --tensor-model-parallel-size {}: each device has a part "
                  "of every expert already; leave one of the two out",
                  tensor_model_parallel_size));
  const device::BackendRow& row = device::backend_of(device::parse_device(device));
  TANDEM_USER_CHECK(
      *row.why_unchecked == 0,
      fmt::format("--rollout-expert-parallel with --device {}: nobody has tried it there; leave it out", row.name));
}

void MeshOptions::check_rollout(bool colocate) const {
  TANDEM_USER_CHECK(
      rollout_num_gpus_per_engine.value_or(tensor_model_parallel_size) == tensor_model_parallel_size,
      fmt::format(
          "--rollout-num-gpus-per-engine {} and --tensor-model-parallel-size {}: trainer and engine share their "
          "parts of the model; give both the same, or leave the first one out",
          rollout_num_gpus_per_engine.value_or(1), tensor_model_parallel_size));
  TANDEM_USER_CHECK(
      rollout_join_address.empty() || base::host_port(rollout_join_address),
      fmt::format("--rollout-join-address {}: is no HOST:PORT; the run says at its start where it listens",
                  rollout_join_address));
  if (colocate) {
    const char* const flag = rollout_listen ? "--rollout-listen"
                             : rollout_join ? "--rollout-join"
                                            : "--rollout-join-address";
    TANDEM_USER_CHECK(!joins() && !rollout_listen,
                      fmt::format("{}: with --colocate the devices that train sample, and no other can join; give the "
                                  "flags of a run with --rollout-num-gpus",
                                  flag));
    TANDEM_USER_CHECK(
        !rollout_num_gpus || *rollout_num_gpus == num_ranks(),
        fmt::format("--rollout-num-gpus {} with --colocate: the {} too; leave one of the two out",
                    rollout_num_gpus.value_or(0),
                    num_ranks() == 1 ? "one that trains samples" : fmt::format("{} that train sample", num_ranks())));
    return;
  }
  TANDEM_USER_CHECK(!rollout_expert_parallel,
                    "--rollout-expert-parallel without --colocate: devices that only sample come and go, and do not "
                    "decode in step; leave it out, or give --colocate");
  TANDEM_USER_CHECK(rollout_num_gpus,
                    "--colocate or --rollout-num-gpus: give one of them; the devices that train sample too, or so many "
                    "others do");
  TANDEM_USER_CHECK(
      *rollout_num_gpus % tensor_model_parallel_size == 0,
      fmt::format("--rollout-num-gpus {} with --tensor-model-parallel-size {}: so many devices hold one copy of the "
                  "model between them, to sample as to train; give a multiple of {}",
                  *rollout_num_gpus, tensor_model_parallel_size, tensor_model_parallel_size));
}

void MeshOptions::check_ranks(const std::string& device) const {
  const int64_t processes = joins() ? tensor_model_parallel_size : num_ranks();
  if (processes == 1) return;
  const device::BackendRow& row = device::backend_of(device::parse_device(device));
  TANDEM_USER_CHECK(
      device.find(':') == std::string::npos,
      fmt::format("--device {} with {} processes: a number names one device; give --device {}, and {} says which ones "
                  "there are",
                  device, processes, row.name, row.visible_devices));
  TANDEM_USER_CHECK(
      unchecked_ranks || *row.why_unchecked == 0,
      fmt::format("--device {} with {} processes: {}; use one device, or give --unchecked-ranks to try it and report "
                  "what happens",
                  device, processes, row.why_unchecked));
}

}  // namespace tandem::config
