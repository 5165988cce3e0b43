// Decoding on two GPUs of one machine in Qwen3-30B-A3B's shape with random weights: each with a whole copy, by itself;
// the same with experts shared (device/expert_exchange.h); and one copy spread over both. It prints tokens per second
// of each rank, and a hash of what it sampled: equal hashes are equal bits. It takes 80 GB of each GPU. Run:
// shared_experts_bench [deviation of the embeddings].
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "bench/shapes.h"
#include "device/expert_exchange.h"
#include "device/registry.h"
#include "mesh/socket_communicator.h"
#include "model/config.h"
#include "model/model.h"
#include "model/registry.h"
#include "rollout/engine.h"
#include "rollout/shared_steps.h"
#include "tests/device/ranks/forked_ranks.h"
#include "tests/mesh/socket_ranks.h"
#include "weights/store.h"

namespace tandem {
namespace {

constexpr int kRanks = 2;
constexpr int64_t kPrompt = 64, kResponse = 160, kWarmUp = 32, kGroup = 8;  // tokens; samples of a prompt

enum class Mode : uint8_t { kAlone, kShared, kTensor };

// Tokens whose embeddings are small beside what blocks add to them are alike, and choose the same experts.
weights::WeightStore draw(const model::ModelConfig& config, const device::Ops& ops, double embedding_deviation) {
  auto store = weights::WeightStore::without_storage(model::build_layout(config), at::kBFloat16, ops.device());
  const at::NoGradGuard no_grad;
  store.allocate();
  at::Generator generator = at::globalContext().defaultGenerator(store.device());
  {
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(1);
  }
  for (const weights::PackedTensor& packed : store.layout().tensors) {
    const at::Tensor& tensor = store.tensor(packed.name);
    if (packed.init == weights::Init::kOnes) {
      tensor.fill_(1);
    } else {
      tensor.normal_(0.0, packed.name == "embed" ? embedding_deviation : config.initializer_range, generator);
    }
  }
  return store;
}

rollout::GroupRequest request_of(int64_t group, int64_t samples, int64_t vocab) {
  std::mt19937_64 random(static_cast<uint64_t>(group));
  std::vector<int32_t> ids(kPrompt);
  for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint64_t>(vocab));
  rollout::GroupRequest request;
  request.group_id = static_cast<uint64_t>(group);
  request.prompt = rl::make_prompt(std::move(ids));
  for (int64_t i = 0; i < samples; ++i) request.sample_ids.push_back(static_cast<uint64_t>(group * kGroup + i));
  request.sampling.max_new_tokens = kResponse;
  request.sampling.ignore_eos = true;
  return request;
}

// A sum over tokens and bits of log-probs that depends on their order.
uint64_t add_to_hash(uint64_t hash, const rl::Completion& completion) {
  const auto add = [&](uint64_t word) { hash = (hash ^ word) * 0x100000001b3U; };
  for (const int32_t token : completion.tokens) add(static_cast<uint64_t>(token));
  for (const float logprob : completion.logprobs) {
    uint32_t bits = 0;
    std::memcpy(&bits, &logprob, sizeof bits);
    add(bits);
  }
  return hash;
}

struct Run {
  double tokens_per_s = 0.0;
  uint64_t hash = 14695981039346656037U;
};

// Decodes `sequences` of this rank's own; with tensor ranks all of them decode those of all ranks.
Run decode(rollout::Engine& engine, device::Communicator& hosts, Mode mode, int64_t sequences, int64_t vocab) {
  const int64_t samples = std::min(sequences, kGroup), groups_of_rank = sequences / samples;
  const int64_t groups = mode == Mode::kTensor ? kRanks * groups_of_rank : groups_of_rank;
  const int64_t first = mode == Mode::kTensor ? 0 : groups_of_rank * hosts.rank();
  engine.reset_stats();
  for (int64_t g = first; g < first + groups; ++g) engine.add(request_of(g, samples, vocab));
  while (engine.stats().generated_tokens < groups * samples * kWarmUp) engine.step();
  device::any_of(hosts, false);
  const int64_t before = engine.stats().generated_tokens;
  const auto start = std::chrono::steady_clock::now();
  while (engine.num_unfinished_groups() > 0) engine.step();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  Run run = {.tokens_per_s = static_cast<double>(engine.stats().generated_tokens - before) / seconds};
  std::vector<rl::Group> finished(static_cast<size_t>(groups));
  for (int64_t g = 0; g < groups; ++g) {
    rl::Group group = engine.next_finished().value();
    const auto index = static_cast<size_t>(group.group_id) - static_cast<size_t>(first);
    finished[index] = std::move(group);
  }
  for (const rl::Group& group : finished) {
    for (const rl::Completion& completion : group.completions) run.hash = add_to_hash(run.hash, completion);
  }
  engine.leave_shared_steps();
  return run;
}

// Returns a line for each number of sequences: tokens per second of this rank, and the hash of what it sampled.
std::string run_rank(int rank, Mode mode, double embedding_deviation, const std::vector<int64_t>& sequences,
                     mesh::ForkedConnections& connections) {
  const auto hosts = mesh::make_socket_communicator(
      {.name = "hosts", .rank = rank, .connections = connections.take(rank), .wait_s = 60, .silence_s = 60});
  const device::DeviceSpec spec{.backend = "cuda", .index = rank};
  const std::unique_ptr<device::Ops> ops = device::make_ops(spec, {.num_threads = 4});
  const auto ranks = device::make_communicator(spec, {.hosts = *hosts, .shares_memory = true, .timeout_s = 60});
  model::ModelConfig config = bench::bench_shape("qwen3-30b-a3b");
  if (mode == Mode::kTensor) config = model::shard_of(config, {.rank = rank, .size = kRanks});
  const weights::WeightStore store = draw(config, *ops, embedding_deviation);
  const auto model = mode == Mode::kTensor ? model::make_model(config, store.view(), *ops, *ranks)
                                           : model::make_model(config, store.view(), *ops);
  rollout::EngineConfig engine_config;
  engine_config.limits.max_running = 256;
  const int64_t most = mode == Mode::kTensor ? 256 : 128;
  engine_config.num_kv_blocks = most * ((kPrompt + kResponse) / 16 + 2);
  std::unique_ptr<device::ExpertExchange> exchange;
  std::optional<rollout::SharedSteps> steps;
  if (mode == Mode::kShared) {
    exchange = device::make_expert_exchange(*ops, *ranks, *hosts,
                                            {.experts = config.experts->count,
                                             .chosen = config.experts->chosen,
                                             .hidden = config.hidden,
                                             .most_rows = 256,
                                             .dtype = at::kBFloat16});
    engine_config.shared_steps = &steps.emplace(*hosts, *exchange);
  }
  const auto engine = rollout::make_engine(engine_config, *model);
  std::string lines;
  for (const int64_t count : sequences) {
    const Run run = decode(*engine, *hosts, mode, count, config.vocab);
    lines += fmt::format("{:9.1f} {:016x}\n", run.tokens_per_s, run.hash);
  }
  return lines;
}

std::vector<std::string> run_mode(Mode mode, double embedding_deviation, const std::vector<int64_t>& sequences) {
  mesh::ForkedConnections connections(kRanks);
  return device::run_forked(
      kRanks,
      [&](int rank) {
        try {
          return run_rank(rank, mode, embedding_deviation, sequences, connections);
        } catch (const std::exception& error) {
          return std::string(error.what());
        }
      },
      [&] { connections.close(); });
}

int run(double embedding_deviation) {
  const std::vector<int64_t> sequences = {1, 8, 32, 128};
  for (const auto& [mode, name] : {std::pair{Mode::kAlone, "whole copies, each by itself"},
                                   {Mode::kShared, "whole copies, experts shared"},
                                   {Mode::kTensor, "one copy on two tensor ranks, as many sequences in all"}}) {
    const std::vector<std::string> lines = run_mode(mode, embedding_deviation, sequences);
    fmt::print("{}; a line for {} sequences a GPU: tokens/s of this rank, hash\n", name, fmt::join(sequences, ", "));
    for (int rank = 0; rank < kRanks; ++rank) fmt::print("rank {}\n{}", rank, lines[static_cast<size_t>(rank)]);
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace tandem

int main(int argc, char** argv) { return tandem::run(argc > 1 ? std::stod(argv[1]) : 1.0); }
