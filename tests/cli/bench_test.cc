// Checks `tandem bench` on the CPU: every measurement gives its figures, and what cannot be measured is refused in one
// line.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "base/json.h"
#include "device/registry.h"
#include "tests/base/temporary_directory.h"
#include "tests/cli/captured.h"
#include "tests/cli/tiny_run.h"
#include "tests/sim/forwarding_ops.h"

namespace tandem::cli {
namespace {

// Returns arguments of a bench so small that all of it takes seconds.
Arguments bench_arguments(const Arguments& what, const Arguments& more = {}) {
  Arguments arguments = {"bench", "--sequences", "4", "2", "--prompt-len",  "9", "--response-len",
                         "12",    "--samples",   "2", "2", "--num-threads", "1", "--what"};
  arguments.insert(arguments.end(), what.begin(), what.end());
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// A model whose measurements take a quarter of the time that those of the default shape do.
const Arguments kSmallModel = {"--hf-checkpoint", kModel};

base::Json measured(const Arguments& what, const Arguments& more = {}) {
  base::TemporaryDirectory folder;
  Arguments arguments = bench_arguments(what, more);
  arguments.insert(arguments.end(), {"--json", folder / "bench.json"});
  const Captured result = run(arguments);
  EXPECT_EQ(result.code, 0) << result.err;
  return base::read_json_file(folder / "bench.json");
}

void expect_figures(const base::Json& record, const std::set<std::string>& whats) {
  for (const char* name : {"version", "build_type", "device", "num_threads", "model", "dtype", "num_parameters",
                           "weight_bytes", "kv_bytes_per_token", "ceilings"}) {
    EXPECT_TRUE(record.contains(name)) << name;
  }
  for (const char* name : {"copy_bytes_per_s", "read_bytes_per_s", "matmul_flops_per_s"}) {
    EXPECT_GT(record["ceilings"][name].get<double>(), 0.0) << name;
  }
  std::set<std::string> found;
  for (const base::Json& entry : record["measurements"]) {
    found.insert(entry["what"].get<std::string>());
    for (const char* name : {"seconds", "bytes", "limit_seconds", "share_of_limit"}) {
      const double value = entry[name].get<double>();
      EXPECT_TRUE(std::isfinite(value) && value > 0.0) << base::dump_json(entry);
    }
    if (entry["what"] != "optimizer") {
      EXPECT_GT(entry["tokens_per_s"].get<double>(), 0.0);
      EXPECT_GT(entry["flops"].get<double>(), 0.0);
    }
  }
  EXPECT_EQ(found, whats);
}

TEST(Bench, EachMeasurementGivesItsFigures) {
  expect_figures(measured({"decode", "prefill", "mixed", "tail", "train", "optimizer", "step"}, kSmallModel),
                 {"decode", "rollout", "prefill", "mixed", "tail", "train", "optimizer", "GRPO step"});
  EXPECT_FALSE(measured({"ceilings"}).contains("measurements"));
}

// Greedy texts of random weights repeat themselves: they were guessed as well with every fourth token changed.
TEST(Bench, TheTailIsGuessedAsFarAsItWasSeen) {
  const base::Json record = measured({"tail"}, {"--sequences", "2", "--response-len", "48"});
  std::map<std::string, std::pair<double, double>> counts;  // of each row: what was guessed, what of it was right
  for (const base::Json& row : record["measurements"])
    counts[row["detail"]] = {row["draft_tokens"].get<double>(), row["right_drafts"].get<double>()};
  const auto [none, all, of_16, of_8, of_4] = std::tuple{
      counts.at("2 sequences, no guesses"), counts.at("2 sequences, all seen"), counts.at("2 sequences, 1 of 16 other"),
      counts.at("2 sequences, 1 of 8 other"), counts.at("2 sequences, 1 of 4 other")};
  EXPECT_EQ(none.first, 0.0);
  EXPECT_GT(all.second, 60.0) << "of 94";
  EXPECT_LT(of_16.second, all.second);
  EXPECT_LT(of_8.second, of_16.second);
  EXPECT_GT(of_8.second, 2.0 * of_4.second);
  EXPECT_LE(of_4.second, 8.0) << "two of each, before the first change";
}

TEST(Bench, MeasuresPartOfAStepAndSharedPromptsInBothDtypes) {
  for (const std::string dtype : {"float32", "bfloat16"}) {
    const base::Json record = measured(
        {"decode", "train", "step"},
        {"--hf-checkpoint", kModel, "--dtype", dtype, "--n-samples-per-prompt", "2", "--train-tokens", "30",
         "--max-tokens-per-gpu", "40"});
    EXPECT_EQ(record["dtype"], dtype);
    expect_figures(record, {"decode", "rollout", "train", "GRPO step"});
    EXPECT_EQ(record["measurements"].back()["train_rollout_logprob_abs_diff"], 0.0);
  }
}

TEST(Bench, MeasuresACheckpointWithItsOwnWeightsOrRandomOnes) {
  for (const Arguments& more : {Arguments{}, Arguments{"--random-init"}}) {
    Arguments all = kSmallModel;
    all.insert(all.end(), more.begin(), more.end());
    const base::Json record = measured({"prefill"}, all);
    EXPECT_EQ(record["model"], kModel);
    EXPECT_EQ(record["dtype"], "float32");
  }
}

TEST(Bench, PrintsATableOrTheRecord) {
  const Captured table = run(bench_arguments({"prefill"}));
  EXPECT_EQ(table.code, 0) << table.err;
  EXPECT_NE(table.out.find("prefill, 4 sequences"), std::string::npos) << table.out;
  EXPECT_NE(table.out.find("at best: copy"), std::string::npos) << table.out;
  const Captured record = run(bench_arguments({"prefill"}, {"--json", "-"}));
  EXPECT_EQ(record.code, 0) << record.err;
  expect_figures(base::parse_json(record.out, "standard output"), {"prefill"});
  const Captured dry = run(bench_arguments({"prefill"}, {"--dry-run"}));
  EXPECT_EQ(dry.code, 0) << dry.err;
  EXPECT_NE(dry.out.find("nothing was measured"), std::string::npos) << dry.out;
}

TEST(Bench, RefusesWhatItCannotMeasure) {
  const std::vector<std::pair<Arguments, std::string>> cases = {
      {{"--shape", "qwen3-5b"}, "--shape: 'qwen3-5b'"},
      {{"--what", "speed"}, "--what: 'speed'"},
      {{"--sequences", "0"}, "--sequences: must be at least 1"},
      {{"--sequences", "6", "--n-samples-per-prompt", "4"}, "--sequences 6: is no multiple"},
      {{"--samples", "3"}, "--samples: has 1 numbers"},
      {{"--prompt-len", "40000", "--response-len", "1000"}, "--prompt-len 40000"},
      {{"--shape", "tiny", "--hf-checkpoint", kModel}, "--shape and --hf-checkpoint"},
      {{"--hf-checkpoint", "nowhere"}, "--hf-checkpoint nowhere"},
      {{"--recompute-granularity", "full", "--recompute-num-layers", "9"}, "--recompute-num-layers 9"},
      {{"--device", "abacus"}, "--device abacus"},
  };
  for (const auto& [more, says] : cases) {
    Arguments arguments = {"bench"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    expect_one_line_failure(run(arguments), 2, says);
  }
}

TEST(Bench, ExactnessHoldsHereAndSaysHowMuchItCompared) {
  for (const std::string dtype : {"float32", "bfloat16"}) {
    base::TemporaryDirectory folder;
    const Captured result =
        run({"bench", "--what", "exactness", "--num-threads", "1", "--hf-checkpoint", kModel, "--dtype", dtype,
             "--response-len", "16", "--json", folder / "bench.json"});
    EXPECT_EQ(result.code, 0) << result.out << result.err;
    const base::Json record = base::read_json_file(folder / "bench.json");
    EXPECT_EQ(record["exactness"]["is_exact"], true);
    EXPECT_FALSE(record.contains("ceilings"));
    for (const base::Json& answer : record["exactness"]["answers"]) {
      EXPECT_GT(answer["compared"].get<int64_t>(), 0) << base::dump_json(answer);
      EXPECT_EQ(answer["largest_difference"], 0.0);
    }
  }
}

// Makes rows of large batches a little larger.
class BatchDependentOps final : public sim::ForwardingOps {
 public:
  explicit BatchDependentOps(std::unique_ptr<device::Ops> inner) : ForwardingOps(*inner), owned_(std::move(inner)) {}
  at::Tensor linear(const at::Tensor& x, const at::Tensor& w, at::ScalarType out) const override {
    const at::Tensor y = owned_->linear(x, w, out);
    return x.size(0) > 16 ? y.mul(1.0 + 1e-2) : y;
  }

 private:
  std::unique_ptr<device::Ops> owned_;
};

TEST(Bench, ExactnessEndsWithOneWhereSomethingDiffers) {
  const device::ScopedFakeBackend replaced(
      {.make_ops = [] { return std::make_unique<BatchDependentOps>(device::make_cpu_ops("auto", 1)); }});
  const Captured result =
      run({"bench", "--what", "exactness", "--num-threads", "1", "--hf-checkpoint", kModel, "--response-len", "16"});
  EXPECT_EQ(result.code, 1) << result.out;
  EXPECT_NE(result.out.find("DIFFERENT"), std::string::npos) << result.out;
  EXPECT_NE(last_line(result.err).find("error: "), std::string::npos) << result.err;
}

}  // namespace
}  // namespace tandem::cli
