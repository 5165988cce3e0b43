#include "device_check/device_check.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <optional>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/message_text.h"
#include "base/version.h"
#include "bench/model.h"
#include "device/kept_check.h"
#include "device/registry.h"
#include "device_check/answers.h"
#include "device_check/memory.h"
#include "device_check/numbers.h"
#include "device_check/operations.h"
#include "device_check/ranks.h"
#include "device_check/rows.h"
#include "device_check/step.h"
#include "report/json_output.h"

namespace tandem::device_check {

namespace {

// `rung` is a way to compute of a backend that has several.
config::BenchConfig bench_config(const config::DeviceConfig& config, const char* rung) {
  config::BenchConfig bench;
  bench.model = config.model;
  if (rung != nullptr) bench.model.cpu_isa = rung;
  if (bench.model.hf_checkpoint.empty()) bench.shape = "tiny";
  bench.fill_in();
  return bench;
}

void tell_stack(const device::DeviceSpec& spec, const device::Ops& ops, Answers& answers) {
  answers.begin("stack");
  answers.tell("program", fmt::format("tandem {} ({} build)", base::kVersion, base::kBuildType));
  answers.tell("operations", ops.name());
  for (const auto& [name, version] : device::stack(spec)) answers.tell(name, version);
  const device::BackendRow& row = device::backend_of(spec);
  if (!row.is_module()) return;
  answers.tell("devices that this process sees", device::num_devices(row.name));
  answers.tell("memory", fmt::format("{} bytes", base::with_commas(device::device_bytes(spec).value().total)));
  answers.answer("a name that no other device has", !device::device_id(spec).empty());
}

RowWidths widths_of(const model::ModelConfig& model) {
  return {.hidden = model.hidden,
          .intermediate = model.mlp,
          .heads = model.num_heads,
          .kv_heads = model.num_kv_heads,
          .head_dim = model.head_dim,
          .vocab = model.vocab};
}

// Tells how long each operation takes, forward and backward together, at few and many rows.
void tell_times(const bench::BenchModel& model, Answers& answers) {
  constexpr int kRounds = 3;
  answers.begin("time");
  for (const Operation& operation : operations()) {
    std::string text;
    for (const int64_t rows : {8, 64, 512}) {
      Sizes sizes = kFullSizes;
      sizes.rows = rows;
      Draws draws(model.ops(), at::kBFloat16, /*is_reference=*/false, /*seed=*/1);
      operation.run(draws, sizes);  // warms up, and draws
      double best = 0.0;
      for (int round = 0; round < kRounds; ++round) {
        draws.begin_again();
        const double seconds = model.seconds([&] { operation.run(draws, sizes); });
        if (round == 0 || seconds < best) best = seconds;
      }
      text += fmt::format("{}{} rows {:.2f} ms", text.empty() ? "" : ", ", rows, best * 1e3);
    }
    answers.tell(operation.name, text);
  }
}

// Whether the other ways need not be asked: they change how exact a device is, and nothing else.
bool is_end(const device::KeptCheck& kept) { return kept.is_exact || !kept.is_right; }

// Asks everything of one way to compute. Returns what a run has to know of it. `is_last`: no other way follows.
device::KeptCheck ask_all(const config::DeviceConfig& config, const char* rung, bool is_last, Answers& answers) {
  const config::BenchConfig bench = bench_config(config, rung);
  bench::BenchModel model(bench);
  const device::DeviceSpec spec = device::parse_device(config.model.device);
  device::KeptCheck kept;
  kept.rung = rung == nullptr ? "" : rung;
  tell_stack(spec, model.ops(), answers);
  {
    device::MemoryDriver memory = device::open_memory(spec);
    ask_memory(memory, model.ops(), answers);
  }
  ask_numbers(model.ops(), answers);
  kept.is_right = answers.all_yes();
  ask_repeats(model.ops(), answers);
  ask_rows(model.ops(), widths_of(model.config()), answers);
  if (answers.all_yes()) ask_step(model, bench, answers);  // else it would only say the same again
  kept.is_exact = answers.all_yes();
  kept.first_no = answers.first_no();
  if (is_end(kept) || is_last) tell_times(model, answers);
  return kept;
}

void write_report(const std::string& path, const base::Json& record) {
  if (path.empty()) return;
  report::JsonOutput output(path);
  output.write(record);
  output.finish();
}

}  // namespace

int check_device(const config::DeviceConfig& config, const config::RunMode& mode) {
  config.check_flags();
  report::check_output(config.report);
  const device::DeviceSpec spec = device::parse_device(config.model.device);
  const bool prints = config.report != "-";
  if (!config.check || mode.dry_run) {
    Answers answers(prints);
    tell_stack(spec, bench::BenchModel(bench_config(config, nullptr)).ops(), answers);
    return 0;
  }
  const base::Clock::time_point begin = base::Clock::now();
  const device::BackendRow& row = device::backend_of(spec);
  std::vector<const char*> rungs(row.rungs.begin(), row.rungs.end());
  if (rungs.empty()) rungs.push_back(nullptr);
  std::optional<Answers> answers;
  device::KeptCheck kept;
  for (const char* const rung : rungs) {
    if (answers) base::log_info("the answer to \"{}\" is no; the next way to compute is {}", kept.first_no, rung);
    answers.emplace(prints);
    kept = ask_all(config, rung, /*is_last=*/rung == rungs.back(), *answers);
    if (is_end(kept)) break;
  }
  // A run of several ranks asks the kept answers itself.
  if (!row.rungs.empty()) device::keep_check(device::stack(spec), kept, answers->record());
  if (config.ranks > 1) ask_ranks(config, *answers);
  base::log_info("{} in {:.0f} s{}", answers->all_yes() ? "every answer is yes" : "not every answer is yes",
                 base::seconds_since(begin),
                 kept.rung.empty() ? "" : fmt::format("; computed in the way {}", kept.rung));
  write_report(config.report, answers->record());
  return answers->all_yes() ? 0 : 3;
}

}  // namespace tandem::device_check
