#include "bench/exactness.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/message_text.h"
#include "bench/rollout.h"
#include "model/dtype.h"
#include "plan/kv_size.h"
#include "rollout/rollout_plan.h"
#include "trainer/score.h"

namespace tandem::bench {

namespace {

// The requests to the engine in one run. Prompt lengths are given to the groups in turn.
struct Mix {
  std::string name;
  int64_t groups = 1, group_size = 1;
  std::vector<int64_t> prompt_tokens;
  int64_t response_tokens = 1, max_batch_tokens = 2048;
  rl::SamplingParams sampling = {};
  // Share of the KV cache that all of them together need. Less than 1 makes the engine preempt sequences and compute
  // them again.
  double kv_share = 1.0;
  int64_t max_draft_tokens = 0;
};

// A greedy completion of random weights runs in circles sooner or later.
Mix guessed_mix(MixSize size) {
  rl::SamplingParams greedy;
  greedy.temperature = 0.0;
  return {"guessed tokens", 1, 2, {20}, size == MixSize::kSmall ? 60 : 400, 2048, greedy, 1.0, 15};
}

std::vector<Mix> mixes(MixSize size) {
  // Small ones are the same mixes with fewer and shorter sequences.
  const bool is_small = size == MixSize::kSmall;
  const int64_t many = is_small ? 48 : 512, long_prompt = is_small ? 300 : 4000, response = is_small ? 12 : 48;
  rl::SamplingParams truncated, greedy;
  truncated.temperature = 0.7;
  truncated.top_p = 0.9;
  truncated.top_k = 40;
  truncated.min_p = 0.01;
  greedy.temperature = 0.0;
  return {
      {"one sequence", 1, 1, {37}, 3 * response, 2048},
      {"many sequences", many, 1, {1, 5, 16, 33, 64, 100}, response, 2048},
      {"shared prompts", many / 8, 8, {15, 16, 17, 130, 255}, response, 1024},
      {"long prompts in parts", 5, 2, {long_prompt, 1, long_prompt / 3, 77}, response, 113},
      {"top-p, top-k and min-p", 8, 4, {20, 64}, response, 512, truncated},
      {"greedy", 7, 1, {9, 48, 129}, response, 512, greedy},
      {"a cache that is too small", 12, 2, {30, 50}, 2 * response, 256, {}, 0.4},
      guessed_mix(size),
  };
}

struct MixRun {
  std::vector<rl::Sample> samples;
  rollout::EngineStats stats;
};

// `change` alters the engine's configuration, if it is not to be the device's own choice.
MixRun run_engine(const BenchModel& bench, const Mix& mix, uint64_t seed,
                  const std::function<void(rollout::EngineConfig&)>& change = {}) {
  const auto model = bench.make_model();
  int64_t longest = 0;
  for (const int64_t tokens : mix.prompt_tokens) longest = std::max(longest, tokens);
  rollout::EngineConfig config;
  config.limits = {.max_batch_tokens = mix.max_batch_tokens,
                   .max_running = mix.groups * mix.group_size,
                   .max_draft_tokens = mix.max_draft_tokens};
  const int64_t one = plan::sequence_kv_bytes(bench.config(), config.limits, longest + mix.response_tokens);
  const auto all = static_cast<int64_t>(mix.kv_share * static_cast<double>(mix.groups * mix.group_size * one));
  config.num_kv_blocks = rollout::num_kv_blocks(bench.config(), std::max(one, all));
  if (change) change(config);
  const auto engine = rollout::make_engine(config, *model);
  uint64_t sample_id = 0;
  for (int64_t g = 0; g < mix.groups; ++g) {
    const auto length = static_cast<size_t>(g) % mix.prompt_tokens.size();
    rollout::GroupRequest request;
    request.group_id = static_cast<uint64_t>(g);
    request.prompt = draw_prompts(bench.config(), 1, mix.prompt_tokens[length], seed + static_cast<uint64_t>(g))[0];
    for (int64_t i = 0; i < mix.group_size; ++i) request.sample_ids.push_back(sample_id++);
    request.sampling = mix.sampling;
    request.sampling.max_new_tokens = mix.response_tokens;
    request.sampling.ignore_eos = true;
    request.sampling.seed = seed;
    engine->add(std::move(request));
  }
  MixRun result;
  result.samples.resize(sample_id);
  while (std::optional<rl::Group> group = engine->next_finished()) take_samples(std::move(*group), result.samples);
  result.stats = engine->stats();
  return result;
}

// Compares two lists of log-probs bit by bit; what one of them lacks differs.
Comparison compare_bits(const std::vector<float>& a, const std::vector<float>& b) {
  const size_t length = std::min(a.size(), b.size()), longest = std::max(a.size(), b.size());
  Comparison result{.compared = static_cast<int64_t>(longest), .different = static_cast<int64_t>(longest - length)};
  for (size_t i = 0; i < length; ++i) {
    if (std::bit_cast<uint32_t>(a[i]) == std::bit_cast<uint32_t>(b[i])) continue;
    ++result.different;
    result.largest = std::max(result.largest, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return result;
}

using Answers = std::vector<ExactnessAnswer>;

std::vector<const rl::Sample*> views_of(const std::vector<rl::Sample>& samples) {
  std::vector<const rl::Sample*> views;
  for (const rl::Sample& sample : samples) views.push_back(&sample);
  return views;
}

void compare_with_trainer(const BenchModel& bench, const config::BenchConfig& config, const Mix& mix,
                          const std::vector<rl::Sample>& samples, Comparison& comparison) {
  const auto model = bench.make_model();
  const double temperature = mix.sampling.temperature > 0 ? mix.sampling.temperature : 1.0;
  const trainer::Scores scores = trainer::score(*model, views_of(samples), config.optimizer.batch, temperature);
  for (size_t i = 0; i < samples.size(); ++i) {
    comparison += compare_bits(samples[i].rollout_logprobs, scores.logprobs[i]);
  }
}

// Compares the engine with the trainer, over all mixes.
void ask_trainer(const BenchModel& bench, const config::BenchConfig& config, MixSize size, Answers& answers) {
  for (const Mix& mix : mixes(size)) {
    const int64_t longest = *std::ranges::max_element(mix.prompt_tokens) + mix.response_tokens;
    if (longest > bench.config().max_positions) continue;
    const MixRun run = run_engine(bench, mix, static_cast<uint64_t>(config.model.seed));
    Comparison comparison;
    compare_with_trainer(bench, config, mix, run.samples, comparison);
    answers.push_back({fmt::format("engine and trainer: {}", mix.name), "log-probs", comparison});
    bench.release_unused();
  }
}

void compare_runs(const std::string& name, const MixRun& first, const MixRun& again, Answers& answers) {
  Comparison tokens, logprobs;
  for (size_t i = 0; i < first.samples.size(); ++i) {
    const rl::Sample &a = first.samples[i], &b = again.samples[i];
    const auto as_floats = [](const std::vector<int32_t>& ids) { return std::vector<float>(ids.begin(), ids.end()); };
    tokens += compare_bits(as_floats(a.completion), as_floats(b.completion));
    logprobs += compare_bits(a.rollout_logprobs, b.rollout_logprobs);
  }
  answers.push_back({name + ": tokens", "tokens", tokens});
  answers.push_back({name + ": log-probs", "log-probs", logprobs});
}

// Runs the same rollout again, and also with the host's part of it in another order.
void ask_again(const BenchModel& bench, const config::BenchConfig& config, MixSize size, Answers& answers) {
  struct Variant {
    const char* name;
    std::function<void(rollout::EngineConfig&)> change;
  };
  const Variant variants[] = {
      {"the same rollout twice", {}},
      {"and without recorded steps or lookahead",
       [](rollout::EngineConfig& engine) {
         engine.lookahead = 0;
         engine.record_steps = false;
       }},
      {"and one step ahead of the host", [](rollout::EngineConfig& engine) { engine.lookahead = 1; }},
  };
  const Mix mix = mixes(size)[2];
  const auto seed = static_cast<uint64_t>(config.model.seed);
  const MixRun first = run_engine(bench, mix, seed);
  for (const Variant& variant : variants) {
    compare_runs(variant.name, first, run_engine(bench, mix, seed, variant.change), answers);
  }
  const MixRun guessed = run_engine(bench, guessed_mix(size), seed);
  const MixRun drawn = run_engine(bench, guessed_mix(size), seed,
                                  [](rollout::EngineConfig& engine) { engine.limits.max_draft_tokens = 0; });
  compare_runs(fmt::format("and {} of {} guesses right", guessed.stats.right_drafts, guessed.stats.draft_tokens), drawn,
               guessed, answers);
}

// Counts elements whose bits differ.
Comparison compare_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::ScalarType bits = a.scalar_type() == at::kFloat ? at::kInt : at::kShort;
  const at::Tensor differs = a.view(bits).ne(b.view(bits));
  Comparison result{.compared = a.numel(), .different = differs.sum().item<int64_t>()};
  if (result.different > 0) result.largest = a.to(at::kFloat).sub(b.to(at::kFloat)).abs().max().item<double>();
  return result;
}

// One kind of matrix product, with the weights that it has in each layer.
struct Product {
  std::string name;
  std::vector<at::Tensor> weights_NK;
  at::ScalarType out = at::kFloat;

  at::Tensor draw_rows(int64_t rows) const {
    return at::empty({rows, weights_NK[0].size(1)}, weights_NK[0].options()).normal_();
  }
};

std::vector<Product> products(const BenchModel& bench) {
  const weights::WeightStore& store = bench.store();
  std::vector<Product> result;
  std::vector<const char*> names = {"qkv", "o"};
  if (bench.config().experts) {
    names.push_back("router");
  } else {
    names.insert(names.end(), {"gate_up", "down"});
  }
  for (const char* name : names) {
    Product product{.name = name, .weights_NK = {}, .out = store.dtype()};
    if (product.name == "router") product.out = at::kFloat;
    for (int64_t layer = 0; layer < bench.config().num_layers; ++layer) {
      product.weights_NK.push_back(store.tensor(fmt::format("layers.{}.{}", layer, name)));
    }
    result.push_back(std::move(product));
  }
  result.push_back({.name = "head",
                    .weights_NK = {store.tensor(bench.config().tied_embeddings ? "embed" : "head")},
                    .out = at::kFloat});
  return result;
}

// Compares the rows that `compute` makes of batches of many sizes with the same rows of the largest batch, x_TK.
Comparison compare_rows(const at::Tensor& x_TK, const std::function<at::Tensor(const at::Tensor&)>& compute) {
  const int64_t most = x_TK.size(0);
  const at::Tensor all_TN = compute(x_TK);
  Comparison comparison;
  for (const int64_t rows : {1,   2,   3,   4,   7,   8,   15,  16,  17,  31,  32,  33,   64,   65,  96,
                             127, 128, 129, 192, 255, 256, 257, 384, 511, 512, 777, 1024, 1500, 2047}) {
    if (rows > most) break;
    // The last rows are taken, so that their place in the batch differs, too.
    const at::Tensor some_TN = compute(x_TK.narrow(0, most - rows, rows).clone());
    comparison += compare_bits(some_TN, all_TN.narrow(0, most - rows, rows));
  }
  return comparison;
}

int64_t most_rows(const BenchModel& bench) { return bench.is_on_host() ? 512 : 2048; }

void ask_products(const BenchModel& bench, Answers& answers) {
  const int64_t most = most_rows(bench);
  for (const Product& product : products(bench)) {
    const Comparison comparison = compare_rows(product.draw_rows(most), [&](const at::Tensor& x_TK) {
      return bench.ops().linear(x_TK, product.weights_NK[0], product.out);
    });
    answers.push_back(
        {fmt::format("rows of a product in batches of 1 to {}: {}", most, product.name), "numbers", comparison});
    bench.release_unused();
  }
}

// Asks the same of the experts of a sparse layer, whose rows stand beside other rows in each batch.
void ask_experts(const BenchModel& bench, Answers& answers) {
  if (!bench.config().experts) return;
  const weights::WeightStore& store = bench.store();
  const at::Tensor router_XE = store.tensor("layers.0.router"), gate_up = store.tensor("layers.0.experts_gate_up"),
                   down = store.tensor("layers.0.experts_down");
  const device::RouteRule rule = {.chosen = bench.config().experts->chosen,
                                  .normalises = bench.config().experts->normalises};
  const device::Ops& ops = bench.ops();
  const int64_t most = most_rows(bench);
  const at::Tensor x_TE = at::empty({most, router_XE.size(1)}, router_XE.options()).normal_();
  const Comparison comparison = compare_rows(x_TE, [&](const at::Tensor& rows_TE) {
    const device::Routing routing = ops.route(ops.linear(rows_TE, router_XE, at::kFloat), rule);
    return ops.mlp_of_experts(rows_TE, gate_up, down, routing, rows_TE, store.dtype(), /*keeps_gate_up=*/false).sum_TE;
  });
  answers.push_back({fmt::format("rows of a layer's experts in batches of 1 to {}", most), "numbers", comparison});
  bench.release_unused();
}

// Returns LibTorch's result for the same product when it may choose by the number of rows.
at::Tensor free_product(const at::Tensor& x_TK, const at::Tensor& weight_NK, at::ScalarType out) {
  const at::Tensor weight_KN = weight_NK.t();
  if (out == x_TK.scalar_type()) return at::mm(x_TK, weight_KN);
  // On the CPU LibTorch has no product that is wider than its factors.
  return x_TK.is_cpu() ? at::mm(x_TK, weight_KN).to(out) : at::mm(x_TK, weight_KN, out);
}

// Times the products of a forward, layer after layer so that weights come from memory: by Tandem's rule, which gives a
// row the same bits in every batch, and by LibTorch's choice, which does not.
void show_price(const BenchModel& bench, BenchTable& table) {
  const LibTorchThreads threads(bench);
  using Multiply = std::function<at::Tensor(const at::Tensor&, const at::Tensor&, at::ScalarType)>;
  const auto best_seconds = [&](const Product& product, const at::Tensor& x_TK, const Multiply& multiply) {
    return bench.best_seconds(/*calls=*/1, [&] {
      for (const at::Tensor& weight_NK : product.weights_NK) multiply(x_TK, weight_NK, product.out);
    });
  };
  const Multiply exact_product = [&](const at::Tensor& x_TK, const at::Tensor& weight_NK, at::ScalarType out) {
    return bench.ops().linear(x_TK, weight_NK, out);
  };
  const int64_t most = bench.is_on_host() ? 512 : 8192;
  base::Json prices = base::Json::array();
  for (const int64_t rows : {int64_t{1}, int64_t{32}, int64_t{256}, most}) {
    double exact = 0.0, free = 0.0;
    for (const Product& product : products(bench)) {
      constexpr int64_t kLogitRows = 1024;  // limit of the trainer, which computes no more of them at a time
      const at::Tensor x_TK = product.draw_rows(product.name == "head" ? std::min(rows, kLogitRows) : rows);
      exact += best_seconds(product, x_TK, exact_product);
      free += best_seconds(product, x_TK, free_product);
    }
    table.line(fmt::format("price     {:<52} {:.2f} ms, LibTorch's own choice {:.2f} ms ({:+.0f} %)",
                           fmt::format("products of a forward of {}", base::counted(rows, "row")), exact * 1e3,
                           free * 1e3, 100.0 * (exact / free - 1.0)));
    prices.push_back({{"rows", rows}, {"exact_seconds", exact}, {"free_seconds", free}});
    bench.release_unused();
  }
  table.set("price_of_exactness", std::move(prices));
}

void show(const ExactnessAnswer& answer, BenchTable& table) {
  table.line(fmt::format("{:<9} {:<52} {}", answer.comparison.is_equal() ? "exact" : "DIFFERENT", answer.question,
                         answer.comparison.text(answer.what)));
}

}  // namespace

std::vector<ExactnessAnswer> ask_engine(const BenchModel& bench, const config::BenchConfig& config, MixSize size) {
  const at::NoGradGuard without_graph;
  Answers answers;
  ask_trainer(bench, config, size, answers);
  ask_again(bench, config, size, answers);
  return answers;
}

bool check_exactness(const BenchModel& bench, const config::BenchConfig& config, BenchTable& table) {
  const at::NoGradGuard without_graph;
  Answers answers = ask_engine(bench, config, bench.is_on_host() ? MixSize::kSmall : MixSize::kLarge);
  ask_products(bench, answers);
  ask_experts(bench, answers);
  for (const ExactnessAnswer& answer : answers) show(answer, table);
  show_price(bench, table);
  const bool is_exact =
      std::ranges::all_of(answers, [](const ExactnessAnswer& answer) { return answer.comparison.is_equal(); });
  base::Json entries = base::Json::array();
  for (const ExactnessAnswer& answer : answers) {
    entries.push_back({{"question", answer.question},
                       {"compared", answer.comparison.compared},
                       {"different", answer.comparison.different},
                       {"largest_difference", answer.comparison.largest}});
  }
  table.set("exactness", {{"is_exact", is_exact}, {"answers", std::move(entries)}});
  return is_exact;
}

}  // namespace tandem::bench
