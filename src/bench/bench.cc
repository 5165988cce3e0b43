// `tandem bench` measures how fast this machine runs a model, against what it could at best.
#include <fmt/format.h>

#include "base/check.h"
#include "base/log.h"
#include "base/message_text.h"
#include "base/version.h"
#include "bench/bench.h"
#include "bench/ceilings.h"
#include "bench/exactness.h"
#include "bench/model.h"
#include "bench/rollout.h"
#include "bench/table.h"
#include "bench/tail.h"
#include "bench/training.h"
#include "model/registry.h"
#include "report/json_output.h"

namespace tandem::bench {

namespace {

// Throws UserError for what the model itself refuses, before anything is measured.
void check_model(const config::BenchConfig& config, const model::ModelConfig& model) {
  TANDEM_USER_CHECK(*config.prompt_len + *config.response_len <= model.max_positions,
                    fmt::format("--prompt-len {} and --response-len {}: the model's context is {} tokens; lower one",
                                *config.prompt_len, *config.response_len, model.max_positions));
  config.optimizer.recompute_layers(model.num_layers);
  for (const char* part : {"train", "optimizer", "exactness"}) {
    TANDEM_USER_CHECK(!model.is_quantised() || !config.measures(part),
                      fmt::format("--what {} with --dtype {}: is measured with weights that are trained; give --what "
                                  "decode, prefill, mixed or tail",
                                  part, model.dtype_name()));
  }
}

void describe(const config::BenchConfig& config, const config::RunMode& mode, const BenchModel& bench,
              BenchTable& table) {
  const model::ModelConfig& model = bench.config();
  const ModelWork work(model);
  const std::string name = config.shape.empty() ? config.model.hf_checkpoint : config.shape;
  table.line(fmt::format("tandem {} ({} build), {}, {} on the host", base::kVersion, base::kBuildType,
                         bench.ops().name(), base::counted(bench.ops().num_threads(), "thread")));
  table.line(fmt::format("{}, {}: {} parameters, {:.3g} GB; {} bytes of KV cache a token", name, model.dtype_name(),
                         base::with_commas(model.num_parameters()), work.weight_bytes() * 1e-9,
                         base::with_commas(static_cast<int64_t>(work.kv_token_bytes()))));
  table.set("version", base::kVersion);
  table.set("build_type", base::kBuildType);
  table.set("device", bench.ops().name());
  table.set("num_threads", bench.ops().num_threads());
  table.set("model", name);
  table.set("dtype", model.dtype_name());
  table.set("num_parameters", model.num_parameters());
  table.set("weight_bytes", work.weight_bytes());
  table.set("kv_bytes_per_token", work.kv_token_bytes());
  table.set("prompt_len", *config.prompt_len);
  table.set("response_len", *config.response_len);
  table.set("samples", config.samples);
  table.set("options", mode.values);
}

void show_ceilings(const Ceilings& ceilings, const model::ModelConfig& model, BenchTable& table) {
  table.line(fmt::format("at best: copy {:.4g} GB/s (read and written), read {:.4g} GB/s, {} matmul {:.4g} TFLOP/s",
                         ceilings.copy_bytes_per_s * 1e-9, ceilings.read_bytes_per_s * 1e-9,
                         model::to_string(model.dtype), ceilings.flops_per_s * 1e-12));
  table.set("ceilings", ceilings_json(ceilings));
}

}  // namespace

int bench(const config::BenchConfig& given, const config::RunMode& mode) {
  given.check();
  report::check_output(given.json);
  config::BenchConfig config = given;
  config.fill_in();
  BenchModel bench(config);
  check_model(config, bench.config());
  BenchTable table(config.json != "-");
  describe(config, mode, bench, table);
  if (mode.dry_run) {
    table.line("everything is in order; nothing was measured (--dry-run)");
    return 0;
  }
  Ceilings ceilings;
  if (config.measures_speed()) {  // each measurement is judged by the ceilings
    const LibTorchThreads threads(bench);
    ceilings = measure_ceilings(bench);
    show_ceilings(ceilings, bench.config(), table);
  }
  if (config.needs_weights()) bench.load_weights();
  if (config.measures("decode")) measure_decode(bench, config, ceilings, table);
  if (config.measures("prefill")) measure_prefill(bench, config, ceilings, table);
  if (config.measures("mixed")) measure_mixed(bench, config, ceilings, table);
  if (config.measures("tail")) measure_tail(bench, config, ceilings, table);
  if (config.measures("train") || config.measures("optimizer")) {
    const double optimizer_seconds = measure_optimizer(bench);
    if (config.measures("train")) measure_training(bench, config, ceilings, optimizer_seconds, table);
    if (config.measures("optimizer")) add_optimizer(bench, ceilings, optimizer_seconds, table);
  }
  if (config.measures("step")) measure_step(bench, config, ceilings, table);
  const bool is_exact = !config.measures("exactness") || check_exactness(bench, config, table);
  if (!config.json.empty()) {
    report::JsonOutput output(config.json);
    output.write(table.record());
    output.finish();
  }
  if (!is_exact) base::log_error("this machine's results depend on what is computed together: see what is DIFFERENT");
  return is_exact ? 0 : 1;
}

}  // namespace tandem::bench
