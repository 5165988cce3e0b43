#include "bench/model.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <mutex>
#include <optional>

#include "base/check.h"
#include "base/clock.h"
#include "bench/shapes.h"
#include "device/thread_pool.h"
#include "model/dtype.h"
#include "model/registry.h"
#include "session/read_model.h"
#include "weights/quantise.h"

namespace tandem::bench {

namespace {

// The host draws the weights of models that are no larger: they are then the same on every device.
constexpr int64_t kDrawnOnHost = 64 << 20;

model::ModelConfig bench_model_config(const config::BenchConfig& options) {
  if (!options.model.hf_checkpoint.empty()) return session::read_model(options.model);
  model::ModelConfig config = bench_shape(options.shape);
  session::take_dtype(config, options.model);
  return config;
}

void draw_quantised(const weights::WeightStore& store, const weights::PackedTensor& packed, double deviation,
                    const at::Generator& generator, device::ThreadPool& threads) {
  for (const weights::Slice& slice : packed.slices) {
    const at::Tensor drawn = at::empty(slice.shape, at::TensorOptions(at::kBFloat16).device(store.device()));
    const at::Tensor numbers = drawn.normal_(0.0, deviation, generator).cpu().to(at::kFloat);
    weights::quantise_part(store.quantised(packed.name), slice.row_begin, slice.hf_name, threads,
                           [&](weights::QuantisedWriter& writer) {
                             writer.add({numbers.const_data_ptr<float>(), static_cast<size_t>(numbers.numel())});
                           });
  }
}

// Draws weights like weights::initialize_random(), but with the device's own random numbers: the host's would take
// minutes for billions of weights.
void draw_on_device(weights::WeightStore& store, double deviation, uint64_t seed, int num_threads) {
  const at::NoGradGuard without_graph;
  store.allocate();
  device::ThreadPool threads(num_threads);
  at::Generator generator = at::globalContext().defaultGenerator(store.device());
  {
    const std::lock_guard lock(generator.mutex());
    generator.set_current_seed(seed);
  }
  for (const weights::PackedTensor& packed : store.layout().tensors) {
    const at::Tensor& tensor = store.tensor(packed.name);
    switch (packed.init) {
      case weights::Init::kNormal:
        packed.is_quantised() ? draw_quantised(store, packed, deviation, generator, threads)
                              : static_cast<void>(tensor.normal_(0.0, deviation, generator));
        break;
      case weights::Init::kOnes: tensor.fill_(1); break;
      case weights::Init::kZeros: tensor.fill_(0); break;
      case weights::Init::kUniform: TANDEM_CHECK(false, "a model has no tensor that begins as an adapter's");
    }
  }
}

}  // namespace

BenchModel::BenchModel(const config::BenchConfig& config)
    : options_(config.model),
      config_(bench_model_config(config)),
      device_(device::parse_device(options_.device)),
      ops_(device::make_ops(device_, {.isa = options_.cpu_isa, .num_threads = static_cast<int>(options_.num_threads)})),
      memory_(device::open_memory(device_)) {}

void BenchModel::load_weights() {
  store_ = std::make_unique<weights::WeightStore>(weights::WeightStore::without_storage(
      model::build_layout(config_), model::scalar_type(config_.dtype), ops_->device()));
  const auto seed = static_cast<uint64_t>(options_.seed);
  if (!options_.hf_checkpoint.empty() && !options_.random_init) {
    weights::load_hf_checkpoint(options_.hf_checkpoint, *store_, ops_->num_threads());
  } else if (is_on_host() || config_.num_parameters() <= kDrawnOnHost) {
    weights::initialize_random(*store_, config_.initializer_range, seed, /*first_stream=*/0, ops_->num_threads());
  } else {
    draw_on_device(*store_, config_.initializer_range, seed, ops_->num_threads());
  }
}

std::unique_ptr<model::Model> BenchModel::make_model() const {
  return model::make_model(config_, store_->view(), *ops_);
}

double BenchModel::seconds(const std::function<void()>& work) const {
  memory_.synchronize();
  const base::Clock::time_point begin = base::Clock::now();
  work();
  memory_.synchronize();
  return base::seconds_since(begin);
}

double BenchModel::best_seconds(int calls, const std::function<void()>& call) const {
  constexpr int kWarmUps = 2, kRounds = 5;
  constexpr double kMostSeconds = 1.0;
  double best = std::numeric_limits<double>::infinity(), all = 0.0;
  const auto run_rounds = [&](int rounds, bool counts) {
    for (int round = 0; round < rounds && (round == 0 || all < kMostSeconds); ++round) {
      const double round_seconds = seconds([&] {
        for (int i = 0; i < calls; ++i) call();
      });
      all += round_seconds;
      if (counts) best = std::min(best, round_seconds);
    }
  };
  run_rounds(kWarmUps, /*counts=*/false);
  run_rounds(kRounds, /*counts=*/true);
  return std::max(best, 1e-9) / calls;
}

void BenchModel::release_unused() const {
  memory_.synchronize();
  if (memory_.release_unused != nullptr) memory_.release_unused();
}

LibTorchThreads::LibTorchThreads(const BenchModel& bench) : before_(at::get_num_threads()) {
  at::set_num_threads(bench.ops().num_threads());
}
LibTorchThreads::~LibTorchThreads() { at::set_num_threads(before_); }

}  // namespace tandem::bench
